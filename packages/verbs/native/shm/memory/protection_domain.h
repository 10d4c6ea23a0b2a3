// ibv_pd: a table of regions in shared memory, and the queue pairs that may reach them. The peers of
// these queue pairs map the table read-only and see no region of another domain.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "shm/mapping/layout.h"
#include "shm/mapping/segment.h"
#include "shm/mapping/sleep_lock.h"

namespace rdmakit::shm {

class Hazard;
class QueuePair;

// A memory window of type 2.
struct MemoryWindow : ibv_mw {
  uint32_t made_as = 0;  // its first key; rkey is the consumer's
  // While it is bound; under the domain's windows_lock_.
  uint32_t region = 0;  // key
  uint32_t queue_pair = 0;
  // The peer that it was bound for last, under the same lock. One that was given up may have read half of the
  // entry, and must not go on with the other half of the next.
  std::shared_ptr<Hazard> user;
};

// How the end of a region treats a peer's copy. `left` is for memory of a segment that is unmapped next: the
// peer has a mapping of its own, and no other memory shares those pages.
enum class PeerCopies { awaited, left };

class ProtectionDomain : public ibv_pd {
 public:
  // Null and errno on failure.
  static std::unique_ptr<ProtectionDomain> create(ibv_context* context);

  // The key of a new region (lkey and rkey are the same), or 0 and errno. Peers are notified of its segment.
  // EPERM: it belongs to no segment, and a peer may use it that cannot reach such memory.
  uint32_t add(uint64_t address, uint64_t length, int access);
  ~ProtectionDomain();

  // The key is dead when this returns, and no thread of this process is at the region. 0, or ETIMEDOUT when a
  // stopped peer may still be copying, whose connection ends then; or EBUSY, and nothing has changed, while
  // windows are bound to the region.
  int remove(uint32_t key, PeerCopies copies);

  // A window comes, null and errno on failure, and goes; as with remove().
  MemoryWindow* add_window();
  int remove_window(MemoryWindow* window);
  // Hot path: binds the window that has had the key `window` under `key` for the queue pair of this number,
  // whose peer is `user`, and ends the window of this key of that queue pair. Allocates nothing. False when
  // that cannot be: not again while a user of before, which was given up, may be at it. The queue pair's peer
  // may be at the memory still when invalidate() returns.
  bool bind(uint32_t window, uint32_t key, uint32_t region, uint64_t address, uint64_t length,
            uint32_t access, uint32_t queue_pair, const std::shared_ptr<Hazard>& user);
  bool invalidate(uint32_t key, uint32_t queue_pair);

  // A queue pair of this domain comes and goes, and its windows with it.
  void join(QueuePair* queue_pair);
  void leave(QueuePair* queue_pair);
  // The peer of this queue pair may not reach memory that is of no segment. False: some was registered for
  // peers already.
  bool out_of_reach(QueuePair* queue_pair);
  // Some is registered for peers.
  bool gives_unshared();
  // The queue pair is connected: announces all segments to its peer.
  void announce_all(QueuePair& queue_pair);

  int table_fd() const { return table_fd_.get(); }

  // Hot path: a scatter/gather element of this process.
  bool allows(uint32_t key, uint64_t address, uint64_t length, uint32_t access) const {
    access |= kRegion;
    const RegionEntry& entry = table()[slot_of_key(key)];
    return key != 0 && entry.key.load(std::memory_order_acquire) == key &&
           (entry.access & access) == access && address >= entry.address && length <= entry.length &&
           address - entry.address <= entry.length - length;
  }
  // End of hot path.

  // `key` is of a region, or of a window that is bound.
  bool is_live(uint32_t key) const {
    return table()[slot_of_key(key)].key.load(std::memory_order_seq_cst) == key;
  }

  std::atomic<int> users{0};  // regions and queue pairs

 private:
  ProtectionDomain() : ibv_pd{} {}
  RegionEntry* table() const { return reinterpret_cast<RegionEntry*>(mapping_->data()); }

  UniqueFd table_fd_;
  std::shared_ptr<SharedMapping> mapping_;
  std::mutex mutex_;
  std::vector<QueuePair*> queue_pairs_;
  std::vector<QueuePair*> out_of_reach_;  // those whose peers need segments
  uint32_t unshared_ = 0;                 // regions for peers that are of none
  std::vector<std::shared_ptr<Hazard>>
      departed_;                   // of queue pairs that are gone, whose peers are not known to be
  std::vector<uint32_t> resting_;  // dead keys that some hazard named still
  std::vector<std::shared_ptr<Hazard>> hazards();
  bool wait_for_peers(uint32_t key);
  void rest(uint32_t key);
  void free_rested_keys();
  struct Use {
    std::shared_ptr<Segment> segment;
    int regions = 0;
    uint32_t number = 0;  // below kMaxSegments, and low: peers have an array
  };
  std::map<uint32_t, Use> segments_;  // by generation
  std::vector<uint32_t> free_numbers_;
  uint32_t next_number_ = 0;
  uint32_t use(const std::shared_ptr<Segment>& segment);
  void unbind(MemoryWindow& window);

  // This process's private state of a slot of the table.
  struct Own {
    MemoryWindow* window;  // whose slot it is
    uint32_t windows;      // bound to the region in it
  };
  struct Free {
    void operator()(Own* array) const { std::free(array); }
  };
  std::vector<MemoryWindow*> windows_;  // under mutex_
  SleepLock windows_lock_;              // binding, and what keeps regions from going
  std::unique_ptr<Own[], Free> own_;    // made with the first window; mostly untouched
};

}  // namespace rdmakit::shm
