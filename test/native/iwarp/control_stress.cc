// The control path over iwarp: states, resizing, extended queues, registering anew, and what the device says.
#include <time.h>

#include <algorithm>

#include "traffic.h"

namespace iwarp_control_stress {

using namespace fixture;

void device() {
  ibv_device_attr attributes;
  CHECK(provider().query_device(context(), &attributes) == 0);
  CHECK(attributes.max_srq > 0 && attributes.max_srq_wr > 0 && attributes.max_srq_sge > 0);
  CHECK(attributes.max_mw > 0 && (attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B));
  const uint32_t all = kCapabilityWriteWithImmediate | kCapabilitySendWithImmediate | kCapabilityAtomics |
                       kCapabilitySharedReceiveQueue | kCapabilityMemoryWindow | kCapabilityTimestamps |
                       kCapabilityResize | kCapabilityReregister;
  CHECK(provider().capabilities(context()) == all);
  std::vector<GidEntry> gids;
  CHECK(provider().query_gids(context(), 1, gids) == 0 && gids.size() == 1);
  CHECK(std::string(gids[0].type) == "iWARP" && gids[0].index == 0);
  CHECK(provider().query_gids(context(), 2, gids) == EINVAL);
}

// A queue pair outside of a connection id: RESET, INIT, ERROR and back.
void states() {
  ibv_pd* pd = provider().alloc_pd(context());
  ibv_cq* cq = provider().create_cq(context(), 16, nullptr, nullptr, Progress::manual);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.cap = {8, 8, 1, 1, 0};
  for (const ibv_qp_type type : {IBV_QPT_UD, IBV_QPT_UC, IBV_QPT_RAW_PACKET}) {
    init.qp_type = type;
    errno = 0;
    CHECK(provider().create_qp(pd, &init) == nullptr && errno == EOPNOTSUPP);
  }
  init.qp_type = IBV_QPT_RC;
  ibv_qp* qp = provider().create_qp(pd, &init);
  CHECK(qp != nullptr);
  const auto move = [&](ibv_qp_state state, int mask = 0, int access = 0) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    attributes.port_num = 1;
    attributes.qp_access_flags = static_cast<unsigned>(access);
    return provider().modify_qp(qp, &attributes, IBV_QP_STATE | mask);
  };
  const auto now = [&] {
    ibv_qp_attr attributes{};
    CHECK(provider().query_qp(qp, &attributes, IBV_QP_STATE, nullptr) == 0);
    CHECK(attributes.qp_state == qp->state);
    return attributes;
  };
  Memory memory(pd, 64);
  ibv_sge sge = memory.sge(0, 8);
  ibv_recv_wr receive{}, *bad_receive = nullptr;
  receive.sg_list = &sge;
  receive.num_sge = 1;
  ibv_send_wr send{}, *bad_send = nullptr;
  send.opcode = IBV_WR_SEND;
  for (int round = 0; round < 3; round++) {
    CHECK(now().qp_state == IBV_QPS_RESET);
    CHECK(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL);
    CHECK(move(IBV_QPS_RTR) == EOPNOTSUPP && move(IBV_QPS_RTS) == EOPNOTSUPP);
    CHECK(move(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, IBV_ACCESS_REMOTE_READ) ==
          0);
    CHECK(now().qp_state == IBV_QPS_INIT && now().qp_access_flags == IBV_ACCESS_REMOTE_READ);
    CHECK(move(IBV_QPS_INIT, IBV_QP_ACCESS_FLAGS, IBV_ACCESS_MW_BIND) == EINVAL);
    CHECK(move(IBV_QPS_INIT, IBV_QP_DEST_QPN) == EOPNOTSUPP);
    CHECK(move(IBV_QPS_RTR) == EOPNOTSUPP);
    CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL);
    for (uint64_t i = 0; i < 8; i++) {
      receive.wr_id = i;
      CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0);
    }
    CHECK(ibv_post_recv(qp, &receive, &bad_receive) == ENOMEM);
    if (round == 1) {  // straight back: what was posted is forgotten
      CHECK(move(IBV_QPS_RESET) == 0);
      continue;
    }
    CHECK(move(IBV_QPS_ERR) == 0);
    CHECK(now().qp_state == IBV_QPS_ERR && move(IBV_QPS_INIT) == EINVAL);
    ibv_wc wc[4];
    CHECK(ibv_poll_cq(cq, 4, wc) == 4);
    for (uint64_t i = 0; i < 4; i++) CHECK(wc[i].wr_id == i && wc[i].status == IBV_WC_WR_FLUSH_ERR);
    CHECK(move(IBV_QPS_RESET) == 0);
    CHECK(ibv_poll_cq(cq, 4, wc) == 0);  // the rest went with the state
  }
  CHECK(provider().destroy_qp(qp) == 0);
  CHECK(provider().dereg_mr(std::exchange(memory.mr, nullptr)) == 0);
  CHECK(provider().destroy_cq(cq) == 0);
  CHECK(provider().dealloc_pd(pd) == 0);

  // One that was connected has had its stream.
  Listener listener;
  Pair pair(listener, {}, {});
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  CHECK(provider().modify_qp(pair.client->qp, &attributes, IBV_QP_STATE) == EOPNOTSUPP);
}

// A receive that is posted in the error state, just before RESET and INIT, flushes none that come later.
void posted_before_reset(int rounds) {
  ibv_pd* pd = provider().alloc_pd(context());
  ibv_cq* cq = provider().create_cq(context(), 16, nullptr, nullptr, Progress::manual);
  ibv_qp_init_attr init{};
  init.qp_type = IBV_QPT_RC;
  init.send_cq = init.recv_cq = cq;
  init.cap = {8, 8, 1, 1, 0};
  ibv_qp* qp = provider().create_qp(pd, &init);
  const auto move = [&](ibv_qp_state state) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    CHECK(provider().modify_qp(qp, &attributes, IBV_QP_STATE) == 0);
  };
  const auto post = [&](uint64_t wr_id) {
    ibv_recv_wr receive{}, *bad = nullptr;
    receive.wr_id = wr_id;
    return ibv_post_recv(qp, &receive, &bad);
  };
  std::atomic<int> begun{0}, ended{0};
  std::thread other([&] {
    for (int round = 1; round <= rounds; round++) {
      for (int spins = 0; begun < round; spins++) {
        if (spins > 10'000) std::this_thread::yield();
      }
      const int error = post(1);
      CHECK(error == 0 || error == EINVAL);
      ended = round;
    }
  });
  for (int round = 1; round <= rounds; round++) {
    move(IBV_QPS_INIT);
    move(IBV_QPS_ERR);
    begun = round;
    for (int pause = round % 64; pause > 0; pause--) std::atomic_signal_fence(std::memory_order_seq_cst);
    move(IBV_QPS_RESET);
    move(IBV_QPS_INIT);
    CHECK(post(2) == 0);
    while (ended < round) std::this_thread::yield();
    ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) == 0, "round %d: %d of %d", round, wc.status, static_cast<int>(wc.wr_id));
    move(IBV_QPS_RESET);
  }
  other.join();
  CHECK(provider().destroy_qp(qp) == 0);
  CHECK(provider().destroy_cq(cq) == 0);
  CHECK(provider().dealloc_pd(pd) == 0);
}

// IBV_QP_ACCESS_FLAGS hold for every region.
void access_flags() {
  for (const bool read : {true, false}) {
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
    ibv_qp_attr attributes{};
    attributes.qp_access_flags = read ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
    CHECK(provider().modify_qp(pair.server->qp, &attributes, IBV_QP_ACCESS_FLAGS) == 0);
    if (read) {
      post(*pair.client, write_to(far, 0, 1), {near.sge(0, 8)});
      CHECK(pump(*pair.client, 1, *pair.server, 0).client[0].status == IBV_WC_SUCCESS);
      post(*pair.client, read_from(far, 0, 2), {near.sge(0, 8)});
    } else {
      post_two(*pair.client, write_to(far, 0, 1, 0), read_from(far, 0, 2), near.sge(0, 8));
    }
    const Completions done = pump(*pair.client, 1, *pair.server, 0);
    CHECK(done.client[0].wr_id == 2 && done.client[0].status == IBV_WC_REM_ACCESS_ERR);
  }
}

void resize() {
  Listener listener;
  ibv_cq* cq = provider().create_cq(context(), 8, nullptr, nullptr, Progress::manual);
  {
    Pair pair(listener, {.depth = 64, .cq = cq}, {.progress = Progress::automatic});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
    uint64_t posted = 0, polled = 0;
    const auto write = [&](int count) {
      for (int i = 0; i < count; i++) post(*pair.client, write_to(far, 0, posted++), {near.sge(0, 8)});
    };
    const auto poll = [&](int count) {
      for (int i = 0; i < count; i++) pair.client->expect(polled++);
    };
    write(5);
    poll(3);
    write(5);
    CHECK(provider().resize_cq(cq, 6) == EINVAL && cq->cqe == 8);  // 7 are in it
    CHECK(provider().resize_cq(cq, 40) == 0 && cq->cqe >= 40);
    write(30);
    poll(20);
    CHECK(provider().resize_cq(cq, 17) == 0 && cq->cqe >= 17);
    poll(17);
    CHECK(provider().resize_cq(cq, 1) == 0 && cq->cqe >= 1);
    write(1);
    poll(1);
    CHECK(provider().resize_cq(cq, 0) == EINVAL);
    CHECK(provider().resize_cq(cq, 1 << 30) == EINVAL);
    // While others post and poll.
    CHECK(provider().resize_cq(cq, 64) == 0);
    std::atomic<bool> stop{false};
    std::thread resizer([&] {
      for (int i = 0; !stop; i++) CHECK(provider().resize_cq(cq, i % 2 ? 64 : 300) == 0);
    });
    for (int i = 0; i < 3000; i++) {
      write(3);
      poll(3);
    }
    stop = true;
    resizer.join();
  }
  CHECK(provider().destroy_cq(cq) == 0);
}

uint64_t now_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// One after another and field by field; stamped when they were added; readable like any other as well.
void extended(Progress progress) {
  ibv_cq_init_attr_ex wanted{};
  wanted.cqe = 64;
  wanted.cq_context = &wanted;
  wanted.wc_flags = uint64_t{IBV_WC_STANDARD_FLAGS} | uint64_t{IBV_WC_EX_WITH_COMPLETION_TIMESTAMP} |
                    uint64_t{IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};
  ibv_cq_ex* extended = provider().create_cq_ex(context(), &wanted, progress);
  CHECK(extended != nullptr && extended->cq_context == &wanted && extended->cqe >= 64);
  ibv_cq* cq = ibv_cq_ex_to_cq(extended);
  CHECK(cq->context == context() && cq->cqe == extended->cqe);
  {
    Listener listener;
    Pair pair(listener, {.depth = 16}, {.progress = progress, .depth = 16, .cq = cq});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
    ibv_poll_cq_attr none{};
    CHECK(ibv_start_poll(extended, &none) == ENOENT);
    for (uint64_t i = 0; i < 4; i++) post_receive(*pair.server, 10 + i, far.sge(8 * i, 8));
    const uint64_t before = now_ns(CLOCK_MONOTONIC), wall_before = now_ns(CLOCK_REALTIME);
    for (uint64_t i = 0; i < 3; i++) {
      post(*pair.client,
           {.wr_id = i, .opcode = IBV_WR_SEND_WITH_IMM, .immediate = static_cast<uint32_t>(100 + i)},
           {near.sge(0, i + 1)});
      pair.client->expect(i);
    }
    uint64_t last = before;
    uint64_t seen = 0;
    const auto deadline = Clock::now() + kHang;
    while (seen < 3) {
      CHECK(Clock::now() < deadline);
      int error = ibv_start_poll(extended, &none);
      if (error == ENOENT) continue;
      while (error == 0) {
        CHECK(extended->wr_id == 10 + seen && extended->status == IBV_WC_SUCCESS);
        CHECK(ibv_wc_read_opcode(extended) == IBV_WC_RECV && ibv_wc_read_byte_len(extended) == seen + 1);
        CHECK(ibv_wc_read_wc_flags(extended) == IBV_WC_WITH_IMM);
        CHECK(ntohl(ibv_wc_read_imm_data(extended)) == 100 + seen);
        CHECK(ibv_wc_read_qp_num(extended) == pair.server->qp->qp_num);
        CHECK(ibv_wc_read_vendor_err(extended) == 0 && ibv_wc_read_slid(extended) == 0);
        const uint64_t stamp = ibv_wc_read_completion_ts(extended);
        CHECK(stamp >= last && stamp <= now_ns(CLOCK_MONOTONIC));
        last = stamp;
        const uint64_t wall = ibv_wc_read_completion_wallclock_ns(extended);
        CHECK(wall >= wall_before && wall <= now_ns(CLOCK_REALTIME));
        seen++;
        error = ibv_next_poll(extended);
      }
      CHECK(error == ENOENT);
      ibv_end_poll(extended);
    }
    // The plain way, and with a size of its own.
    CHECK(provider().resize_cq(cq, 128) == 0 && extended->cqe >= 128);
    post(*pair.client, {.wr_id = 7}, {near.sge(0, 1)});
    pair.client->expect(7);
    CHECK(pair.server->expect(13).byte_len == 1);
    CHECK(provider().destroy_cq(cq) == EBUSY);
  }
  CHECK(provider().destroy_cq(cq) == 0);

  wanted.wc_flags = IBV_WC_EX_WITH_CVLAN;
  errno = 0;
  CHECK(provider().create_cq_ex(context(), &wanted, progress) == nullptr && errno == EOPNOTSUPP);
  wanted.wc_flags = 0;
  wanted.cqe = 0;
  CHECK(provider().create_cq_ex(context(), &wanted, progress) == nullptr && errno == EINVAL);
  wanted.cqe = 1;
  extended = provider().create_cq_ex(context(), &wanted, progress);
  CHECK(extended != nullptr && extended->read_completion_ts == nullptr);
  CHECK(provider().destroy_cq(ibv_cq_ex_to_cq(extended)) == 0);
}

// Two threads read one extended queue; each completion is read once.
void extended_by_many() {
  const uint64_t kEach = effort(2000);
  ibv_cq_init_attr_ex wanted{};
  wanted.cqe = 256;
  wanted.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
  ibv_cq_ex* extended = provider().create_cq_ex(context(), &wanted, Progress::manual);
  {
    Listener listener;
    Pair pair(listener, {.depth = 64, .cq = ibv_cq_ex_to_cq(extended)}, {.progress = Progress::automatic});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
    std::atomic<uint64_t> read{0}, sum{0};
    std::vector<std::thread> readers;
    for (int t = 0; t < 2; t++) {
      readers.emplace_back([&] {
        while (read < kEach) {
          ibv_poll_cq_attr none{};
          int error = ibv_start_poll(extended, &none);
          if (error != 0) {
            std::this_thread::yield();
            continue;
          }
          do {
            CHECK(extended->status == IBV_WC_SUCCESS);
            sum += extended->wr_id;
            read++;
          } while (ibv_next_poll(extended) == 0);
          ibv_end_poll(extended);
        }
      });
    }
    for (uint64_t i = 0; i < kEach; i++) {
      while (try_post(*pair.client, write_to(far, 0, i), {near.sge(0, 8)}) == ENOMEM)
        std::this_thread::yield();
    }
    for (std::thread& reader : readers) reader.join();
    CHECK(sum == kEach * (kEach - 1) / 2);
  }
  CHECK(provider().destroy_cq(ibv_cq_ex_to_cq(extended)) == 0);
}

// Registered anew: other memory, other rights, another domain; under a new key.
void reregister() {
  Listener listener;
  Pair pair(listener, {}, {});
  Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
  std::vector<uint8_t> elsewhere(128);
  const uint32_t before = far.mr->rkey;
  CHECK(provider().rereg_mr(far.mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, elsewhere.data(), 128, 0) == 0);
  CHECK(far.mr->addr == elsewhere.data() && far.mr->length == 128 && far.mr->rkey != before);
  CHECK(far.mr->lkey == far.mr->rkey);
  near.fill(1);
  Send send{.wr_id = 1,
            .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
            .remote_address = reinterpret_cast<uint64_t>(elsewhere.data()) + 64,
            .remote_key = far.mr->rkey};
  post_receive(*pair.server, 2, {0, 0, 0});
  post(*pair.client, send, {near.sge(0, 64)});
  pump(*pair.client, 1, *pair.server, 1);
  CHECK(std::memcmp(&elsewhere[64], near.bytes.data(), 64) == 0);

  CHECK(provider().rereg_mr(far.mr, 0, nullptr, nullptr, 0, 0) == EINVAL);
  CHECK(provider().rereg_mr(far.mr, 1 << 10, nullptr, nullptr, 0, 0) == EINVAL);
  CHECK(provider().rereg_mr(far.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                            IBV_ACCESS_REMOTE_WRITE) == EINVAL);
  ibv_pd* other = provider().alloc_pd(context());
  CHECK(provider().rereg_mr(far.mr, IBV_REREG_MR_CHANGE_PD, other, nullptr, 0, 0) == 0);
  CHECK(far.mr->pd == other && provider().dealloc_pd(other) == EBUSY);
  CHECK(provider().rereg_mr(far.mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, pair.server->pd,
                            nullptr, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
  CHECK(provider().dealloc_pd(other) == 0);
  send.remote_key = far.mr->rkey;  // whose right to be written is gone
  send.opcode = IBV_WR_RDMA_WRITE;
  send.flags = 0;
  post_two(*pair.client, send, {.wr_id = 3, .opcode = IBV_WR_RDMA_READ}, near.sge(0, 8));
  CHECK(pump(*pair.client, 1, *pair.server, 0).client[0].status == IBV_WC_REM_ACCESS_ERR);
}

STRESS(iwarp_control) {
  timed("device", device);
  timed("states", states);
  timed("posted before reset", [] { posted_before_reset(effort(3'000)); });
  timed("access flags", access_flags);
  timed("resize", resize);
  for (const Progress mode : {Progress::manual, Progress::automatic})
    timed("extended", [=] { extended(mode); });
  timed("extended by many", extended_by_many);
  timed("reregister", reregister);
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_control_stress
