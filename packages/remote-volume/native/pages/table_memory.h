// The memory of a table with something of each page of a volume, zeros at first: private, which costs nothing
// until it is touched, or a file that outlives the process.
#pragma once

#include <cstdint>
#include <string>

#include "system/lazy_array.h"
#include "system/mapped_file.h"

namespace rdmakit::volume {

class TableMemory {
 public:
  // The beginning of the first page of the file.
  struct Header {
    uint64_t magic;
    uint64_t pages;  // of the volume
  };

  // 0 or an errno value. `file` empty: private. Else a file (see MappedFile), EINVAL when it begins with
  // another header. `prefault` touches it all now.
  int open(const std::string& file, const Header& header, size_t bytes, bool sparse, bool prefault);
  void unlock() { file_.unlock(); }

  void* entries() const { return entries_; }
  // The file's header.
  void* header() const { return file_.memory(); }
  bool fresh() const { return fresh_; }

 private:
  LazyArray<uint8_t> private_;
  MappedFile file_;
  uint8_t* entries_ = nullptr;
  bool fresh_ = false;
};

}  // namespace rdmakit::volume
