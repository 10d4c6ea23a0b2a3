// Memory of a sealed memfd, mapped into this process.
//
// One file is mapped once, however many connections speak of it. So a connection within one process
// shares the very addresses, and sanitizers see both of its ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace rdmakit::shm {

enum class Sharing { writable, read_only };  // what others may do

// How many segments of one peer may be mapped at a time, and how many files of all peers when another segment
// comes: parts of the mappings that the kernel lets a process have (vm.max_map_count, read once), by which
// also the heap and the threads live.
size_t most_mappings_of_peer();
size_t most_mappings_of_peers();

class SharedMapping {
 public:
  // A new file of `length` zero bytes and its descriptor. Null and errno on failure.
  static std::shared_ptr<SharedMapping> create(const char* name, size_t length, Sharing sharing,
                                               UniqueFd& fd);
  // A peer's file, which must be sealed against shrinking (or a read past its new end would be our
  // SIGBUS) and have at least `least` bytes. Null and errno on failure; EPROTO: not such a file.
  static std::shared_ptr<SharedMapping> open(int fd, size_t least, Sharing sharing);
  // The files of peers that are mapped now.
  static size_t of_peers();
  // 0, or an errno value with `why` saying what this kernel lacks.
  static int available(std::string& why);
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Puts the pages that the file has into this process's page table now, so that the hot path does
  // not fault them in one by one. Only when the file has all of them: a peer's sparse file would
  // otherwise be filled at our expense.
  void populate(int fd);

 private:
  SharedMapping(uint8_t* data, size_t size, uint64_t inode, Sharing sharing, bool own)
      : data_(data), size_(size), inode_(inode), sharing_(sharing), own_(own) {}
  static std::shared_ptr<SharedMapping> map(int fd, size_t size, uint64_t inode, Sharing sharing, bool own);

  uint8_t* const data_;
  const size_t size_;
  const uint64_t inode_;
  const Sharing sharing_;
  const bool own_;
};

}  // namespace rdmakit::shm
