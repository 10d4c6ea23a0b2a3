// The number of bytes that each page of a volume fills of its slot at the replicas: all for a raw page, fewer
// for its LZ4 form. 2 bytes a page, changed by the holder of the page's claim, before the bytes themselves.
#pragma once

#include <cstdint>
#include <string>

#include "pages/page_table.h"
#include "volume/limits.h"

namespace rdmakit::volume {

// The page is in its slot as it is.
inline constexpr uint16_t kRaw = 0;
// More is not worth an unpacking: 1/8 must go.
inline constexpr uint16_t kMaxPacked = kPage / 8 * 7;

class PageLengths {
 public:
  // Like PageChecksums::open(). Without it every page is raw.
  int open(uint64_t pages, const std::string& file, bool sparse, bool prefault) {
    return table_.open(pages, file, kMagic, sparse, prefault);
  }
  void unlock() { table_.unlock(); }
  // Pages may be packed: parts of them are not written.
  bool kept() const { return table_.is_open(); }

  // ---- hot path ----
  // kRaw, or at most kMaxPacked, whatever the file holds.
  uint16_t get(uint64_t page) const {
    if (!kept()) return kRaw;
    const uint16_t length = table_.get(page);
    return length <= kMaxPacked ? length : kRaw;
  }
  void set(uint64_t first, uint64_t count, uint16_t length) {
    if (!kept()) return;
    for (uint64_t i = 0; i < count; i++) {
      // Usually it is unchanged, and then other lanes keep the cache line.
      if (table_.get(first + i) != length) table_.set(first + i, length);
    }
  }
  // How many from `page` on, at most `limit` (not 0), can be read at once: those that are raw, or one.
  uint64_t run(uint64_t page, uint64_t limit) const {
    if (!kept()) return limit;
    uint64_t raw = 0;
    while (raw < limit && get(page + raw) == kRaw) raw++;
    return raw == 0 ? 1 : raw;
  }

 private:
  static constexpr uint64_t kMagic = 0x31347a6c67617072;  // "rpaglz41": version 1 of the format

  PageTable<uint16_t> table_;
};

}  // namespace rdmakit::volume
