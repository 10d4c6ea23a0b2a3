// Memory that outlives the process: a file, best on tmpfs, mapped and locked while in use.
#pragma once

#include <cstddef>
#include <string>

#include "base/unique_fd.h"

namespace rdmakit::volume {

class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Created with mode 0600 when missing; `fresh` then, and all zero. 0 or an errno value: EBUSY another
  // process has it, EINVAL it has another length, ELOOP it is a symbolic link, EPERM others have access to
  // it. `sparse`: it gets its blocks as they are written, and a full file system is then SIGBUS; else all of
  // them now.
  int open(const std::string& file, size_t bytes, bool sparse, bool& fresh);
  // Another process may have it now; it stays mapped here.
  void unlock();
  void* memory() const { return memory_; }
  size_t bytes() const { return bytes_; }

 private:
  UniqueFd file_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// For people: why `what`, in `file` when that is not empty, could not be opened.
std::string mapping_failure(const char* what, const std::string& file, int error);

}  // namespace rdmakit::volume
