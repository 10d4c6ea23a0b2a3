// ibv_pd: a table of regions in shared memory, and the queue pairs that may reach them. The peers of
// these queue pairs map the table read-only and see no region of another domain.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "shm/layout.h"
#include "shm/segment.h"

namespace rdmakit::shm {

class QueuePair;

struct MemoryRegion : ibv_mr {
  int access = 0;
};

class ProtectionDomain : public ibv_pd {
 public:
  // Null and errno on failure.
  static std::unique_ptr<ProtectionDomain> create(ibv_context* context);

  // The key of a new region (lkey and rkey are the same), or 0 and errno. Peers hear of its segment.
  uint32_t add(uint64_t address, uint64_t length, int access);
  // The key is dead when this returns. 0, or EBUSY when a stopped peer may still be copying.
  int remove(uint32_t key);

  // A queue pair of this domain comes and goes.
  void join(QueuePair* queue_pair);
  void leave(QueuePair* queue_pair);
  // The queue pair is connected: its peer hears of all segments.
  void announce_all(QueuePair& queue_pair);

  int table_fd() const { return table_fd_.get(); }

  // Hot path: a scatter/gather element of this process.
  bool allows(uint32_t key, uint64_t address, uint64_t length, int access) const {
    const RegionEntry& entry = table()[slot_of_key(key)];
    return key != 0 && entry.key.load(std::memory_order_acquire) == key &&
           (entry.access & static_cast<uint32_t>(access)) == static_cast<uint32_t>(access) &&
           address >= entry.address && length <= entry.length &&
           address - entry.address <= entry.length - length;
  }
  // End of hot path.

  std::atomic<int> users{0};  // regions and queue pairs

 private:
  ProtectionDomain() : ibv_pd{} {}
  RegionEntry* table() const { return reinterpret_cast<RegionEntry*>(mapping_->data()); }

  UniqueFd table_fd_;
  std::shared_ptr<SharedMapping> mapping_;
  std::mutex mutex_;
  std::vector<QueuePair*> queue_pairs_;
  struct Use {
    std::shared_ptr<Segment> segment;
    int regions = 0;
  };
  std::map<uint32_t, Use> segments_;  // by number
};

}  // namespace rdmakit::shm
