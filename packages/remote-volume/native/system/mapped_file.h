// Memory that outlives the process: a file, best on tmpfs, mapped and locked while in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/unique_fd.h"

namespace rdmakit::volume {

class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Created with mode 0600 when missing or empty; `fresh` then, with `header` at its beginning, and all zero
  // behind it. It is made as `file`.new and renamed, so that whenever a process dies it is whole or not
  // there. 0 or an errno value: EBUSY another process has it, EINVAL it has another length, ELOOP it, or what
  // is made, is a symbolic link, EPERM others have access to it. `sparse`: it gets its blocks as they are
  // written, and a full file system is then SIGBUS; else all of them now.
  int open(const std::string& file, std::span<const uint64_t> header, size_t bytes, bool sparse, bool& fresh);
  // Another process may have it now; it stays mapped here.
  void unlock();
  void* memory() const { return memory_; }
  size_t bytes() const { return bytes_; }

 private:
  int make(const std::string& file, std::span<const uint64_t> header, size_t bytes, bool sparse);

  UniqueFd file_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// For people: why `what`, in `file` when that is not empty, could not be opened.
std::string mapping_failure(const char* what, const std::string& file, int error);

}  // namespace rdmakit::volume
