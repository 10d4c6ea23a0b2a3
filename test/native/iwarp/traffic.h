// Requests and waiting that the iwarp tests have in common.
#pragma once

#include <functional>

#include "fixture.h"

namespace fixture {

inline Send write_to(const Memory& memory, size_t offset, uint64_t wr_id, int flags = IBV_SEND_SIGNALED) {
  return {.wr_id = wr_id,
          .opcode = IBV_WR_RDMA_WRITE,
          .flags = flags,
          .remote_address = memory.address(offset),
          .remote_key = memory.mr->rkey};
}
inline Send read_from(const Memory& memory, size_t offset, uint64_t wr_id, int flags = IBV_SEND_SIGNALED) {
  Send send = write_to(memory, offset, wr_id, flags);
  send.opcode = IBV_WR_RDMA_READ;
  return send;
}

// Both in one doorbell, so that the peer's answer to the first finds the second outstanding.
inline void post_two(End& end, const Send& first, const Send& second, ibv_sge sge) {
  ibv_send_wr requests[2] = {}, *bad = nullptr;
  for (int i = 0; i < 2; i++) {
    const Send& send = i == 0 ? first : second;
    requests[i].wr_id = send.wr_id;
    requests[i].sg_list = &sge;
    requests[i].num_sge = 1;
    requests[i].opcode = send.opcode;
    requests[i].send_flags = static_cast<unsigned>(send.flags);
    requests[i].wr.rdma.remote_addr = send.remote_address;
    requests[i].wr.rdma.rkey = send.remote_key;
  }
  requests[0].next = &requests[1];
  CHECK(ibv_post_send(end.qp, requests, &bad) == 0);
}

// The device's asynchronous events, in order.
class AsyncLog {
 public:
  AsyncLog() {
    token_ = provider().watch_async_events(context(), [this](const AsyncEvent& event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(event);
      arrived_.notify_all();
    });
    CHECK(token_ != 0);
  }
  AsyncLog(const AsyncLog&) = delete;
  ~AsyncLog() { provider().unwatch_async_events(context(), token_); }

  // The next of this type about this object; others before it are passed over.
  void expect(ibv_event_type type, const void* object) {
    std::unique_lock lock(mutex_);
    const auto deadline = Clock::now() + kHang;
    while (true) {
      while (!events_.empty()) {
        const AsyncEvent event = events_.front();
        events_.pop_front();
        if (event.type == type && event.element == reinterpret_cast<uint64_t>(object)) return;
      }
      CHECK(arrived_.wait_until(lock, deadline) == std::cv_status::no_timeout);
    }
  }
  size_t count(ibv_event_type type) {
    const std::lock_guard lock(mutex_);
    size_t count = 0;
    for (const AsyncEvent& event : events_) count += event.type == type;
    return count;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<AsyncEvent> events_;
  uint64_t token_ = 0;
};

}  // namespace fixture
