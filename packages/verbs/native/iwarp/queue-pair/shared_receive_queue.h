// ibv_srq: receives that many queue pairs take from.
//
// A message takes a receive when it begins to arrive and has it until its end, so receives complete in the
// order of their messages' ends and come free in any order. A receive is free again when it completes.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "iwarp/device_events.h"
#include "iwarp/queue-pair/receive_work.h"

namespace rdmakit::iwarp {

class SharedReceiveQueue : public ibv_srq {
 public:
  // Null and errno when the attributes ask for too much. Grants go back into `attributes->attr`.
  static std::unique_ptr<SharedReceiveQueue> create(ibv_pd* pd, ibv_srq_init_attr* attributes);
  ~SharedReceiveQueue();

  int post(ibv_recv_wr* request, ibv_recv_wr** bad);
  // The oldest receive, which is the caller's until release(); null when there is none.
  const ReceiveWork* take();
  void release(const ReceiveWork* work);
  const ibv_sge* sges(const ReceiveWork* work) const { return &sges_[index_of(work) * max_sge_]; }

  int modify(const ibv_srq_attr& attributes, int mask);
  void query(ibv_srq_attr& attributes);

  bool in_use() const { return users != 0; }
  std::atomic<int> users{0};  // queue pairs

 private:
  SharedReceiveQueue(ibv_pd* pd, const ibv_srq_init_attr& attributes);
  size_t index_of(const ReceiveWork* work) const { return static_cast<size_t>(work - works_.get()); }
  void tell_limit();

  const uint32_t capacity_;
  const uint32_t max_sge_;
  std::unique_ptr<ReceiveWork[]> works_;
  std::unique_ptr<ibv_sge[]> sges_;
  std::mutex mutex_;                    // a leaf but for the list of events
  std::unique_ptr<uint32_t[]> posted_;  // a ring of indices into works_
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
  std::unique_ptr<uint32_t[]> free_;  // a stack of indices
  uint32_t free_count_ = 0;
  uint32_t limit_ = 0;  // armed when not 0
  DeviceEvent limit_event_{static_cast<ibv_srq*>(this)};
};

}  // namespace rdmakit::iwarp
