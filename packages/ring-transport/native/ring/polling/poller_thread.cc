// The life of a poller's thread: how it starts, waits and ends. In modes `caller` and `guarded`, what its
// owner does instead; the guardian has a file of its own.
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "base/clock.h"
#include "ring/polling/poller.h"

namespace rdmakit::ring {

int Poller::start() {
  if (options_.mode == Mode::caller) {
    running_ = true;
    return 0;
  }
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return errno;
  const bool guarded = options_.mode == Mode::guarded;
  int error =
      thread_.start(guarded ? "ring-guardian" : "ring-poller", [=, this] { guarded ? guard() : run(); });
  if (error != 0) return error;
  if (options_.cpu >= 0) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(options_.cpu, &cpus);
    error = pthread_setaffinity_np(thread_.id(), sizeof cpus, &cpus);
  }
  running_ = true;
  if (error != 0) stop();
  return error;
}

void Poller::stop() {
  if (!running_) return;
  running_ = false;
  end_thread();
  acknowledge_events();
  // The event ring may live on, under an ArrayBuffer, until that is collected; all else goes now.
  for (Slot& slot : slots_) slot.owned.reset();
  channel_ = {};
  cq_ = {};
  if (wake_fd_ >= 0) close(std::exchange(wake_fd_, -1));
}

void Poller::end_thread() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_seq_cst);
  write_wake();
  thread_.join();
}

// --- hot path ------------------------------------------------------------------------------------
// No allocation, no lock but the guardian's, no system call but the work itself, the offer of an idle core, a
// look at what else there is to do meanwhile, and the sleep.

void Poller::run() {
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (step()) {
      if (patience_.waits()) patience_.found(now_ns());
    } else if (options_.mode == Mode::poll ||
               (options_.mode == Mode::adaptive && patience_.looks_on(now_ns()))) {
      sched_yield();  // base/patience.h
    } else {
      sleep();
    }
  }
}

void Poller::arm() {
  if (armed()) return;
  armed_ = ibv_req_notify_cq(cq_.get(), 0) == 0;
  if (!armed_) [[unlikely]]
    lose_channel();
}

void Poller::take_events() {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  // One event at most: a queue raises no other before it is armed again.
  const int error = verbs_->get_cq_event(channel_.get(), &cq, &context);
  if (error == 0) {
    ++events_;
    armed_ = false;
    if (options_.mode == Mode::guarded && !turned_by_guardian_) wake_thread();  // guardian.cc, 4
  } else if (error != EAGAIN && error != EINTR) [[unlikely]] {
    lose_channel();
  }
  // An acknowledgement takes a lock (ibv_ack_cq_events(3)), so many are made at once.
  if (events_ >= 256) acknowledge_events();
}

Poller::Look Poller::look_before_sleep(OtherWork other) {
  Hold hold(*this);
  pass();
  if (!armed() || wants_turn() || !leaving_.empty()) {
    // Not armed while there is more: a peer that sends to an armed queue makes a system call, which is
    // needless while this thread is awake.
    const bool looks = !armed() && running_;
    // The rest of what the last look found was not sent since.
    const bool rest = more_completions_ || !backlog_.empty();
    bool shows = false;
    const bool worked = looks && step(shows);
    found_more_ |= shows && !rest;
    if (!worked) {
      if (looks) choose_hurry();
      if (looks && look_on(hold, other)) return looked();
      // Completions from before the arming raise no event (ibv_req_notify_cq(3)).
      arm();
      if (running_) step(shows);
    }
  }
  return looked();
}

// The same, for an application that waits for something to see. `shows`: there is something new.
bool Poller::step(bool& shows) {
  const uint32_t before = event_ring_.head();
  const bool worked = step();
  shows = event_ring_.head() != before;
  if (shows && patience_.waits()) patience_.found(now_ns());
  return worked;
}

// An answer that is about to come is awaited without sleep: asleep, both ends would have to be woken, by
// system calls of the other, and on a processor that sleeps too this takes many times as long as the answer.
// A peer on this core answers while it is yielded. So may a thread that computes, for milliseconds, in which
// the guardian takes over.
bool Poller::look_on(Hold& hold, OtherWork other) {
  if (other.descriptor < 0 || !event_ring_.all_seen()) return false;
  uint64_t now = now_ns();
  for (uint32_t looks = 1; patience_.looks_on(now); ++looks) {
    hold.yield_core();
    pass();
    bool shows = false;
    if (!armed()) step(shows);
    if (shows) return true;
    now = now_ns();
    if (armed() || now >= other.until || (looks % kLooksBetween == 0 && readable(other.descriptor))) {
      patience_.interrupted();
      return false;
    }
  }
  return false;
}

// What the looks before a sleep have found was sent while this thread worked. If the thread was not preempted
// meanwhile, the peer has another core. Then the application is to send in a hurry: the first requests and
// answers of a turn leave before its last are laid out, so that both ends work at the same time. Without
// hurry there would be nothing to find, so it is tried now and then, the less often the more often it was in
// vain.
void Poller::choose_hurry() {
  const bool found = std::exchange(found_more_, false);
  if (sleeps_without_hurry_ > 0) {
    if (--sleeps_without_hurry_ == 0) was_preempted();  // from here on it counts
  } else {
    if (!was_preempted() && found) {
      hurries_in_vain_ = 0;
    } else if (hurries_in_vain_ < kMostInVain) {
      ++hurries_in_vain_;
    }
    if (hurries_in_vain_ > kFewInVain) sleeps_without_hurry_ = (1u << (hurries_in_vain_ - kFewInVain)) - 1;
  }
  event_ring_.word(EventRing::kHurry).store(sleeps_without_hurry_ == 0, std::memory_order_relaxed);
}

// Since the last call.
bool Poller::was_preempted() {
  rusage used;
  if (getrusage(RUSAGE_THREAD, &used) != 0) return true;
  return std::exchange(preemptions_, used.ru_nivcsw) != used.ru_nivcsw;
}

Poller::Look Poller::look_at_events() {
  const Hold hold(*this);
  pass();
  take_events();
  bool shows = false;
  if (running_) step(shows);
  return looked();
}

Poller::Look Poller::looked() {
  const bool doorbell = event_ring_.take_idle();
  if (doorbell) counters_.doorbells.add(1);
  return {doorbell, !armed() || wants_turn(), !leaving_.empty(), channel_lost_};
}

bool Poller::wants_turn() const {
  // A full event ring is drained first; then the draining thread calls wake.
  return more_completions_ || !touched_.empty() || any_pending_.load(std::memory_order_relaxed) ||
         (!backlog_.empty() && event_ring_.word(EventRing::kFull).load(std::memory_order_relaxed) == 0);
}
// --- end of the hot path -------------------------------------------------------------------------

// Arms the completion queue, looks once more, and sleeps until the channel or the application wakes it.
void Poller::sleep() {
  // Before the last look at what the application stores before it looks at this (wake_thread).
  sleeping_.store(true, std::memory_order_seq_cst);
  arm();
  if (channel_lost_) [[unlikely]]
    break_all();  // those attached since, too
  // Completions from before the arming raise no event.
  if (poll_completions() || (channel_lost_ && wants_turn()) || any_pending_.load(std::memory_order_seq_cst) ||
      stopping_.load(std::memory_order_seq_cst)) {
    sleeping_.store(false, std::memory_order_relaxed);
    return;
  }
  counters_.sleeps.add(1);
  const bool event = await_event(!channel_lost_, leaving_.empty() ? -1 : kLeavePollMs);
  sleeping_.store(false, std::memory_order_relaxed);
  if (event) take_events();
}

bool Poller::readable(int descriptor) {
  pollfd ready{descriptor, POLLIN, 0};
  return poll(&ready, 1, 0) > 0;
}

// Sleeps for at most this many milliseconds (-1: for ever), until it is woken or, if it waits for `events`,
// the channel is readable: true.
bool Poller::await_event(bool events, int milliseconds) {
  // A negative descriptor is none.
  pollfd ready[2] = {{events ? channel_->fd : -1, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  poll(ready, 2, milliseconds);
  if (ready[1].revents != 0) {
    counters_.wakes.add(1);
    uint64_t ignored;
    while (::read(wake_fd_, &ignored, sizeof ignored) > 0) {
    }
  }
  return ready[0].revents != 0;
}

void Poller::acknowledge_events() {
  if (events_ > 0) verbs_->ack_cq_events(cq_.get(), events_);
  events_ = 0;
}

}  // namespace rdmakit::ring
