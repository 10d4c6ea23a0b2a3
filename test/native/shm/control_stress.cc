// The shm provider's control path: asynchronous events, completion queues that are broken, resized and
// stamped, regions registered again, kinds of memory, queue pairs without a connection.
#include "events.h"

namespace shm_control_stress {

using namespace fixture;

ibv_cq* make_queue(int entries, ibv_comp_channel* channel = nullptr) {
  ibv_cq* made = provider().create_cq(context(), entries, nullptr, channel, Progress::manual);
  CHECK(made != nullptr);
  return made;
}

// More completions than the queue holds: it is broken, says so, and takes its queue pairs with it.
void overrun() {
  Listener listener;
  Watch watch;
  ibv_comp_channel* channel = provider().create_comp_channel(context());
  ibv_cq* queue = make_queue(8, channel);
  {
    Pair pair(listener, {.cq = queue}, {});
    Pair other(listener, {.cq = queue}, {});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
    CHECK(ibv_req_notify_cq(queue, 0) == 0);
    for (uint64_t i = 0; i < 9; i++) {
      CHECK(watch.none());
      post(*pair.client, write_to(remote(far), 0, i), {near.sge(0, 8)});
    }
    watch.expect(IBV_EVENT_CQ_ERR, queue);
    watch.expect(IBV_EVENT_QP_FATAL, pair.client->qp);
    watch.expect(IBV_EVENT_QP_FATAL, other.client->qp);
    CHECK(pair.client->id.events->expect(CmEvent::Type::disconnected).status == EOVERFLOW);
    CHECK(other.server->id.events->expect(CmEvent::Type::disconnected).status == ECONNABORTED);
    ibv_wc wc[16];
    CHECK(ibv_poll_cq(queue, 16, wc) == -1 && ibv_poll_cq(queue, 16, wc) == -1);
    CHECK(provider().resize_cq(queue, 64) == EINVAL);
    Pair late(listener, {.cq = queue}, {});  // it is of no use
    watch.expect(IBV_EVENT_QP_FATAL, late.client->qp);
    pollfd waiting{channel->fd, POLLIN, 0};
    CHECK(::poll(&waiting, 1, kHangMs) == 1);
    ibv_cq* ready = nullptr;
    void* ready_context = nullptr;
    while (provider().data_path_verbs()->get_cq_event(channel, &ready, &ready_context) == 0) {
      provider().data_path_verbs()->ack_cq_events(ready, 1);
    }
  }
  CHECK(provider().destroy_cq(queue) == 0);
  CHECK(provider().destroy_comp_channel(channel) == 0);
}

// What arrived before the end is in the completion queue when the connection is over. Its receives are in use
// until they are polled, as others are: a program that posts until the queue pair is full overruns nothing.
void posted_after_the_end() {
  Listener listener;
  constexpr uint64_t kDepth = 8, kArrived = 5;
  ibv_cq* queue = make_queue(kDepth);
  {
    Pair pair(listener, {}, {.depth = kDepth, .cq = queue});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
    uint64_t next = 0;
    const auto fill = [&](uint64_t most) {
      ibv_sge sge = far.sge(0, 8);
      ibv_recv_wr request{}, *bad = nullptr;
      request.sg_list = &sge;
      request.num_sge = 1;
      int error = 0;
      for (uint64_t i = 0; error == 0 && i < most; i++) {
        request.wr_id = next;
        error = ibv_post_recv(pair.server->qp, &request, &bad);
        if (error == 0) next++;
      }
      CHECK(error == 0 || error == ENOMEM);
      return next;
    };
    CHECK(fill(kDepth) == kDepth);
    for (uint64_t i = 0; i < kArrived; i++) post(*pair.client, {.wr_id = i}, {near.sge(0, 8)});
    for (uint64_t i = 0; i < kArrived; i++) pair.client->expect(i);
    CHECK(pair.client->id.id->disconnect() == 0);
    pair.server->id.events->expect(CmEvent::Type::disconnected);
    CHECK(fill(kDepth) == kDepth);
    for (uint64_t i = 0; i < 3; i++) pair.server->expect(i);
    CHECK(fill(kDepth) == kDepth + 3);
    for (uint64_t i = 3; i < kDepth + 3; i++)
      pair.server->expect(i, i < kArrived ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR);
  }
  CHECK(provider().destroy_cq(queue) == 0);
}

// The side that did something wrong has a completion; the other side gets an asynchronous event.
void wrong_requests() {
  Listener listener;
  for (const bool access : {true, false}) {
    Watch watch;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
    Send wrong = read_from(remote(far), access ? 60 : 4, 1);
    wrong.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    post(*pair.client, wrong, {near.sge(0, 8)});
    pair.client->expect(1, access ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_INV_REQ_ERR);
    watch.expect(access ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR, pair.server->qp);
  }
  Watch watch;
  Pair pair(listener, {}, {});
  CHECK(pair.client->id.id->disconnect() == 0);
  pair.server->id.events->expect(CmEvent::Type::disconnected);
  CHECK(watch.none());
}

void resize() {
  Listener listener;
  ibv_cq* queue = make_queue(4);
  {
    Pair pair(listener, {.cq = queue}, {});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
    uint64_t next = 0, polled = 0;
    const auto fill = [&](uint64_t until) {
      while (next < until) post(*pair.client, write_to(remote(far), 0, next++), {near.sge(0, 8)});
    };
    fill(1);
    pair.client->expect(polled++);  // the region is mapped: from here on a post is a completion
    fill(5);
    CHECK(provider().resize_cq(queue, 64) == 0 && queue->cqe >= 64);
    fill(40);
    CHECK(provider().resize_cq(queue, 16) == EINVAL && queue->cqe >= 64);
    CHECK(provider().resize_cq(queue, 0) == EINVAL);
    while (polled < 30) pair.client->expect(polled++);
    CHECK(provider().resize_cq(queue, 16) == 0 && queue->cqe == 16);
    while (polled < 40) pair.client->expect(polled++);
    // While others post and poll.
    std::atomic<bool> over{false};
    std::thread resizing([&] {
      for (int i = 0; !over; i++) {
        const int error = provider().resize_cq(queue, 32 << i % 3);
        CHECK(error == 0 || error == EINVAL);
      }
    });
    for (int round = 0; round < effort(500); round++) {
      fill(next + 16);
      while (polled < next) pair.client->expect(polled++);
    }
    over = true;
    resizing.join();
  }
  CHECK(provider().destroy_cq(queue) == 0);
}

uint64_t clock_now(clockid_t which) {
  timespec now;
  clock_gettime(which, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

ibv_cq_ex* make_extended(uint64_t flags) {
  ibv_cq_init_attr_ex attributes{};
  attributes.cqe = 256;
  attributes.wc_flags = flags;
  return provider().create_cq_ex(context(), &attributes, Progress::manual);
}

// Completions have the time at which they came into being, and not the one at which they are polled.
void stamped() {
  Listener listener;
  CHECK(make_extended(IBV_WC_EX_WITH_CVLAN) == nullptr && errno == EOPNOTSUPP);
  ibv_cq_ex* queue = make_extended(uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                                   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
  CHECK(queue != nullptr);
  {
    Pair pair(listener, {}, {.cq = ibv_cq_ex_to_cq(queue)});
    Memory near(pair.client->pd, 2000), far(pair.server->pd, 2000);
    ibv_poll_cq_attr none{};
    CHECK(ibv_start_poll(queue, &none) == ENOENT);
    for (uint64_t i = 0; i < 6; i++) post_receive(*pair.server, i, far.sge(0, 2000));
    uint64_t before[3], after[3];
    for (uint64_t i = 0; i < 3; i++) {  // short, long, immediate data
      before[i] = clock_now(CLOCK_MONOTONIC);
      Send send{.wr_id = i, .immediate = 7};
      if (i == 2) {
        send = write_to(remote(far), 0, i);
        send.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        send.immediate = 9;
      }
      post(*pair.client, send, {near.sge(0, i == 1 ? 1500 : 10)});
      pair.client->expect(i);
      after[i] = clock_now(CLOCK_MONOTONIC);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    const int64_t offset = static_cast<int64_t>(clock_now(CLOCK_REALTIME) - clock_now(CLOCK_MONOTONIC));
    CHECK(ibv_start_poll(queue, &none) == 0);
    for (uint64_t i = 0; i < 3; i++) {
      CHECK(queue->status == IBV_WC_SUCCESS && queue->wr_id == i);
      CHECK(ibv_wc_read_opcode(queue) == (i == 2 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV));
      CHECK(ibv_wc_read_byte_len(queue) == (i == 1 ? 1500u : 10u));
      CHECK(ibv_wc_read_qp_num(queue) == pair.server->qp->qp_num && ibv_wc_read_vendor_err(queue) == 0);
      if (i == 2)
        CHECK(ibv_wc_read_wc_flags(queue) == IBV_WC_WITH_IMM && ntohl(ibv_wc_read_imm_data(queue)) == 9);
      const uint64_t time = ibv_wc_read_completion_ts(queue);
      CHECK(time >= before[i] && time <= after[i]);
      const int64_t wall = static_cast<int64_t>(ibv_wc_read_completion_wallclock_ns(queue));
      CHECK(std::abs(wall - static_cast<int64_t>(time) - offset) < 1'000'000'000);
      CHECK(ibv_next_poll(queue) == (i == 2 ? ENOENT : 0));
    }
    ibv_end_poll(queue);
    // Of one's own work, and with ibv_poll_cq.
    before[0] = clock_now(CLOCK_MONOTONIC);
    post_receive(*pair.client, 10, near.sge(0, 10));
    post(*pair.server, {.wr_id = 11}, {far.sge(0, 10)});
    after[0] = clock_now(CLOCK_MONOTONIC);
    CHECK(ibv_start_poll(queue, &none) == 0 && queue->wr_id == 11);
    CHECK(ibv_wc_read_completion_ts(queue) >= before[0] && ibv_wc_read_completion_ts(queue) <= after[0]);
    ibv_end_poll(queue);
    post(*pair.client, {.wr_id = 12}, {near.sge(0, 10)});
    pair.server->expect(3);
    CHECK(provider().resize_cq(ibv_cq_ex_to_cq(queue), 512) == 0);
  }
  CHECK(provider().destroy_cq(ibv_cq_ex_to_cq(queue)) == 0);
}

void register_again() {
  Listener listener;
  Pair pair(listener, {}, {});
  Memory near(pair.client->pd, 64), first(pair.server->pd, 64), second(pair.server->pd, 64);
  near.fill(1);
  const Remote before = remote(first);
  ibv_mr* mr = first.mr;
  CHECK(provider().rereg_mr(mr, 0, nullptr, nullptr, 0, 0) == EINVAL);
  CHECK(provider().rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_REMOTE_WRITE) ==
        EINVAL);
  CHECK(provider().rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, nullptr, nullptr, 0, 0) == EINVAL);
  post(*pair.client, write_to(before, 0, 1), {near.sge(0, 64)});  // unchanged so far
  pair.client->expect(1);
  CHECK(provider().rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, second.data, 64, 0) == 0);
  CHECK(mr->addr == second.data && mr->length == 64 && mr->pd == pair.server->pd);
  post(*pair.client, write_to({second.address(), mr->rkey}, 0, 2), {near.sge(0, 64)});
  pair.client->expect(2);
  CHECK(same(near, second, 64));
  post(*pair.client, write_to(before, 0, 3), {near.sge(0, 64)});
  pair.client->expect(3, IBV_WC_REM_ACCESS_ERR);
  ibv_pd* pd = provider().alloc_pd(context());
  CHECK(provider().rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, nullptr, 0, 0) == 0 && mr->pd == pd);
  CHECK(provider().dealloc_pd(pd) == EBUSY);
  first.deregister();
  CHECK(provider().dealloc_pd(pd) == 0);
}

void kinds_of_memory() {
  for (const HugePages huge : {HugePages::none, HugePages::transparent}) {
    const MemoryOptions options{.huge_pages = huge, .numa_node = 0, .locked = true, .shared = true};
    void* memory = provider().map_memory(5 << 20, options);
    CHECK(memory != nullptr);
    CHECK(static_cast<uint8_t*>(memory)[(5 << 20) - 1] == 0);
    provider().unmap_memory(memory, 5 << 20, options);
  }
  for (const HugePages huge : {HugePages::size_2m, HugePages::size_1g}) {
    errno = 0;
    CHECK(provider().map_memory(1 << 20, {.huge_pages = huge}) == nullptr && errno == EOPNOTSUPP);
  }
  CHECK(provider().map_memory(1 << 20, {.numa_node = 1000}) == nullptr);
}

void queue_pair_without_connection() {
  ibv_pd* pd = provider().alloc_pd(context());
  ibv_cq* queue = make_queue(64);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = queue;
  init.cap = {8, 8, 1, 1, 64};
  for (const ibv_qp_type type : {IBV_QPT_UC, IBV_QPT_UD}) {
    init.qp_type = type;
    errno = 0;
    CHECK(provider().create_qp(pd, &init) == nullptr && errno == EOPNOTSUPP);
  }
  init.qp_type = IBV_QPT_RC;
  ibv_qp* qp = provider().create_qp(pd, &init);
  CHECK(qp != nullptr);
  const auto move_to = [&](ibv_qp_state state) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    return provider().modify_qp(qp, &attributes, IBV_QP_STATE);
  };
  const auto state = [&] {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr got{};
    CHECK(provider().query_qp(qp, &attributes, IBV_QP_STATE, &got) == 0);
    CHECK(got.send_cq == queue && got.cap.max_recv_wr == 8 && got.qp_type == IBV_QPT_RC);
    return attributes.qp_state;
  };
  ibv_recv_wr receive{}, *bad_receive = nullptr;
  ibv_send_wr send{}, *bad_send = nullptr;
  for (uint64_t round = 0; round < 3; round++) {
    CHECK(state() == IBV_QPS_RESET && ibv_post_recv(qp, &receive, &bad_receive) == EINVAL);
    CHECK(move_to(IBV_QPS_RTR) == EOPNOTSUPP && move_to(IBV_QPS_INIT) == 0 && state() == IBV_QPS_INIT);
    CHECK(move_to(IBV_QPS_RTR) == EOPNOTSUPP && ibv_post_send(qp, &send, &bad_send) == EINVAL);
    for (receive.wr_id = 0; receive.wr_id < 8; receive.wr_id++) {
      CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0);
    }
    CHECK(ibv_post_recv(qp, &receive, &bad_receive) == ENOMEM);
    if (round == 1) {
      CHECK(move_to(IBV_QPS_RESET) == 0);
      continue;
    }
    CHECK(move_to(IBV_QPS_ERR) == 0 && state() == IBV_QPS_ERR);
    CHECK(ibv_post_send(qp, &send, &bad_send) == 0);
    ibv_wc wc[16];
    CHECK(ibv_poll_cq(queue, 16, wc) == 9);
    for (uint64_t i = 0; i < 9; i++)
      CHECK(wc[i].status == IBV_WC_WR_FLUSH_ERR && (i == 8 || wc[i].wr_id == i));
    if (round == 2) CHECK(ibv_post_send(qp, &send, &bad_send) == 0);  // its completion is dropped
    CHECK(move_to(IBV_QPS_RESET) == 0);
    CHECK(ibv_poll_cq(queue, 16, wc) == 0);
  }
  CHECK(provider().destroy_qp(qp) == 0 && provider().destroy_cq(queue) == 0 &&
        provider().dealloc_pd(pd) == 0);
  std::vector<GidEntry> gids;
  CHECK(provider().query_gids(context(), 1, gids) == 0 && gids.empty());
  CHECK(provider().query_gids(context(), 2, gids) == EINVAL);
}

STRESS(shm_control) {
  timed("overrun", overrun);
  timed("posted after the end", posted_after_the_end);
  timed("wrong requests", wrong_requests);
  timed("resize", resize);
  timed("stamped", stamped);
  timed("register again", register_again);
  timed("kinds of memory", kinds_of_memory);
  timed("queue pair without connection", queue_pair_without_connection);
  std::puts("ok");
  return 0;
}

}  // namespace shm_control_stress
