#include "pages/page_bits.h"

#include <algorithm>
#include <bit>

namespace rdmakit::volume {

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
