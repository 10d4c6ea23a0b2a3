// A queue pair's view of the other side: its area, its region table, and the segments it announced.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "shm/mapping/layout.h"
#include "shm/mapping/shared_mapping.h"
#include "shm/setup/frame.h"

namespace rdmakit::shm {

// Memory of the peer that may be used while the hazard is held.
struct RemotePiece {
  uint8_t* mapped = nullptr;  // null: only through process_vm_readv and process_vm_writev
  uint64_t address = 0;       // in the peer
  uint64_t length = 0;
};

class Peer {
 public:
  // From a greeting and its descriptors. Null and errno: EPROTO for what does not fit together.
  static std::unique_ptr<Peer> open(const GreetingFrame& greeting, Frame& frame);

  enum class Reach { ok, refused, not_mapped };

  AreaHeader& header() const { return *header_; }
  Slot& slot(uint32_t position) const { return slots_[position & mask_]; }
  const ReceiveEntry& entry(uint32_t position) const {
    return *reinterpret_cast<const ReceiveEntry*>(entries_ + (position & mask_) * entry_stride_);
  }
  bool stamped() const { return shape_.stamped; }
  std::atomic<uint64_t>& stamp(uint32_t position) const { return stamps_[position & mask_]; }
  uint32_t sges() const { return shape_.sges; }
  // 0: unknown here, or of another user. What copies by it has the rights of this process, and the number may
  // be a privileged program's by now: the peer has executed one, or is over and has left its socket to a
  // child.
  pid_t pid() const { return pid_; }
  uint32_t queue_pair() const { return queue_pair_; }
  int event_fd() const { return event_fd_.get(); }

  // The region of `key`, when it allows `access` and holds all of [address, address + length).
  Reach reach(uint32_t key, uint64_t address, uint64_t length, uint32_t access, RemotePiece& piece) const {
    return find(key, address, length, access | kRegion, piece);
  }

  // `key` is that of a window that was bound for this connection.
  bool has_window(uint32_t key) const;

  // 0 or an errno value.
  int add_segment(uint32_t number, uint32_t generation, std::shared_ptr<SharedMapping> mapping);
  void remove_segment(uint32_t number, uint32_t generation);

 private:
  Peer() = default;
  Reach find(uint32_t key, uint64_t address, uint64_t length, uint32_t wanted, RemotePiece& piece) const;

  AreaHeader* header_ = nullptr;
  Slot* slots_ = nullptr;
  uint8_t* entries_ = nullptr;
  size_t entry_stride_ = 0;
  std::atomic<uint64_t>* stamps_ = nullptr;
  uint32_t mask_ = 0;
  const RegionEntry* table_ = nullptr;
  struct Mapped {
    uint8_t* data = nullptr;
    uint64_t size = 0;
    uint32_t generation = 0;
    std::shared_ptr<SharedMapping> mapping;
  };
  std::vector<Mapped> segments_;
  size_t mapped_ = 0;  // of them
  uint64_t mapped_bytes_ = 0;
  bool same_process_ = false;

  AreaShape shape_;
  std::shared_ptr<SharedMapping> area_;
  std::shared_ptr<SharedMapping> table_mapping_;
  UniqueFd event_fd_;
  pid_t pid_ = 0;
  uint32_t queue_pair_ = 0;
};

}  // namespace rdmakit::shm
