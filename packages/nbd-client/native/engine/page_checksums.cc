#include "engine/page_checksums.h"

#include <sys/mman.h>

#include <cerrno>

#include "engine/lazy_array.h"
#include "iwarp/crc32c.h"

namespace rdmakit::nbd {

namespace {

constexpr uint64_t kFileMagic = 0x6372636567617072;  // "rpagecrc"

// First page of the file.
struct FileHeader {
  uint64_t magic;
  uint64_t pages;  // of the volume
};

}  // namespace

PageChecksums::~PageChecksums() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

int PageChecksums::open(uint64_t pages, const std::string& file, bool sparse, bool prefault) {
  const size_t bytes = (pages * sizeof(uint32_t) + kPage - 1) / kPage * kPage;
  uint8_t* entries = nullptr;
  if (file.empty()) {
    mapping_ = map_lazily(bytes, prefault);
    if (mapping_ == nullptr) return errno;
    mapped_ = bytes;
    entries = static_cast<uint8_t*>(mapping_);
  } else {
    if (const int error = open_file(file, bytes, pages, sparse); error != 0) return error;
    entries = static_cast<uint8_t*>(file_.memory()) + kPage;
  }
  if (prefault) madvise(entries, bytes, MADV_POPULATE_WRITE);
  entries_ = reinterpret_cast<std::atomic<uint32_t>*>(entries);
  // Some ways to compute it make tables when they are used first.
  const uint8_t page[kPage] = {};
  entry_of(page);
  return 0;
}

int PageChecksums::open_file(const std::string& file, size_t bytes, uint64_t pages, bool sparse) {
  bool fresh = false;
  if (const int error = file_.open(file, kPage + bytes, sparse, fresh); error != 0) return error;
  auto* header = static_cast<FileHeader*>(file_.memory());
  if (fresh) *header = {kFileMagic, pages};
  return header->magic == kFileMagic && header->pages == pages ? 0 : EINVAL;
}

// ---- hot path begins: no system call, no lock, no allocation ----

uint32_t PageChecksums::entry_of(const uint8_t* page) {
  const uint32_t sum = iwarp::crc32c(page, kPage);
  return sum == kUnknown ? 1 : sum;
}

void PageChecksums::note(uint64_t offset, uint32_t length, const uint8_t* memory) {
  if (entries_ == nullptr) return;
  while (length > 0) {
    const uint64_t head = offset % kPage;
    const auto here = static_cast<uint32_t>(head + length < kPage ? length : kPage - head);
    entries_[offset / kPage].store(here == kPage ? entry_of(memory) : kUnknown, std::memory_order_relaxed);
    offset += here;
    memory += here;
    length -= here;
  }
}

void PageChecksums::forget(uint64_t first, uint64_t count) {
  if (entries_ == nullptr) return;
  for (uint64_t i = 0; i < count; i++) entries_[first + i].store(kUnknown, std::memory_order_relaxed);
}

bool PageChecksums::right(uint64_t offset, uint32_t length, const uint8_t* memory) const {
  if (entries_ == nullptr) return true;
  const uint64_t ahead = (kPage - offset % kPage) % kPage;  // of the first whole page
  for (uint64_t at = ahead; at + kPage <= length; at += kPage) {
    if (!right((offset + at) / kPage, memory + at)) return false;
  }
  return true;
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
