// The basis of the smoke test of a libibverbs device: objects of the device, queue pairs connected by hand,
// waits with a deadline.
#pragma once

#include <arpa/inet.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "../stress.h"
#include "provider/provider.h"

namespace fixture {

using namespace rdmakit;

inline constexpr uint8_t kPort = 1;
inline constexpr uint32_t kQkey = 0x11223344;
inline constexpr int kAllAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

inline Provider& provider() { return ibverbs_provider(); }

// The device under test, with the entry of its GID table that queue pairs use.
struct Device {
  ibv_context* context;
  ibv_pd* pd;
  uint32_t capabilities;
  GidEntry gid;

  explicit Device(const char* name) : context(provider().open_device(name)) {
    CHECK(context != nullptr);
    pd = provider().alloc_pd(context);
    CHECK(pd != nullptr);
    capabilities = provider().capabilities(context);
  }
  Device(const Device&) = delete;
  ~Device() {
    CHECK(provider().dealloc_pd(pd) == 0);
    CHECK(provider().close_device(context) == 0);
  }
  bool can(uint32_t capability) const { return (capabilities & capability) != 0; }
};

struct Memory {
  std::vector<uint8_t> bytes;
  ibv_mr* mr;

  Memory(Device& device, size_t size, int access = kAllAccess)
      : bytes(size), mr(provider().reg_mr(device.pd, bytes.data(), size, access)) {
    CHECK(mr != nullptr);
  }
  Memory(const Memory&) = delete;
  ~Memory() { CHECK(provider().dereg_mr(mr) == 0); }
  uint64_t address(size_t offset = 0) const { return reinterpret_cast<uint64_t>(bytes.data()) + offset; }
  ibv_sge sge(size_t offset, uint32_t length) const { return {address(offset), length, mr->lkey}; }
};

struct Queue {
  ibv_cq* cq;

  Queue(Device& device, int entries)
      : Queue(provider().create_cq(device.context, entries, nullptr, nullptr, Progress::automatic)) {}
  explicit Queue(ibv_cq* made) : cq(made) { CHECK(cq != nullptr); }
  Queue(const Queue&) = delete;
  ~Queue() { CHECK(provider().destroy_cq(cq) == 0); }

  ibv_wc next() {
    const auto deadline = Clock::now() + fixture::kHang;
    for (;;) {
      ibv_wc wc{};
      const int count = ibv_poll_cq(cq, 1, &wc);
      CHECK(count >= 0);
      if (count == 1) return wc;
      CHECK(Clock::now() < deadline);
      std::this_thread::yield();
    }
  }
  ibv_wc expect(uint64_t wr_id, ibv_wc_status status = IBV_WC_SUCCESS) {
    const ibv_wc wc = next();
    if (wc.wr_id != wr_id || wc.status != status) {
      std::fprintf(stderr, "completion %llu status %d, wanted %llu status %d\n",
                   static_cast<unsigned long long>(wc.wr_id), wc.status,
                   static_cast<unsigned long long>(wr_id), status);
      std::abort();
    }
    return wc;
  }
};

// A queue pair with a completion queue for each direction, outside of a connection id.
struct End {
  Device& device;
  Queue sent, received;
  ibv_qp* qp;

  End(Device& of, ibv_qp_type type, ibv_srq* srq = nullptr, int entries = 64)
      : device(of), sent(of, entries), received(of, entries) {
    ibv_qp_init_attr attributes{};
    attributes.qp_type = type;
    attributes.send_cq = sent.cq;
    attributes.recv_cq = received.cq;
    attributes.srq = srq;
    attributes.cap = {64, srq == nullptr ? 64u : 0u, 4, srq == nullptr ? 4u : 0u, 64};
    qp = provider().create_qp(device.pd, &attributes);
    CHECK(qp != nullptr);
  }
  End(const End&) = delete;
  ~End() { CHECK(provider().destroy_qp(qp) == 0); }

  void initialise() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = kPort;
    attributes.qkey = kQkey;
    attributes.qp_access_flags = kAllAccess & ~IBV_ACCESS_LOCAL_WRITE;
    if (qp->qp_type == IBV_QPT_UC) attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    const int own = qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    CHECK(provider().modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | own) == 0);
  }
  void ready_to_receive(uint32_t peer) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = peer;
    attributes.max_dest_rd_atomic = 4;
    attributes.min_rnr_timer = 1;
    attributes.ah_attr = address();
    int mask = IBV_QP_STATE;
    if (qp->qp_type != IBV_QPT_UD) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (qp->qp_type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK(provider().modify_qp(qp, &attributes, mask) == 0);
  }
  void ready_to_send() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 14;
    attributes.retry_cnt = 7;
    attributes.rnr_retry = 7;
    attributes.max_rd_atomic = 4;
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (qp->qp_type == IBV_QPT_RC) {
      mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    CHECK(provider().modify_qp(qp, &attributes, mask) == 0);
  }
  // Of this device: the peer is on it too.
  ibv_ah_attr address() const {
    ibv_ah_attr attributes{};
    attributes.is_global = 1;
    attributes.port_num = kPort;
    attributes.grh.dgid = device.gid.gid;
    attributes.grh.sgid_index = static_cast<uint8_t>(device.gid.index);
    attributes.grh.hop_limit = 64;
    return attributes;
  }

  int post(ibv_send_wr request, ibv_sge sge) {
    ibv_send_wr* bad = nullptr;
    request.sg_list = &sge;
    request.num_sge = sge.length > 0 ? 1 : 0;
    request.send_flags |= IBV_SEND_SIGNALED;
    return ibv_post_send(qp, &request, &bad);
  }
  void post_receive(uint64_t wr_id, ibv_sge sge) {
    ibv_recv_wr request{}, *bad = nullptr;
    request.wr_id = wr_id;
    request.sg_list = &sge;
    request.num_sge = 1;
    CHECK(ibv_post_recv(qp, &request, &bad) == 0);
  }
};

// RESET → INIT → RTR → RTS on both.
inline void connect(End& a, End& b) {
  for (End* end : {&a, &b}) end->initialise();
  a.ready_to_receive(b.qp->qp_num);
  b.ready_to_receive(a.qp->qp_num);
  for (End* end : {&a, &b}) end->ready_to_send();
}

inline ibv_send_wr request(uint64_t wr_id, ibv_wr_opcode opcode) {
  ibv_send_wr made{};
  made.wr_id = wr_id;
  made.opcode = opcode;
  return made;
}
inline ibv_send_wr one_sided(uint64_t wr_id, ibv_wr_opcode opcode, uint64_t address, uint32_t rkey) {
  ibv_send_wr made = request(wr_id, opcode);
  made.wr.rdma.remote_addr = address;
  made.wr.rdma.rkey = rkey;
  return made;
}

// The asynchronous events of a device, as a watcher hears them.
class Events {
 public:
  explicit Events(Device& device) : device_(device) {
    token_ = provider().watch_async_events(device.context, [this](const AsyncEvent& event) {
      const std::lock_guard lock(mutex_);
      heard_.push_back(event);
      arrived_.notify_all();
    });
    CHECK(token_ != 0);
  }
  Events(const Events&) = delete;
  ~Events() { provider().unwatch_async_events(device_.context, token_); }

  void expect(ibv_event_type type, const void* element) {
    std::unique_lock lock(mutex_);
    const auto heard = [&] {
      for (const AsyncEvent& event : heard_) {
        if (event.type == type && event.element == reinterpret_cast<uint64_t>(element)) return true;
      }
      return false;
    };
    CHECK(arrived_.wait_for(lock, fixture::kHang, heard));
  }

 private:
  Device& device_;
  uint64_t token_ = 0;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<AsyncEvent> heard_;
};

}  // namespace fixture
