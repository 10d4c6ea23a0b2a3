// The shm provider: the eventfd of a channel, which a peer has too, with its flags. It may fill the counter
// and empty it, and have calls that touch it sleep: no thread of the other process does, and no wake-up is
// lost.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "../traffic.h"
#include "shm/completion/completion_channel.h"
#include "shm/completion/eventfd_signal.h"

namespace shm_shared_event_stress {

using namespace fixture;

// The descriptor that the peers of `end` get.
int peers_descriptor(const End& end) { return static_cast<shm::CompletionChannel*>(end.channel)->peers_fd(); }

// Does to a descriptor what a peer could, all the time.
class Meddler {
 public:
  explicit Meddler(std::function<void()> meddle)
      : thread_([this, meddle = std::move(meddle)] {
          while (!over_) meddle();
        }) {}
  ~Meddler() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// It sleeps in neither.
void fill_and_change_flags(int fd) {
  const uint64_t full = UINT64_MAX - 1;
  CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
  [[maybe_unused]] const ssize_t done = write(fd, &full, sizeof full);
  CHECK(fcntl(fd, F_SETFL, 0) == 0);
}

void take_what_there_is(int fd) {
  uint64_t count;
  const iovec into{&count, sizeof count};
  [[maybe_unused]] const ssize_t done = preadv2(fd, &into, 1, -1, RWF_NOWAIT);
}

// Sends one message after the other to an end that sleeps until it comes.
void wake_by_messages(End& from, End& to, int messages) {
  Memory near(from.pd, 8), far(to.pd, 8);
  std::atomic<bool> over{false};
  std::thread sleeper([&] {
    const DataPathVerbs& verbs = *provider().data_path_verbs();
    for (int i = 0; i < messages; i++) {
      ibv_wc wc;
      while (ibv_poll_cq(to.cq, 1, &wc) == 0) {
        CHECK(ibv_req_notify_cq(to.cq, 0) == 0);
        if (ibv_poll_cq(to.cq, 1, &wc) == 1) break;
        pollfd waiting{to.channel->fd, POLLIN, 0};
        CHECK(::poll(&waiting, 1, kHangMs) == 1, "message %d rings nobody", i);
        ibv_cq* ready = nullptr;
        void* ready_context = nullptr;
        if (verbs.get_cq_event(to.channel, &ready, &ready_context) == 0) verbs.ack_cq_events(ready, 1);
      }
      CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
      if (i + 1 < messages) post_receive(to, 1, far.sge(0, 8));
    }
    over = true;
  });
  post_receive(to, 1, far.sge(0, 8));
  std::thread sender([&] {
    for (int i = 0; i < messages; i++) {
      post(from, {.wr_id = 1}, {near.sge(0, 8)});
      from.expect(1);
    }
  });
  await([&] { return over.load(); });
  sleeper.join();
  sender.join();
}

// The peer that sleeps is the one that meddles: the sender is kept awake.
void a_full_counter_that_blocks() {
  Listener listener;
  Pair pair(listener, {}, {.channel = true});
  const int fd = peers_descriptor(*pair.server);
  const Meddler meddler([fd] { fill_and_change_flags(fd); });
  wake_by_messages(*pair.client, *pair.server, effort(100'000));
}

// A counter that is full when an event is taken, and empty the next moment.
void a_counter_that_is_emptied() {
  Listener listener;
  Pair pair(listener, {}, {.channel = true});
  const int fd = peers_descriptor(*pair.server);
  std::atomic<int> takes{0};
  const Meddler taker([&] {
    ibv_cq* ready = nullptr;
    void* ready_context = nullptr;
    CHECK(provider().data_path_verbs()->get_cq_event(pair.server->channel, &ready, &ready_context) == EAGAIN);
    takes++;
  });
  for (int i = 0; i < effort(30'000); i++) {
    fill_and_change_flags(fd);
    take_what_there_is(fd);
    const int before = takes;
    for (const auto deadline = Clock::now() + kHang; takes == before; std::this_thread::yield())
      CHECK(Clock::now() < deadline, "taking events sleeps");
  }
}

// Own completions ring the channel whatever a peer has done to it.
void own_completions() {
  Listener listener;
  Pair pair(listener, {}, {.channel = true});
  End& server = *pair.server;
  const Memory near(pair.client->pd, 8), far(server.pd, 8);
  const int fd = peers_descriptor(server);
  ibv_cq* ready = nullptr;
  void* ready_context = nullptr;
  for (int i = 0; i < 100; i++) {
    CHECK(ibv_req_notify_cq(server.cq, 0) == 0);
    post_receive(*pair.client, 1, near.sge(0, 8));
    fill_and_change_flags(fd);
    post(server, {.wr_id = 1}, {far.sge(0, 8)});
    take_what_there_is(fd);
    pollfd waiting{server.channel->fd, POLLIN, 0};
    CHECK(::poll(&waiting, 1, 0) == 1);
    CHECK(provider().data_path_verbs()->get_cq_event(server.channel, &ready, &ready_context) == 0);
    provider().data_path_verbs()->ack_cq_events(ready, 1);
    server.expect(1);
    pair.client->expect(1);
  }
}

// A third process empties the counter: the ring of this one is seen.
void a_ring_that_is_taken_away() {
  Listener listener;
  Pair pair(listener, {}, {.channel = true});
  const int fd = peers_descriptor(*pair.server);
  const Meddler meddler([fd] { take_what_there_is(fd); });
  wake_by_messages(*pair.client, *pair.server, effort(20'000));
}

// One that rings by a write, as an older version does, finds room in a counter that another has filled.
void a_peer_that_writes() {
  Listener listener;
  Pair pair(listener, {}, {.channel = true});
  const int fd = peers_descriptor(*pair.server);
  pollfd waiting{pair.server->channel->fd, POLLIN, 0};
  CHECK(::poll(&waiting, 1, 0) == 0);
  for (const uint64_t value : {UINT64_MAX - 1, uint64_t{1}}) {
    CHECK(write(fd, &value, sizeof value) == sizeof value && ::poll(&waiting, 1, 0) == 1);
    ibv_cq* ready = nullptr;
    void* ready_context = nullptr;
    while (::poll(&waiting, 1, 0) == 1)
      CHECK(provider().data_path_verbs()->get_cq_event(pair.server->channel, &ready, &ready_context) ==
            EAGAIN);
  }
}

// A counter that blocks, before and after it is full, and a pipe.
void signal_each() {
  const UniqueFd counter(eventfd(0, EFD_CLOEXEC));
  uint64_t value = 0;
  for (int i = 0; i < 1'000; i++) shm::signal_eventfd(counter.get());
  CHECK(read(counter.get(), &value, sizeof value) == sizeof value && value == 1'000);
  value = UINT64_MAX - 1;
  CHECK(write(counter.get(), &value, sizeof value) == sizeof value);
  shm::signal_eventfd(counter.get());
  int ends[2];
  CHECK(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  const UniqueFd out(ends[0]), in(ends[1]);
  shm::signal_eventfd(in.get());
  pollfd written{out.get(), POLLIN, 0};
  CHECK(::poll(&written, 1, 0) == 0);
}

void in_a_process_and_its_child() {
  shm::prepare_eventfd_signals();
  signal_each();
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(kHangMs / 1000);  // the child has no other thread that would look
    shm::prepare_eventfd_signals();
    signal_each();
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

STRESS(shm_shared_event) {
  timed("a full counter that blocks", a_full_counter_that_blocks);
  timed("a counter that is emptied", a_counter_that_is_emptied);
  timed("own completions", own_completions);
  timed("a ring that is taken away", a_ring_that_is_taken_away);
  timed("a peer that writes", a_peer_that_writes);
  timed("in a process and its child", in_a_process_and_its_child);
  std::puts("ok");
  return 0;
}

}  // namespace shm_shared_event_stress
