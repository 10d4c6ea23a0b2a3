// ibv_srq: receives that any of several queue pairs may use. The peers of these queue pairs take them by
// themselves (shared_receive_layout.h); this is the owner's side.
//
// Locks: members_mutex_, then lock_. A queue pair calls with its completion queue's members_lock held.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "shm/mapping/shared_mapping.h"
#include "shm/mapping/shared_receive_layout.h"
#include "shm/mapping/sleep_lock.h"
#include "shm/progress_thread.h"

namespace rdmakit::shm {

class QueuePair;

// A receive as its owner relies on it; peers have a copy.
struct ReceiveWork {
  uint64_t wr_id;
  uint64_t length;
  uint32_t sge_count;

  // Hot path. `own` and this are ours to rely on; the entry is a copy for the peer, who could write to it.
  void post(const ibv_recv_wr& request, ibv_sge* own, ReceiveEntry& entry) {
    wr_id = request.wr_id;
    length = 0;
    entry.sge_count = sge_count = static_cast<uint32_t>(request.num_sge);
    for (uint32_t i = 0; i < sge_count; i++) {
      const ibv_sge& sge = own[i] = request.sg_list[i];
      entry.sges[i] = {sge.addr, sge.length, sge.lkey};
      length += sge.length;
    }
  }
};

class SharedReceiveQueue final : public ibv_srq {
 public:
  // Null and errno. The granted values are stored in `attributes`.
  static std::unique_ptr<SharedReceiveQueue> create(ibv_pd* pd, ibv_srq_init_attr* attributes);
  ~SharedReceiveQueue();

  int modify(const ibv_srq_attr& attributes, int mask);
  void query(ibv_srq_attr& attributes) const;
  int post(ibv_recv_wr* request, ibv_recv_wr** bad);

  // A queue pair that uses this queue comes and goes.
  void join(QueuePair* queue_pair);
  void leave(QueuePair* queue_pair);
  bool in_use();

  // The peer says that a message came into `entry`. Returns the receive, which no other message gets, or null
  // if there is none. It may be posted again after release().
  const ReceiveWork* claim(uint32_t entry);
  const ibv_sge* sges(uint32_t entry) const { return &sges_[size_t{entry} * shape_.sges]; }
  void release(uint32_t entry);
  // It holds no message after all: as if the peer of this queue pair had taken it and not used it.
  void unclaim(uint32_t entry, uint32_t queue_pair);

  // The peer of this queue pair touches nothing any more: takes back one receive that it had taken and not
  // used, at `from` or after it. False when there is none.
  bool take_back(uint32_t queue_pair, uint32_t& from, uint64_t& wr_id);

  // A peer says that few receives are left.
  void look_at_limit();

  // For the greeting.
  SharedShape shape() const { return shape_; }
  int board_fd() const { return board_fd_.get(); }
  int claims_fd() const { return claims_fd_.get(); }

 private:
  SharedReceiveQueue(ibv_pd* pd, void* context, SharedShape shape);
  void publish(uint32_t entry);
  void wake_starved();
  void tell_limit();

  const SharedShape shape_;
  UniqueFd board_fd_;
  UniqueFd claims_fd_;
  std::shared_ptr<SharedMapping> board_mapping_;
  std::shared_ptr<SharedMapping> claims_mapping_;
  BoardHeader* board_ = nullptr;
  std::atomic<uint64_t>* tickets_ = nullptr;
  ClaimsHeader* claims_ = nullptr;
  std::atomic<uint64_t>* claimed_ = nullptr;

  SleepLock lock_;  // posting, and the free entries
  std::unique_ptr<ReceiveWork[]> works_;
  std::unique_ptr<ibv_sge[]> sges_;
  std::unique_ptr<std::atomic<bool>[]> outstanding_;  // posted, and its message was not claimed
  std::unique_ptr<uint32_t[]> free_;
  uint32_t free_count_ = 0;
  uint32_t next_ticket_ = 0;

  std::mutex members_mutex_;
  std::vector<QueuePair*> members_;
  size_t first_woken_ = 0;
  ProgressThread::Errand limit_errand_{[this] { tell_limit(); }};
};

}  // namespace rdmakit::shm
