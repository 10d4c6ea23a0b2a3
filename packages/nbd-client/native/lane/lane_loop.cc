// The loop of a lane's thread.
#include "lane/lane.h"

namespace rdmakit::nbd {

namespace {
constexpr uint64_t kLookInterval = 2'000;
// So long a lane spins for the next request where it and its client have a core each, as have those of every
// other connection. Else for a client with many under way only, whose next request follows at once: any other
// must be scheduled first.
constexpr uint64_t kRequestSpin = 50'000;
constexpr uint64_t kRequestSpinBeside = 4'000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}
}  // namespace

// ---- hot path begins ----
// Rules: no allocation, no log, no lock, no system call that is not the work itself (recv, sendmsg or
// io_uring_enter, the device's own, and ppoll when there is nothing to do). Everything used here was made
// before.

void Lane::loop() {
  for (;;) {
    // The epoch before the commands: what was commanded before it was raised is done when it is acknowledged.
    const uint64_t epoch = volume_.epoch();
    if (!commands_.empty()) take_commands();
    if (rdma_.enter(epoch) && epoch != acknowledged_epoch_.load(std::memory_order_relaxed))
      acknowledge(epoch);
    now_ = clock_.now();
    rdma_.adopt_failures(now_);
    bool moved = false, heard = false;
    if (rdma_.lets_go()) {
      let_go();
      moved |= !rdma_.lets_go();  // one more turn, in which the epoch is acknowledged
    }
    if (connection_.is_open()) {
      const bool look = look_ || connection_.input_full();
      if (look) {
        looked_at_ = now_;
        held_off_ = false;
      }
      heard = connection_.step(now_, look);
      moved |= heard;
      look_ = connection_.more_input();
      rdma_.flush(now_);
      now_ = clock_.now();  // or what completes at once would have taken no time
    }
    // After the flush: a device that is as near as memory has completed already.
    if (rdma_.poll() + rdma_.poll_backup() > 0) {
      moved = true;
      look_ |= held_off_;
    }
    if (connection_.is_open() && connection_.send(now_)) {
      moved = true;
      look_ |= connection_.more_input();
    }
    if (volume_.calls_control()) call_control();
    if (refill_ != nullptr) moved |= step_refill();
    rdma_.check_deadlines(now_);
    if (!connection_.is_open() && connection_.socket() >= 0) end_connection();
    if (yielding_ && (!connection_.is_open() || connection_.may_part())) hand_over();
    if (state_.load(std::memory_order_relaxed) == State::draining && connection_.idle() &&
        rdma_.outstanding() == 0 && rdma_.outstanding_backup() == 0)
      become_idle();
    if (stop_at_.load(std::memory_order_relaxed) != 0) {
      if (may_exit(now_)) break;
      moved |= announce_stop();
    }

    if (moved) {
      if (waiter_.moved(now_) && !waiter_.slept()) statistics_.spins.add();
      if (heard && request_waiter_.heard(now_)) statistics_.spins.add();
      continue;
    }
    if (awaited() > 0 ? waiter_.spin(now_) : connection_.is_open() && spins_for_request()) {
      // Requests may come meanwhile; each look is a system call.
      held_off_ = holds_off();
      look_ = awaited() == 0 || now_ - looked_at_ >= (held_off_ ? kHoldOff : kLookInterval);
      relax();
      continue;
    }
    sleep(now_);
  }
  if (connection_.socket() >= 0) end_connection();
}

bool Lane::spins_for_request() {
  if (rdma_.outstanding_backup() > 0) return false;  // its thread needs a core
  const bool apart = volume_.connections() <= spinners_.load(std::memory_order_relaxed);
  return request_waiter_.spin(now_, apart ? kRequestSpin : kRequestSpinBeside);
}

void Lane::operation_acknowledged(Operation& operation) {
  if (refill_ == nullptr) connection_.operation_acknowledged(operation, now_);
}

void Lane::operation_decided(Operation& operation, bool succeeded) {
  if (catch_up_ != nullptr && BackupCatchUp::owns(operation)) {
    catch_up_->operation_decided(operation, succeeded);
  } else if (refill_ != nullptr) {
    refill_->operation_decided(operation, succeeded);
  } else {
    connection_.operation_decided(operation, succeeded, now_);
  }
}

void Lane::operation_over(Operation& operation) {
  if (catch_up_ != nullptr && BackupCatchUp::owns(operation)) {
    catch_up_->operation_over(operation);
  } else if (refill_ != nullptr) {
    refill_->operation_over(operation);
  } else {
    connection_.operation_over(operation);
  }
}

bool Lane::may_move(const Operation& operation) {
  return refill_ == nullptr && connection_.may_move(operation);
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
