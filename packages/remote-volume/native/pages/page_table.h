// An entry for each page of a volume, zeros at first: memory that costs nothing until it is touched, or a
// file that outlives the process.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>

#include "base/mapped_memory.h"
#include "system/lazy_array.h"
#include "system/mapped_file.h"
#include "volume/limits.h"

namespace rdmakit::volume {

template <typename Entry>
class PageTable {
 public:
  PageTable() = default;
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;
  ~PageTable() {
    if (mapping_ != nullptr) munmap(mapping_, mapped_);
  }

  // 0 or an errno value. `file` empty: private memory. Else a file (see MappedFile) whose first page holds
  // `magic` and the number of pages, EINVAL when it holds others. `prefault` touches it all now.
  int open(uint64_t pages, const std::string& file, uint64_t magic, bool sparse, bool prefault) {
    const size_t bytes = (pages * sizeof(Entry) + kPage - 1) / kPage * kPage;
    uint8_t* entries = nullptr;
    if (file.empty()) {
      mapping_ = map_lazily(bytes, prefault);
      if (mapping_ == nullptr) return errno;
      mapped_ = bytes;
      entries = static_cast<uint8_t*>(mapping_);
    } else {
      bool fresh = false;
      if (const int error = file_.open(file, kPage + bytes, sparse, fresh); error != 0) return error;
      auto* header = static_cast<Header*>(file_.memory());
      if (fresh) *header = {magic, pages};
      if (header->magic != magic || header->pages != pages) return EINVAL;
      entries = static_cast<uint8_t*>(file_.memory()) + kPage;
    }
    if (prefault && !file.empty())
      if (const int error = populate(entries, bytes); error != 0) return error;
    entries_ = reinterpret_cast<std::atomic<Entry>*>(entries);
    return 0;
  }
  void unlock() { file_.unlock(); }

  bool is_open() const { return entries_ != nullptr; }
  Entry get(uint64_t page) const { return entries_[page].load(std::memory_order_relaxed); }
  void set(uint64_t page, Entry entry) { entries_[page].store(entry, std::memory_order_relaxed); }

 private:
  struct Header {
    uint64_t magic;
    uint64_t pages;  // of the volume
  };

  std::atomic<Entry>* entries_ = nullptr;
  void* mapping_ = nullptr;  // without a file
  size_t mapped_ = 0;
  MappedFile file_;
};

}  // namespace rdmakit::volume
