#include "pages/page_checksums.h"

#include "base/crc32c.h"
#include "volume/limits.h"

namespace rdmakit::volume {

constexpr uint64_t kPageChecksumsMagic = 0x6372636567617072;  // "rpagecrc"

int PageChecksums::open(uint64_t pages, const std::string& file, bool sparse, bool prefault) {
  if (const int error = table_.open(pages, file, kPageChecksumsMagic, sparse, prefault); error != 0)
    return error;
  // Some ways to compute it make tables when they are used first.
  const uint8_t page[kPage] = {};
  entry_of(page);
  return 0;
}

// ---- hot path begins: no system call, no lock, no allocation ----

uint32_t PageChecksums::entry_of(const uint8_t* page) {
  const uint32_t sum = crc32c(page, kPage);
  return sum == kUnknown ? 1 : sum;
}

void PageChecksums::note(uint64_t offset, uint32_t length, const uint8_t* memory) {
  if (!kept()) return;
  while (length > 0) {
    const uint64_t head = offset % kPage;
    const auto here = static_cast<uint32_t>(head + length < kPage ? length : kPage - head);
    uint32_t entry = kUnknown;
    if (here == kPage) {
      entry = entry_of(memory);
      if (entry == kLost) entry = kUnknown;
    }
    table_.set(offset / kPage, entry);
    offset += here;
    memory += here;
    length -= here;
  }
}

void PageChecksums::fill(uint64_t first, uint64_t count, uint32_t entry) {
  if (!kept()) return;
  for (uint64_t i = 0; i < count; i++) table_.set(first + i, entry);
}

bool PageChecksums::right(uint64_t offset, uint32_t length, const uint8_t* memory) const {
  if (!kept()) return true;
  const uint64_t ahead = (kPage - offset % kPage) % kPage;  // of the first whole page
  for (uint64_t at = ahead; at + kPage <= length; at += kPage) {
    if (!right((offset + at) / kPage, memory + at)) return false;
  }
  return true;
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
