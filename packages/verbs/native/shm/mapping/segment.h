// Memory that map_memory gave: a memfd that peers can map.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/mapped_memory.h"
#include "shm/mapping/shared_mapping.h"

namespace rdmakit::shm {

struct Segment {
  UniqueFd fd;
  std::shared_ptr<SharedMapping> mapping;
  uint32_t generation = 0;  // no other segment of this process has had it, but for wrapping around

  uint64_t address() const { return reinterpret_cast<uint64_t>(mapping->data()); }
  uint64_t length() const { return mapping->size(); }
};

// Every segment of the process, by address.
class Segments {
 public:
  static Segments& instance();

  // Null and errno on failure. The memory is there already, zeroed and touched. Huge pages of a pool are
  // EOPNOTSUPP: peers map no hugetlbfs, whose pages can be lacking when they are touched.
  void* map(size_t length, const MemoryOptions& options);
  void unmap(void* address);
  // The segment that holds all of [address, address + length); null: plain memory.
  std::shared_ptr<Segment> find(uint64_t address, uint64_t length);

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Segment>> by_address_;
  uint32_t next_generation_ = 1;
};

}  // namespace rdmakit::shm
