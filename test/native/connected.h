// The common part of the native tests of the software providers: ids with their events, the ends of
// connections, and posting to them. Each provider's own fixture.h selects the provider, and connects two
// ends.
#pragma once

#include <arpa/inet.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "provider/provider.h"
#include "stress.h"

namespace fixture {

using namespace rdmakit;

// fixture.h has them.
inline Provider& provider();
inline ibv_context* context();

// The events of one id, in order.
class Events {
 public:
  void push(CmEvent&& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    arrived_.notify_all();
  }
  CmEvent next() {
    std::unique_lock lock(mutex_);
    CHECK(arrived_.wait_for(lock, kHang, [&] { return !events_.empty(); }), "no event comes");
    CmEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  CmEvent expect(CmEvent::Type type) {
    CmEvent event = next();
    if (event.type != type) {
      std::fprintf(stderr, "event %d with status %d, wanted %d\n", static_cast<int>(event.type), event.status,
                   static_cast<int>(type));
      std::abort();
    }
    return event;
  }
  bool empty() {
    const std::lock_guard lock(mutex_);
    return events_.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<CmEvent> events_;
};

// An id with its events.
struct Id {
  std::shared_ptr<ConnectionId> id;
  std::shared_ptr<Events> events = std::make_shared<Events>();

  Id() : Id(provider().create_id()) {}
  explicit Id(std::shared_ptr<ConnectionId> made) : id(std::move(made)) {
    id->set_sink([events = events](CmEvent&& event) { events->push(std::move(event)); });
  }
  Id(Id&&) = default;
  ~Id() {
    if (id != nullptr) id->close();
  }
};

struct Options {
  Progress progress = Progress::manual;
  bool channel = false;
  uint32_t depth = 128;
  uint32_t sge = 4;
  uint32_t inline_data = 512;
  uint8_t reads = 0;
  ibv_cq* cq = nullptr;       // shared, else one of its own
  ibv_pd* pd = nullptr;       // likewise
  ibv_srq* srq = nullptr;     // else a receive queue of its own
  bool hostile_peer = false;  // it may say that it is at this end's memory until it is gone
};

// One end: everything from the protection domain to the queue pair.
struct End {
  Id id;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  bool owns_cq = false;
  ibv_qp* qp = nullptr;
  Options options;

  End(Id made, const Options& wanted) : id(std::move(made)), options(wanted) {
    pd = options.pd != nullptr ? options.pd : provider().alloc_pd(context());
    CHECK(pd != nullptr);
    cq = options.cq;
    if (cq == nullptr) {
      if (options.channel) channel = provider().create_comp_channel(context());
      cq = provider().create_cq(context(), static_cast<int>(4 * options.depth), this, channel,
                                options.progress);
      owns_cq = true;
    }
    CHECK(cq != nullptr);
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.srq = options.srq;
    attributes.cap = {options.depth, options.depth, options.sge, options.sge, options.inline_data};
    qp = id.id->create_qp(pd, &attributes);
    CHECK(qp != nullptr);
  }
  End(const End&) = delete;
  ~End() {
    destroy_qp();
    id.id->close();
    if (owns_cq) CHECK(provider().destroy_cq(cq) == 0);
    if (channel != nullptr) CHECK(provider().destroy_comp_channel(channel) == 0);
    if (options.pd == nullptr) CHECK(provider().dealloc_pd(pd) == 0);
  }
  void destroy_qp() {
    if (qp == nullptr) return;
    const int error = provider().destroy_qp(std::exchange(qp, nullptr));
    CHECK(error == 0 || (options.hostile_peer && error == ETIMEDOUT));
  }

  // The next completion, moving data as the progress model asks for.
  ibv_wc completion() {
    const auto deadline = Clock::now() + kHang;
    ibv_wc wc{};
    for (int tries = 0;; tries++) {
      const int count = ibv_poll_cq(cq, 1, &wc);
      CHECK(count >= 0);
      if (count == 1) return wc;
      CHECK(Clock::now() < deadline);
      if (channel != nullptr && tries > 50) {
        CHECK(ibv_req_notify_cq(cq, 0) == 0);
        if (ibv_poll_cq(cq, 1, &wc) == 1) return wc;
        pollfd waiting{channel->fd, POLLIN, 0};
        ::poll(&waiting, 1, 100);
        ibv_cq* ready = nullptr;
        void* ready_context = nullptr;
        if (provider().data_path_verbs()->get_cq_event(channel, &ready, &ready_context) == 0) {
          CHECK(ready == cq && ready_context == this);
          provider().data_path_verbs()->ack_cq_events(ready, 1);
        }
      } else if (tries % 64 == 63) {
        std::this_thread::yield();
      }
    }
  }
  ibv_wc expect(uint64_t wr_id, ibv_wc_status status = IBV_WC_SUCCESS) {
    const ibv_wc wc = completion();
    if (wc.wr_id != wr_id || wc.status != status) {
      std::fprintf(stderr, "completion %llu status %d vendor %x, wanted %llu status %d\n",
                   static_cast<unsigned long long>(wc.wr_id), wc.status, wc.vendor_err,
                   static_cast<unsigned long long>(wr_id), status);
      std::abort();
    }
    return wc;
  }
};

inline void post_receive(End& end, uint64_t wr_id, ibv_sge sge) {
  ibv_recv_wr request{}, *bad = nullptr;
  request.wr_id = wr_id;
  request.sg_list = &sge;
  request.num_sge = 1;
  CHECK(ibv_post_recv(end.qp, &request, &bad) == 0);
}

struct Send {
  uint64_t wr_id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  int flags = IBV_SEND_SIGNALED;
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;
  uint32_t immediate = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
};
inline int try_post(End& end, const Send& send, std::vector<ibv_sge> sges) {
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = send.wr_id;
  request.opcode = send.opcode;
  request.send_flags = static_cast<unsigned>(send.flags);
  request.imm_data = htonl(send.immediate);
  if (send.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || send.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    request.wr.atomic = {send.remote_address, send.compare_add, send.swap, send.remote_key};
  } else {
    request.wr.rdma.remote_addr = send.remote_address;
    request.wr.rdma.rkey = send.remote_key;
  }
  request.sg_list = sges.data();
  request.num_sge = static_cast<int>(sges.size());
  return ibv_post_send(end.qp, &request, &bad);
}
inline void post(End& end, const Send& send, std::vector<ibv_sge> sges) {
  CHECK(try_post(end, send, sges) == 0);
}

// Polls both ends until each has given its number of completions, so that manual progress on one side
// never waits for the other.
struct Completions {
  std::vector<ibv_wc> client, server;
};
inline Completions pump(End& client, size_t from_client, End& server, size_t from_server) {
  Completions done;
  const auto deadline = Clock::now() + kHang;
  while (done.client.size() < from_client || done.server.size() < from_server) {
    ibv_wc wc;
    if (ibv_poll_cq(client.cq, 1, &wc) == 1) done.client.push_back(wc);
    if (ibv_poll_cq(server.cq, 1, &wc) == 1) done.server.push_back(wc);
    CHECK(Clock::now() < deadline);
  }
  CHECK(done.client.size() == from_client && done.server.size() == from_server);
  return done;
}

// The channel's descriptor becomes readable in time, and an event of it can be taken.
inline bool event_within(End& end, int ms) {
  const DataPathVerbs& verbs = *provider().data_path_verbs();
  const auto deadline = Clock::now() + std::chrono::milliseconds(ms);
  while (Clock::now() < deadline) {
    pollfd waiting{end.channel->fd, POLLIN, 0};
    ::poll(&waiting, 1, 20);
    ibv_cq* ready = nullptr;
    void* ready_context = nullptr;
    if (verbs.get_cq_event(end.channel, &ready, &ready_context) == 0) {
      verbs.ack_cq_events(ready, 1);
      return true;
    }
  }
  return false;
}

// The server's queue, armed for solicited events, sleeps through the others: the test waits this long for an
// event that must not come.
template <typename Memory>
void sleeps_through_unsolicited(End& client, const Memory& source, End& server, const Memory& target,
                                int quiet_ms) {
  CHECK(!event_within(server, 30));
  for (uint64_t i = 0; i < 4; i++) post_receive(server, i, target.sge(8 * i, 8));
  CHECK(ibv_req_notify_cq(server.cq, 1) == 0);
  post(client, {.wr_id = 1}, {source.sge(0, 8)});
  CHECK(!event_within(server, quiet_ms));
  post(client, {.wr_id = 2, .flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED}, {source.sge(0, 8)});
  CHECK(event_within(server, kHangMs));
  server.expect(0);
  server.expect(1);
  CHECK(ibv_req_notify_cq(server.cq, 0) == 0);
  post(client, {.wr_id = 3}, {source.sge(0, 8)});
  CHECK(event_within(server, kHangMs));
  server.expect(2);
  post(client, {.wr_id = 4}, {source.sge(0, 8)});  // not armed
  CHECK(!event_within(server, quiet_ms / 2));
  server.expect(3);
}

// One of several threads that poll the same queue until all of them together have taken `all`.
inline void take_completions(ibv_cq* cq, std::atomic<uint64_t>& taken, uint64_t all) {
  ibv_wc wc[8];
  while (taken < all) {
    const int count = ibv_poll_cq(cq, 8, wc);
    CHECK(count >= 0);
    for (int i = 0; i < count; i++) CHECK(wc[i].status == IBV_WC_SUCCESS);
    taken += static_cast<uint64_t>(count);
    if (count == 0) std::this_thread::yield();
  }
}

}  // namespace fixture
