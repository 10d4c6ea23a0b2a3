// How long a lane spins for a completion before it sleeps.
//
// The estimate is the moving average of how long waits have been taking, whatever ended them
// (completion or request). Spinning pays when that is short: a sleep costs a context switch and, in a
// virtual machine, often an idle exit of several 10 µs. It never pays for long waits, and on a small
// machine the spinning core is the very one that would do the work, hence the bound.
#pragma once

#include <cstdint>

#include "base/adaptive_spin.h"

namespace rdmakit::volume {

enum class WaitMode { poll, event, adaptive };

class Waiter {
 public:
  Waiter(WaitMode mode, uint64_t max_spin_ns)
      : mode_(mode),
        spin_({.bound = max_spin_ns, .longest = kLongest, .initial = kInitial, .least = kShortest}) {}

  // Nothing moved: true to look again at once, false to sleep.
  bool spin(uint64_t now) {
    if (since_ == 0) {
      since_ = now;
      slept_ = false;
      waits_++;
    }
    if (slept_) return false;
    return mode_ == WaitMode::poll || now - since_ < limit();
  }
  void sleeping() { slept_ = true; }
  // Something moved. True: a wait has just ended.
  bool moved(uint64_t now) {
    if (since_ == 0) return false;
    spin_.observe(now - since_);
    since_ = 0;
    return true;
  }
  bool slept() const { return slept_; }
  uint64_t limit() const {
    if (mode_ == WaitMode::event) return 0;
    // A wait that includes a sleep looks longer than necessary, so try a full spin now and then.
    return waits_ % kProbe == 0 ? spin_.bound() : spin_.budget();
  }

 private:
  static constexpr uint64_t kLongest = 200'000;  // an idle minute must not be remembered for long
  static constexpr uint64_t kInitial = 20'000;
  static constexpr uint64_t kShortest = 2'000;
  static constexpr uint64_t kProbe = 64;

  const WaitMode mode_;
  AdaptiveSpin spin_;
  uint64_t since_ = 0;
  bool slept_ = false;
  uint64_t waits_ = 0;
};

}  // namespace rdmakit::volume
