// Asynchronous events over iwarp: their watchers, and a completion queue that is too small.
#include <algorithm>

#include "traffic.h"

namespace iwarp_events_stress {

using namespace fixture;

ibv_qp_state state_of(ibv_qp* qp) {
  ibv_qp_attr attributes{};
  CHECK(provider().query_qp(qp, &attributes, IBV_QP_STATE, nullptr) == 0);
  return attributes.qp_state;
}

// A peer's fault that no completion tells of.
void peer_faults(Progress progress) {
  AsyncLog log, other;
  Listener listener;
  for (const bool access : {true, false}) {
    Pair pair(listener, {.progress = progress}, {.progress = progress});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64, IBV_ACCESS_REMOTE_READ);
    Send bad{.wr_id = 1, .flags = 0};  // a SEND whose completion is not awaited
    if (access) bad = write_to(far, 0, 1, 0);
    post_two(*pair.client, bad, read_from(far, 0, 2), near.sge(0, 8));
    const Completions done = pump(*pair.client, 1, *pair.server, 0);
    CHECK(done.client[0].status == (access ? IBV_WC_REM_ACCESS_ERR : IBV_WC_RNR_RETRY_EXC_ERR));
    const ibv_event_type type = access ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR;
    log.expect(type, pair.server->qp);
    other.expect(type, pair.server->qp);  // each watcher hears each event
  }
  // An error that has a completion, and orderly ends, are no events.
  {
    Pair pair(listener, {.progress = progress}, {.progress = progress});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
    post_receive(*pair.server, 1, far.sge(0, 8));
    post(*pair.client, {.wr_id = 2}, {near.sge(0, 9)});
    CHECK(pump(*pair.client, 1, *pair.server, 1).server[0].status == IBV_WC_LOC_LEN_ERR);
    Pair orderly(listener, {.progress = progress}, {.progress = progress});
    CHECK(orderly.client->id.id->disconnect() == 0);
    orderly.client->id.events->expect(CmEvent::Type::disconnected);
    // Behind these nothing else may have come.
    Pair last(listener, {.progress = progress}, {.progress = progress});
    Memory here(last.client->pd, 8), shut(last.server->pd, 8, 0);
    post_two(*last.client, write_to(shut, 0, 1, 0), read_from(shut, 0, 2), here.sge(0, 8));
    pump(*last.client, 1, *last.server, 0);
    log.expect(IBV_EVENT_QP_ACCESS_ERR, last.server->qp);
    other.expect(IBV_EVENT_QP_ACCESS_ERR, last.server->qp);
  }
}

// More completions than the queue holds: it returns those it has and then -1, for ever; one event; its queue
// pairs fail, and report as usual to a separate completion queue of receives.
void overrun(Progress progress) {
  AsyncLog log;
  Listener listener;
  ibv_cq* small = provider().create_cq(context(), 4, nullptr, nullptr, progress);
  CHECK(small != nullptr && small->cqe == 4);
  {
    Pair pair(listener, {.progress = progress, .depth = 64, .cq = small}, {.progress = Progress::automatic});
    Pair innocent(listener, {.progress = progress}, {.progress = Progress::automatic});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
    post_receive(*pair.server, 9, far.sge(0, 8));
    for (uint64_t i = 0; i < 8; i++) {  // the last may find the queue pair in error already
      const int error = try_post(*pair.client, write_to(far, 0, i, IBV_SEND_SIGNALED), {near.sge(0, 8)});
      CHECK(error == 0);
    }
    log.expect(IBV_EVENT_CQ_ERR, small);
    log.expect(IBV_EVENT_QP_FATAL, pair.client->qp);
    CHECK(state_of(pair.client->qp) == IBV_QPS_ERR);
    CHECK(pair.client->id.events->expect(CmEvent::Type::disconnected).status == EOVERFLOW);
    pair.server->expect(9, IBV_WC_WR_FLUSH_ERR);  // the peer hears of the end
    ibv_wc wc[8];
    CHECK(ibv_poll_cq(small, 8, wc) == 4);
    for (uint64_t i = 0; i < 4; i++) CHECK(wc[i].wr_id == i && wc[i].status == IBV_WC_SUCCESS);
    for (int i = 0; i < 3; i++) CHECK(ibv_poll_cq(small, 8, wc) == -1);
    CHECK(try_post(*pair.client, write_to(far, 0, 9), {near.sge(0, 8)}) == 0);  // flushed to nowhere
    CHECK(ibv_poll_cq(small, 8, wc) == -1);
    CHECK(state_of(innocent.client->qp) == IBV_QPS_RTS);
    Pair late(listener, {.progress = progress, .cq = small}, {.progress = Progress::automatic});
    log.expect(IBV_EVENT_QP_FATAL, late.client->qp);  // the queue is unusable
    CHECK(late.client->id.events->expect(CmEvent::Type::disconnected).status == EOVERFLOW);
    CHECK(log.count(IBV_EVENT_CQ_ERR) == 0);
  }
  CHECK(provider().destroy_cq(small) == 0);
}

// Threads overrun queues and destroy everything while the progress thread still tells of it, and watchers
// come and go.
void overrun_and_destroy() {
  std::atomic<bool> stop{false};
  std::atomic<int> heard{0};
  std::thread watcher([&] {
    while (!stop) {
      const uint64_t token = provider().watch_async_events(context(), [&](const AsyncEvent&) { heard++; });
      CHECK(token != 0);
      std::this_thread::yield();
      provider().unwatch_async_events(context(), token);
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; t++) {
    threads.emplace_back([t] {
      Listener listener;
      for (int i = 0; i < 40; i++) {
        const Progress progress = i % 2 ? Progress::manual : Progress::automatic;
        ibv_cq* small = provider().create_cq(context(), 2, nullptr, nullptr, progress);
        {
          Pair pair(listener, {.progress = progress, .depth = 16, .cq = small}, {.progress = progress});
          Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
          for (uint64_t each = 0; each < 4; each++)
            try_post(*pair.client, write_to(far, 0, each), {near.sge(0, 8)});
          if ((i + t) % 3 == 0) std::this_thread::yield();
          pair.client->destroy_qp();
        }
        CHECK(provider().destroy_cq(small) == 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  watcher.join();
}

// A sleeper on the channel of a queue that overruns is woken.
void overrun_wakes() {
  AsyncLog log;
  Listener listener;
  ibv_comp_channel* channel = provider().create_comp_channel(context());
  ibv_cq* small = provider().create_cq(context(), 2, nullptr, channel, Progress::automatic);
  {
    Pair pair(listener, {.progress = Progress::automatic, .depth = 16, .cq = small},
              {.progress = Progress::automatic});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
    for (uint64_t i = 0; i < 2; i++) post(*pair.client, write_to(far, 0, i), {near.sge(0, 8)});
    CHECK(ibv_req_notify_cq(small, 0) == 0);
    post(*pair.client, write_to(far, 0, 2), {near.sge(0, 8)});
    pollfd waiting{channel->fd, POLLIN, 0};
    CHECK(::poll(&waiting, 1, kHangMs) == 1);
    ibv_cq* ready = nullptr;
    void* ready_context = nullptr;
    CHECK(provider().data_path_verbs()->get_cq_event(channel, &ready, &ready_context) == 0 && ready == small);
    provider().data_path_verbs()->ack_cq_events(ready, 1);
    ibv_wc wc[4];
    CHECK(ibv_poll_cq(small, 4, wc) == 2 && ibv_poll_cq(small, 4, wc) == -1);
    log.expect(IBV_EVENT_CQ_ERR, small);
  }
  CHECK(provider().destroy_cq(small) == 0);
  CHECK(provider().destroy_comp_channel(channel) == 0);
}

STRESS(iwarp_events) {
  for (const Progress mode : {Progress::manual, Progress::automatic}) {
    timed("peer faults", [=] { peer_faults(mode); });
    timed("overrun", [=] { overrun(mode); });
  }
  timed("overrun wakes", overrun_wakes);
  timed("overrun and destroy", overrun_and_destroy);
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_events_stress
