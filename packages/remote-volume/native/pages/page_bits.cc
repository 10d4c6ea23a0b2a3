#include "pages/page_bits.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "system/lazy_array.h"

namespace rdmakit::volume {

PageBits::~PageBits() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

int PageBits::open(uint64_t pages, bool prefault) {
  mapped_ = (pages + 63) / 64 * sizeof(uint64_t);
  mapping_ = map_lazily(mapped_, prefault);
  if (mapping_ == nullptr) return errno;
  words_ = static_cast<std::atomic<uint64_t>*>(mapping_);
  return 0;
}

// ---- hot path begins: no system call, no lock, no allocation ----

void PageBits::set(uint64_t first, uint64_t count, bool value) {
  while (count > 0) {
    const uint64_t position = first % 64;
    const uint64_t here = std::min<uint64_t>(count, 64 - position);
    const uint64_t mask = (here == 64 ? ~uint64_t{0} : (uint64_t{1} << here) - 1) << position;
    std::atomic<uint64_t>& word = words_[first / 64];
    // Most often there is nothing to change, and then nothing is written.
    const uint64_t old = word.load(std::memory_order_relaxed);
    if (value && (old & mask) != mask) word.fetch_or(mask, std::memory_order_relaxed);
    if (!value && (old & mask) != 0) word.fetch_and(~mask, std::memory_order_relaxed);
    first += here;
    count -= here;
  }
}

uint64_t PageBits::run(uint64_t first, uint64_t limit, bool value) const {
  uint64_t found = 0;
  while (found < limit) {
    const uint64_t position = (first + found) % 64;
    const uint64_t word =
        words_[(first + found) / 64].load(std::memory_order_relaxed) ^ (value ? 0 : ~uint64_t{0});
    const auto here =
        std::min<uint64_t>(static_cast<uint64_t>(std::countr_one(word >> position)), 64 - position);
    found += here;
    if (here < 64 - position) break;
  }
  return std::min(found, limit);
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
