// The checksum of each page of a volume: its CRC32C, 4 bytes a page, changed by the holder of the page's
// claim. A page whose checksum is not known (its last WRITE covered only a part) is not checked. While a lost
// page is written its entry says so, for whoever comes after a death: the page map says `claimed` then.
#pragma once

#include <cstdint>
#include <string>

#include "pages/page_table.h"

namespace rdmakit::volume {

class PageChecksums {
 public:
  // Nothing known. 0 or an errno value. Without open() every page is right. `file` empty: private memory,
  // which costs nothing until it is touched. Else a file that outlives the process (see MappedFile), EINVAL
  // also when it is not of a volume of this size. `prefault` touches it all now.
  int open(uint64_t pages, const std::string& file, bool sparse, bool prefault);
  void unlock() { table_.unlock(); }
  bool kept() const { return table_.is_open(); }

  // ---- hot path ----
  // Before a WRITE is posted: whole pages get their sum, parts of pages become unknown, as do the pages whose
  // sum would say that they are lost: one of 4 billion.
  void note(uint64_t offset, uint32_t length, const uint8_t* memory);
  void forget(uint64_t first, uint64_t count) { fill(first, count, kUnknown); }
  // In the place of note(), which follows under the same claim when the WRITE has succeeded.
  void mark_lost(uint64_t first, uint64_t count) { fill(first, count, kLost); }
  // Of a page that was left claimed.
  bool marked_lost(uint64_t page) const { return kept() && table_.get(page) == kLost; }
  // Returns the value that note() would change, and restores it.
  uint32_t noted(uint64_t page) const { return kept() ? table_.get(page) : kUnknown; }
  void restore(uint64_t page, uint32_t noted) {
    if (kept()) table_.set(page, noted);
  }
  bool right(uint64_t page, const uint8_t* bytes) const {
    if (!kept()) return true;
    const uint32_t entry = table_.get(page);
    return entry == kUnknown || entry == entry_of(bytes);
  }
  // Checks all whole pages in the range.
  bool right(uint64_t offset, uint32_t length, const uint8_t* memory) const;

 private:
  static constexpr uint32_t kUnknown = 0;
  static constexpr uint32_t kLost = 2;
  void fill(uint64_t first, uint64_t count, uint32_t entry);
  // A sum of 0 is kept as 1, so that a page needs no bit beside it and changes by one store.
  static uint32_t entry_of(const uint8_t* page);

  PageTable<uint32_t> table_;
};

}  // namespace rdmakit::volume
