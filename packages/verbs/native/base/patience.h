// How long who finds nothing looks on before it sleeps.
//
// As long as waits have lately taken no longer than the bound: twice their average, at most the bound. A wait
// that was slept through includes the time to wake up, at both ends, and that may be over the bound by itself
// (an idle processor of a virtual machine takes 25 µs). Then nobody would ever look on again, though answers
// would be there in a tenth of it. So it is tried now and then.
//
// Who looks on yields the core (sched_yield(2)) before each look: the thread that it waits for may have no
// other. On an idle core that costs a quarter of a microsecond; on a busy one it makes the difference between
// tens of microseconds and milliseconds. A thread that computes may keep it for milliseconds. Then what was
// waited for is found too late: by more than a thread takes that has a part in the answer.
//
// What was tried in vain, or was found too late, is left out for 16 waits, then for 32, 64, … 4096; for half
// as many after every 64 that were in time, because one that is too late may cost more than those have won.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rdmakit {

class Patience {
 public:
  // In nanoseconds; 0: it always sleeps.
  explicit Patience(uint64_t bound) : bound_(bound), average_(bound / 2) {}

  // Nothing was found. Whether to look on.
  bool looks_on(uint64_t now) {
    if (since_ == 0) {
      since_ = now;
      budget_ = budget();
    }
    if (now - since_ < budget_) return true;
    if (tries_) leave_out();
    looks_ = tries_ = false;
    return false;
  }
  // How long, as waits are now.
  uint64_t usual() const { return average_ > bound_ ? 0 : std::min(average_ * 2, bound_); }
  bool waits() const { return since_ != 0; }
  // What it waited for has come.
  void found(uint64_t now) {
    if (looks_) {
      if (now - since_ >= budget_ + std::min(bound_, kMostInTime))
        leave_out();
      else if (++in_time_ % kForgets == 0)
        next_ = std::max(next_ / 2, kFewest);
    }
    looks_ = tries_ = false;
    // An idle minute must not be remembered for long.
    average_ = (average_ * 7 + std::min(now - since_, 4 * bound_)) / 8;
    since_ = 0;
  }
  // Something else comes first, so this wait says nothing.
  void interrupted() {
    since_ = 0;
    looks_ = tries_ = false;
  }

 private:
  static constexpr uint32_t kFewest = 16;
  static constexpr uint32_t kMost = 4096;
  static constexpr uint32_t kForgets = 64;
  static constexpr uint64_t kMostInTime = 100'000;

  uint64_t budget() {
    if (left_out_ > 0) {
      --left_out_;
      return 0;
    }
    looks_ = true;
    tries_ = usual() == 0;
    return tries_ ? bound_ : usual();
  }
  void leave_out() {
    left_out_ = next_;
    next_ = std::min(2 * next_, kMost);
  }

  const uint64_t bound_;
  uint64_t average_;       // of waits, asleep or not
  uint64_t since_ = 0;     // since when it waits; 0: it does not
  uint64_t budget_ = 0;    // for how long it looks on
  bool looks_ = false;     // on, in this wait
  bool tries_ = false;     // that, though waits take longer than the bound
  uint32_t left_out_ = 0;  // so many more waits
  uint32_t next_ = kFewest;
  uint32_t in_time_ = 0;  // so many
};

}  // namespace rdmakit
