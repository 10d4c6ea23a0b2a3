// An entry for each page of a volume, zeros at first.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "pages/table_memory.h"

namespace rdmakit::volume {

template <typename Entry>
class PageTable {
 public:
  // 0 or an errno value; see TableMemory.
  int open(uint64_t pages, const std::string& file, uint64_t magic, bool sparse, bool prefault) {
    const int error = memory_.open(file, {magic, pages}, pages * sizeof(Entry), sparse, prefault);
    if (error == 0) entries_ = static_cast<std::atomic<Entry>*>(memory_.entries());
    return error;
  }
  void unlock() { memory_.unlock(); }

  bool is_open() const { return entries_ != nullptr; }
  Entry get(uint64_t page) const { return entries_[page].load(std::memory_order_relaxed); }
  void set(uint64_t page, Entry entry) { entries_[page].store(entry, std::memory_order_relaxed); }

 private:
  std::atomic<Entry>* entries_ = nullptr;
  TableMemory memory_;
};

}  // namespace rdmakit::volume
