// The loop of a lane's thread.
#pragma once

#include <sched.h>

#include "lane/lane_sleep.h"
#include "lane/working_lane.h"

namespace rdmakit::volume {

// ---- hot path begins ----
// Rules: no allocation, no log, no lock, no system call that is not the work itself (the front's own to
// receive and to send, the device's, and when there is nothing to do the offer of the core, and ppoll).
// Everything used here was made before.

template <typename Work>
void WorkingLane<Work>::loop() {
  for (;;) {
    // Read the epoch before the commands: commands from before it was raised are done when it is
    // acknowledged.
    const uint64_t epoch = volume_.epoch();
    if (!commands_.empty()) take_commands();
    if (rdma_.enter(epoch) && epoch != acknowledged_epoch_.load(std::memory_order_relaxed))
      acknowledge(epoch);
    now_ = clock_.now();
    rdma_.adopt_failures(now_);
    bool moved = false;
    if (rdma_.lets_go()) {
      let_go();
      moved |= !rdma_.lets_go();  // one more turn, in which the epoch is acknowledged
    }
    const bool heard = is_open() && take_requests(moved);
    // After the flush: a device that is as near as memory has completed already.
    if (rdma_.poll() + rdma_.poll_backup() > 0) {
      moved = true;
      look_ |= held_off_;
    }
    if (work_.finish(now_)) {
      moved = true;
      if constexpr (Work::kServes) look_ |= work_.front().more_input();
    }
    if constexpr (!Work::kServes) {
      if (Refill::Outcome outcome; work_.refill().ended(outcome)) {
        tell_refilled(outcome);
        moved = true;
      }
    }
    if (volume_.calls_control()) call_control();
    moved |= rdma_.check_deadlines(now_);  // what ended has its answers, and its epoch, in the next turn
    end_clients();
    if (stop_at_.load(std::memory_order_relaxed) != 0) {
      if (may_exit(now_)) break;
      moved |= announce_stop();
    }

    if (moved) {
      wait_is_over(heard);
      continue;
    }
    if (looks_on()) {
      // Requests may come meanwhile; each look is a system call.
      held_off_ = holds_off();
      look_ = awaited() == 0 || now_ - looked_at_ >= (held_off_ ? kHoldOff : kLookInterval);
      sched_yield();
      continue;
    }
    sleep(now_);
  }
  if constexpr (Work::kServes) {
    if (work_.front().descriptor() >= 0) end_client();
  }
}

// Receives and starts, and rings the doorbells. True: something came.
template <typename Work>
inline bool WorkingLane<Work>::take_requests(bool& moved) {
  if constexpr (Work::kServes) {
    const bool look = look_ || work_.front().input_full();
    if (look) {
      looked_at_ = now_;
      held_off_ = false;
    }
    const bool heard = work_.start(now_, look);
    moved |= heard;
    look_ = work_.front().more_input();
    rdma_.flush(now_);
    now_ = clock_.now();  // or what completes at once would have taken no time
    return heard;
  }
  return false;
}

// Nothing came. Whether it will soon, by what has been usual for completions, or with none under way for
// requests.
template <typename Work>
inline bool WorkingLane<Work>::looks_on() {
  const bool completions = awaited() > 0;
  // A backup's thread needs the core.
  if (!completions && (!is_open() || rdma_.outstanding_backup() > 0)) return false;
  Patience& patience = completions ? for_completions_ : for_requests_;
  if (!patience.waits()) looked_on_ = true;
  return patience.looks_on(now_) || options_.wait_mode == WaitMode::poll;
}

// Something came; `heard`: a request.
template <typename Work>
inline void WorkingLane<Work>::wait_is_over(bool heard) {
  const auto over = [this](Patience& patience) {
    if (!patience.waits()) return;
    if (looked_on_) statistics_.spins.add();
    patience.found(now_);
  };
  over(for_completions_);
  if (heard) over(for_requests_);
}

// Finishes what has ended: a client goes from serving to draining; after its last operations, from draining
// to idle.
template <typename Work>
inline void WorkingLane<Work>::end_clients() {
  if constexpr (Work::kServes) {
    if (!is_open() && work_.front().descriptor() >= 0) end_client();
    if (yielding_ && (!is_open() || work_.front().may_part())) hand_over();
    if (state_.load(std::memory_order_relaxed) == State::draining && work_.idle() &&
        rdma_.outstanding() == 0 && rdma_.outstanding_backup() == 0) {
      work_.check_rest();
      state_.store(State::idle, std::memory_order_release);
      tell_idle();
    }
  }
}

// ---- hot path ends ----

template <typename Work>
void WorkingLane<Work>::obey(const Command& command) {
  if constexpr (Work::kServes) {
    using Client = typename Work::Client;
    if (command.type == Command::Type::attach) {
      look_ = true;
      for_requests_.interrupted();  // of another client
      work_.front().open(std::move(*std::unique_ptr<Client>(static_cast<Client*>(command.client))));
      if (announced_stop_) work_.announce_end();
      state_.store(State::serving, std::memory_order_release);
      emit(Event::Type::connection_opened, "");
    } else if (command.type == Command::Type::yield) {
      yielding_ = true;
      work_.front().yield();
    } else if (command.type == Command::Type::resume) {
      look_ = true;
      for_requests_.interrupted();  // none could come
      work_.front().resume();
      if (std::exchange(yielding_, false)) tell_yielded(-1);
    }
  } else if (command.type == Command::Type::refill) {
    work_.refill().begin(command.slab, command.server);
  }
}

template <typename Work>
void WorkingLane<Work>::end_client() {
  if constexpr (Work::kServes) {
    work_.front().close();
    emit(Event::Type::connection_closed, work_.front().reason());
    state_.store(State::draining, std::memory_order_release);
  }
}

// Called when there is nothing to wait for: the client is at the end of an answered request, or gone.
template <typename Work>
void WorkingLane<Work>::hand_over() {
  if constexpr (Work::kServes) {
    yielding_ = false;
    const int descriptor = is_open() ? work_.front().part() : -1;
    if (descriptor >= 0) {
      state_.store(State::draining, std::memory_order_release);
    }
    tell_yielded(descriptor);
  }
}

// True once: one more turn of the loop before anything ends, so that arrived requests are answered.
template <typename Work>
bool WorkingLane<Work>::announce_stop() {
  if (announced_stop_) return false;
  announced_stop_ = true;
  farewell_ = now_ + kFarewell;
  work_.announce_end();
  return true;
}

template <typename Work>
bool WorkingLane<Work>::may_exit(uint64_t now) {
  const uint64_t deadline = stop_at_.load(std::memory_order_relaxed);
  if (!announced_stop_) return false;
  const bool rests = work_.may_end(now >= farewell_, now >= deadline);
  if (rests && rdma_.outstanding() == 0 && rdma_.outstanding_backup() == 0) {
    ended_at_rest_ = true;
    return true;
  }
  if (now < deadline) return false;
  if (!abandoned_) {
    abandoned_ = true;
    rdma_.abandon();
  }
  return now >= deadline + kFlushTime;
}

}  // namespace rdmakit::volume
