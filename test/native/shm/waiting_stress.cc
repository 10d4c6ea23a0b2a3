// The shm provider: senders without a receive, and sleepers that are woken.
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>

#include "hostile/raw_peer.h"
#include "traffic.h"

namespace shm_waiting_stress {

using namespace fixture;

// SENDs wait for receives, in order, and everything behind them; other queue pairs do not.
void receiver_not_ready(bool sender_polls) {
  Listener listener;
  Pair pair(listener, {.depth = 64}, {.depth = 64}), other(listener, {}, {});
  End& client = *pair.client;
  End& server = *pair.server;
  constexpr size_t kMessage = 1000;
  Memory near(client.pd, 64 * kMessage), far(server.pd, 64 * kMessage), aside(client.pd, 64);
  Memory near2(other.client->pd, 64), far2(other.server->pd, 64);
  near.fill(1);
  for (uint64_t i = 0; i < 40; i++) {
    const size_t length = i % 2 ? kMessage : 10;
    Send send{.wr_id = i};
    if (i % 4 == 0) {
      std::memcpy(aside.data, near.data + i * kMessage, 10);
      send.flags |= IBV_SEND_INLINE;
      post(client, send, {aside.sge(0, 10)});
      std::memset(aside.data, 0xff, 10);
    } else {
      post(client, send, {near.sge(i * kMessage, length)});
    }
  }
  Send behind = write_to(remote(far), 63 * kMessage, 40);
  post(client, behind, {near.sge(63 * kMessage, kMessage)});
  ibv_wc wc;
  CHECK(ibv_poll_cq(client.cq, 1, &wc) == 0);
  CHECK(far.data[63 * kMessage] == 0);
  post(*other.client, write_to(remote(far2), 0, 1), {near2.sge(0, 8)});
  other.client->expect(1);
  int full = 0;
  for (uint64_t i = 41; full == 0; i++) full = try_post(client, write_to(remote(far), 0, i, 0), {});
  CHECK(full == ENOMEM);

  for (uint64_t i = 0; i < 40; i++) {
    post_receive(server, i, far.sge(i * kMessage, kMessage));
    if (sender_polls && i % 8 == 0) {
      const uint64_t oldest = client.completion().wr_id;
      CHECK(oldest == i / 8);
    }
  }
  for (uint64_t i = 0; i < 40; i++) {
    const size_t length = i % 2 ? kMessage : 10;
    CHECK(server.expect(i).byte_len == length);
    CHECK(std::memcmp(near.data + i * kMessage, far.data + i * kMessage, length) == 0);
  }
  for (uint64_t i = sender_polls ? 5 : 0; i <= 40; i++) client.expect(i);
  CHECK(std::memcmp(near.data + 63 * kMessage, far.data + 63 * kMessage, kMessage) == 0);

  // A disconnect flushes what still waits, in order.
  for (uint64_t i = 0; i < 10; i++) post(client, {.wr_id = i}, {near.sge(0, 10)});
  CHECK(server.id.id->disconnect() == 0);
  for (uint64_t i = 0; i < 10; i++) client.expect(i, IBV_WC_WR_FLUSH_ERR);
}

// A receive that comes after the sender has looked for one, and before it says that it waits. Nobody wakes
// this sender, so it has to look again by itself. Saying so is its first write to the peer's area: here that
// write faults until the receive is there.
shm::AreaHeader* faulting;
constexpr size_t kPage = 4096;
void receive_posted_meanwhile() {
  Victim victim;
  const Memory memory(victim.end->pd, 8);
  faulting = &victim.peer.own_header();
  faulting->floor.store(8);
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {
    mprotect(faulting, kPage, PROT_READ | PROT_WRITE);
    faulting->posted.store(1, std::memory_order_relaxed);
  };
  CHECK(sigaction(SIGSEGV, &action, &before) == 0);
  CHECK(mprotect(faulting, kPage, PROT_READ) == 0);
  post(*victim.end, {.wr_id = 1}, {memory.sge(0, 8)});
  CHECK(sigaction(SIGSEGV, &before, nullptr) == 0);
  CHECK(faulting->posted.load() == 1 && faulting->starved.load() == 1);
  // Before the first poll, which would look once more.
  CHECK(victim.peer.own_slot(0).sequence.load() == 1);
  victim.end->expect(1);
}

// A peer's arrival wakes who sleeps on the channel once: when its event is taken, the descriptor rests.
void one_wake_for_an_event() {
  Listener listener;
  Pair pair(listener, {}, {.channel = true});
  End& server = *pair.server;
  Memory source(pair.client->pd, 8), target(server.pd, 64);
  const DataPathVerbs& verbs = *provider().data_path_verbs();
  for (uint64_t round = 0; round < 100; round++) {
    post_receive(server, round, target.sge(0, 8));
    CHECK(ibv_req_notify_cq(server.cq, 0) == 0);
    post(*pair.client, {.wr_id = round}, {source.sge(0, 8)});
    pollfd waiting{server.channel->fd, POLLIN, 0};
    CHECK(::poll(&waiting, 1, kHangMs) == 1);
    ibv_cq* ready = nullptr;
    void* ready_context = nullptr;
    CHECK(verbs.get_cq_event(server.channel, &ready, &ready_context) == 0);
    verbs.ack_cq_events(ready, 1);
    CHECK(::poll(&waiting, 1, 0) == 0, "round %lu: the descriptor is readable, and there is no event", round);
    ibv_wc wc;
    CHECK(ibv_poll_cq(server.cq, 1, &wc) == 1 && wc.wr_id == round);
    pair.client->expect(round);
  }
}

// Two queues of one channel have events when the first is taken: the descriptor stays readable for the
// second.
void two_queues_on_a_channel(bool arrivals) {
  Listener listener;
  ibv_comp_channel* channel = provider().create_comp_channel(context());
  std::array<ibv_cq*, 2> queues;
  for (ibv_cq*& queue : queues)
    queue = provider().create_cq(context(), 64, nullptr, channel, Progress::manual);
  {
    Pair first(listener, {}, {.depth = 8, .cq = queues[0]}),
        second(listener, {}, {.depth = 8, .cq = queues[1]});
    const Memory near_first(first.client->pd, 8), far_first(first.server->pd, 8);
    const Memory near_second(second.client->pd, 8), far_second(second.server->pd, 8);
    const auto send = [](End& from, const Memory& source, End& to, const Memory& target) {
      post_receive(to, 1, target.sge(0, 8));
      post(from, {.wr_id = 1}, {source.sge(0, 8)});
    };
    for (ibv_cq* queue : queues) CHECK(ibv_req_notify_cq(queue, 0) == 0);
    if (arrivals) {
      send(*first.client, near_first, *first.server, far_first);
      send(*second.client, near_second, *second.server, far_second);
    } else {
      send(*first.server, far_first, *first.client, near_first);
      send(*second.server, far_second, *second.client, near_second);
    }
    std::array<ibv_cq*, 2> ready{};
    void* ready_context = nullptr;
    pollfd waiting{channel->fd, POLLIN, 0};
    for (ibv_cq*& each : ready) {
      CHECK(::poll(&waiting, 1, 0) == 1);
      CHECK(provider().data_path_verbs()->get_cq_event(channel, &each, &ready_context) == 0);
      provider().data_path_verbs()->ack_cq_events(each, 1);
    }
    CHECK(::poll(&waiting, 1, 0) == 0);
    CHECK(std::is_permutation(ready.begin(), ready.end(), queues.begin()));
    first.server->expect(1);
    second.server->expect(1);
  }
  for (ibv_cq* queue : queues) CHECK(provider().destroy_cq(queue) == 0);
  CHECK(provider().destroy_comp_channel(channel) == 0);
}

// A queue armed for solicited events sleeps through the others.
void solicited_events() {
  Listener listener;
  Pair pair(listener, {}, {.channel = true});
  Memory source(pair.client->pd, 8), target(pair.server->pd, 64);
  sleeps_through_unsolicited(*pair.client, source, *pair.server, target, 60);
}

// A sleeper and a sender that pauses at random: no wake-up is lost.
void sleep_and_wake(int messages) {
  // Of every few, so that the send queue does not fill up.
  const auto send = [](int i) { return Send{.flags = i % 16 == 15 ? IBV_SEND_SIGNALED : 0}; };
  Listener listener;
  Pair pair(listener, {.channel = true}, {.channel = true});
  Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
  std::thread echo([&] {
    for (int i = 0; i < 8; i++) post_receive(*pair.server, 0, far.sge(0, 64));
    for (int i = 0; i < messages;) {
      if (pair.server->completion().opcode != IBV_WC_RECV) continue;
      post_receive(*pair.server, 0, far.sge(0, 64));
      post(*pair.server, send(i++), {far.sge(0, 64)});
    }
  });
  for (int i = 0; i < 8; i++) post_receive(*pair.client, 0, near.sge(0, 64));
  unsigned random = 1;
  for (int i = 0; i < messages; i++) {
    post(*pair.client, send(i), {near.sge(0, 64)});
    while (pair.client->completion().opcode != IBV_WC_RECV) continue;
    post_receive(*pair.client, 0, near.sge(0, 64));
    random = random * 1664525 + 1013904223;
    if (random >> 30 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random >> 24 & 0x3f));
    } else {
      for (volatile unsigned spin = random >> 20 & 0xfff; spin > 0;) spin = spin - 1;
    }
  }
  echo.join();
}

// Messages in both directions at once through queues that are short, so that senders wait all the time.
void two_way_stream() {
  const uint64_t kMessages = static_cast<uint64_t>(effort(15'000));
  Listener listener;
  Pair pair(listener, {.depth = 16}, {.depth = 16});
  const auto run = [kMessages](End& end) {
    Memory out(end.pd, 16 * 256), in(end.pd, 16 * 256);
    uint64_t sent = 0, completed = 0, received = 0;
    for (uint64_t i = 0; i < 8; i++) post_receive(end, i, in.sge(i * 256, 256));
    const auto deadline = Clock::now() + kHang;
    while (completed < kMessages || received < kMessages) {
      while (sent < kMessages && sent - completed < 16) {
        const size_t length = 8 + sent * 13 % 240;
        uint8_t* at = out.data + sent % 16 * 256;
        std::memcpy(at, &sent, 8);
        std::memset(at + 8, static_cast<int>(sent), length - 8);
        if (try_post(end, {.wr_id = sent}, {out.sge(sent % 16 * 256, length)}) != 0) break;
        sent++;
      }
      ibv_wc wc;
      if (ibv_poll_cq(end.cq, 1, &wc) == 0) {
        CHECK(Clock::now() < deadline);
        std::this_thread::yield();
        continue;
      }
      CHECK(wc.status == IBV_WC_SUCCESS);
      if (wc.opcode == IBV_WC_SEND) {
        CHECK(wc.wr_id == completed++);
        continue;
      }
      const uint8_t* at = in.data + wc.wr_id * 256;
      CHECK(std::memcmp(at, &received, 8) == 0 && wc.byte_len == 8 + received * 13 % 240);
      CHECK(is_filled(at + 8, wc.byte_len - 8, static_cast<uint8_t>(received)));
      received++;
      if (received + 8 <= kMessages) post_receive(end, wc.wr_id, in.sge(wc.wr_id * 256, 256));
    }
    // The other side may still be reading these.
    end.id.events->empty();
  };
  std::thread other([&] { run(*pair.server); });
  run(*pair.client);
  other.join();
}

STRESS(shm_waiting) {
  timed("receiver not ready, sender polls", [] { receiver_not_ready(true); });
  timed("receiver not ready, sender sleeps", [] { receiver_not_ready(false); });
  timed("receive posted meanwhile", receive_posted_meanwhile);
  timed("one wake for an event", one_wake_for_an_event);
  timed("two queues on a channel, completions", [] { two_queues_on_a_channel(false); });
  timed("two queues on a channel, arrivals", [] { two_queues_on_a_channel(true); });
  timed("solicited events", solicited_events);
  timed("sleep and wake", [] { sleep_and_wake(effort(4000)); });
  timed("two-way stream", two_way_stream);
  std::puts("ok");
  return 0;
}

}  // namespace shm_waiting_stress
