// The slab table: a record for each slab, and which servers have failed. Either private memory, or a file
// that is this table: what lanes can see is on record, and a process that dies at any moment leaves it whole,
// for a record is written beside the old one and published by one store (SlabRecord).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "system/lazy_array.h"
#include "system/mapped_file.h"
#include "volume/slab_record.h"

namespace rdmakit::volume {

class SlabMap {
 public:
  // 0 or an errno value. `file` empty: private memory, all unmapped. Else see MappedFile; EINVAL also when
  // it is the table of other slabs, or damaged.
  int open(uint32_t slabs, const std::string& file);

  // ---- hot path ----
  SlabRecord& operator[](uint64_t slab) { return records_[slab]; }
  const SlabRecord& operator[](uint64_t slab) const { return records_[slab]; }
  // Before anything is decided without that server; a single store.
  void record_failure(uint32_t server) {
    failed_[server / 64].fetch_or(uint64_t{1} << server % 64, std::memory_order_release);
  }

  // The index is free.
  void forget_failure(uint32_t server) {
    failed_[server / 64].fetch_and(~(uint64_t{1} << server % 64), std::memory_order_release);
  }

  bool recorded_failure(uint32_t server) const {
    return (failed_[server / 64].load(std::memory_order_acquire) >> server % 64 & 1) != 0;
  }

  // Ends what an earlier process was changing when it died, and names the slabs that have a place, or have
  // lost it: how many.
  uint32_t settle(uint32_t slabs, const std::function<void(uint32_t slab)>& mapped);

  void unlock() { file_.unlock(); }

 private:
  int check(uint32_t slabs) const;

  MappedFile file_;
  LazyArray<SlabRecord> own_records_;
  std::unique_ptr<std::atomic<uint64_t>[]> own_failed_;
  SlabRecord* records_ = nullptr;
  std::atomic<uint64_t>* failed_ = nullptr;  // a bit for each server index
};

}  // namespace rdmakit::volume
