// Mode `guarded`: the application's event loop turns the poller; this thread does so while the application
// computes, so that credit, pings, completions and transfers continue.
//
//   rests           sleeps on the channel       it is readable: watches
//   watches         looks every kLookMs         something waits, and no thread has looked: takes over
//                                               the queue is armed and nothing has waited, kQuietLooks times:
//                                               rests
//   has taken over  turns, arms, sleeps, rings  the application has looked: watches
//
// Something waits when the queue is not armed, because the thread that disarmed it computes with what it
// found; or when two looks have found the event for which it was armed. So the guardian acts between one and
// two kLookMs after the application began to compute, or the event came.
//
// Why the application misses nothing, whenever the guardian takes over and stops:
//
// 1. A thread that takes an event turns the poller in the same hold, and the next to sleep arms the queue
//    again: look_before_sleep says "again" until it is armed, and the guardian arms in each hold.
// 2. The guardian acts only while `passes_`, which the application changes in each of its holds, is as it was
//    when something already waited. So its actions come before the application's next look, which sees all of
//    them: a disarmed queue, requests, frames on the event ring of which JavaScript has no notice yet.
// 3. The application may have looked for the last time already: it sleeps, and was slow to wake up for the
//    event that the guardian has now taken. Then the guardian rings if it has put something on the event
//    ring. The application need not know of work that concerns only native code; the guardian stays until the
//    application looks again.
// 4. An event wakes both, if both sleep, but the application may have taken it before the guardian looks at
//    the channel: poll(2) then sleeps on. So the application, as it takes an event, wakes a guardian that
//    sleeps without end, which has said so (`sleeping_`) before it looked at the queue for the last time, in
//    a hold. A guardian that finds that the application has looked goes back to watching.
#include <mutex>
#include <utility>

#include "ring/polling/poller.h"

namespace rdmakit::ring {

constexpr int kLookMs = 5;
// 20 ms without work. Each look is two system calls and a wake-up, of which a thousand idle connections'
// heartbeats would have 200 each second; who rests pays one wake-up for the next event instead.
constexpr int kQuietLooks = 4;

void Poller::guard() {
  uint32_t seen = passes_.load(std::memory_order_relaxed);
  bool waited = false;  // an event, at the last look, which saw the same passes
  for (int quiet = 0; !stopping_.load(std::memory_order_seq_cst);) {
    if (quiet >= kQuietLooks) {
      rest();
      seen = passes_.load(std::memory_order_relaxed);
      quiet = 0;
    }
    await_event(false, kLookMs);
    const uint32_t before = std::exchange(seen, passes_.load(std::memory_order_relaxed));
    const bool was_waiting = std::exchange(waited, false);
    if (seen != before) {
      quiet = 0;
    } else if (const Waits waits = what_waits(); waits == Waits::nothing) {
      ++quiet;
    } else {
      quiet = 0;
      waited = waits == Waits::event && !was_waiting;
      if (!waited && waits != Waits::unknown) take_over(seen);
    }
  }
}

void Poller::rest() {
  sleeping_.store(true, std::memory_order_seq_cst);
  if (what_waits() == Waits::nothing) {
    counters_.sleeps.add(1);
    await_event(true, -1);
  }
  sleeping_.store(false, std::memory_order_relaxed);
}

Poller::Waits Poller::what_waits() {
  const std::unique_lock hold(turns_, std::try_to_lock);
  // The application looks just now, or is kept from it: the queue it leaves may not be armed.
  if (!hold.owns_lock()) return Waits::unknown;
  if (channel_lost_) return Waits::nothing;
  if (!armed_ || wants_turn() || !leaving_.empty()) return Waits::turn;
  // Not by await_event, which takes a wake-up: rest() is yet to sleep.
  return readable(channel_->fd) ? Waits::event : Waits::nothing;
}

void Poller::take_over(uint32_t seen) {
  counters_.take_overs.add(1);
  for (bool event = false;;) {
    bool again, rings, timed, lost;
    // Before the last look at what the application stores before it looks at this (wake_thread).
    sleeping_.store(true, std::memory_order_seq_cst);
    {
      const std::unique_lock hold(turns_, std::try_to_lock);
      if (!hold.owns_lock() || passes_.load(std::memory_order_relaxed) != seen ||
          stopping_.load(std::memory_order_seq_cst))
        break;
      turned_by_guardian_ = true;
      if (event) take_events();
      arm();
      again = step();
      again |= wants_turn() || any_pending_.load(std::memory_order_seq_cst);
      turned_by_guardian_ = false;
      rings = std::exchange(rings_, false);
      timed = !leaving_.empty();
      lost = channel_lost_;
    }
    if (rings) doorbell_();
    event = false;
    if (again) continue;
    counters_.sleeps.add(1);
    event = await_event(!lost, timed ? kLeavePollMs : -1);
  }
  sleeping_.store(false, std::memory_order_relaxed);
}

}  // namespace rdmakit::ring
