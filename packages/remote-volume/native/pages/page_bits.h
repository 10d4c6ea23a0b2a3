// One bit for each page of a volume, changed by any lane.
#pragma once

#include <atomic>
#include <cstdint>

#include "system/lazy_array.h"

namespace rdmakit::volume {

class PageBits {
 public:
  // All clear. 0 or an errno value. `prefault` touches the memory now instead of on first use.
  int open(uint64_t pages, bool prefault) { return words_.open((pages + 63) / 64, prefault); }
  void set(uint64_t first, uint64_t count, bool value);
  bool get(uint64_t page) const {
    return (words_[page / 64].load(std::memory_order_relaxed) >> page % 64 & 1) != 0;
  }
  // How many pages from `first` on, at most `limit`, have `value`.
  uint64_t run(uint64_t first, uint64_t limit, bool value) const;

 private:
  LazyArray<std::atomic<uint64_t>> words_;
};

}  // namespace rdmakit::volume
