// How long a lane with nothing outstanding spins for the next request before it sleeps.
//
// Only the client has to run meanwhile, so a spin wastes nothing when the core is not the client's own. It
// saves the client the wake-up of the lane, an interrupt to another core, which on a virtual machine costs
// both of them some 10 µs. A spin does not pay
//  - if the lane sleeps for its completions: they take much longer than a spin saves, or are made by threads
//    of this machine, which need the core;
//  - if a lane that sleeps is back soon, because then its client shares its core, and a spin would separate
//    them; unless it is back at once, because the client has many requests outstanding;
//  - if no request comes in time, which is found by trying: after a spin that a request has ended the lane
//    spins again; after a few that none has ended it tries only in one of 64 waits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lane/waiter.h"

namespace rdmakit::volume {

class RequestWaiter {
 public:
  explicit RequestWaiter(WaitMode mode) : mode_(mode) {}

  // Nothing moved: true to look again at once, false to sleep. Both in ns.
  bool spin(uint64_t now, uint64_t longest) {
    if (since_ == 0) {
      since_ = now;
      slept_ = false;
      tries_ = worth_a_try();
      waits_++;
      if (far_ > 0) far_--;
    }
    if (slept_) return false;
    return mode_ == WaitMode::poll || (tries_ && now - since_ < longest);
  }
  void sleeping() { slept_ = true; }
  void sleeps_for_completions() { far_ = kProbe; }
  // A request came, or part of one. True: that has ended a spin.
  bool heard(uint64_t now) {
    if (since_ == 0) return false;
    const uint64_t waited = std::min(now - since_, kLongest);
    since_ = 0;
    if (tries_) credit_ = slept_ ? std::max(credit_ - kLoss, 0) : std::min(credit_ + 1, kMost);
    if (!tries_ && slept_) asleep_ += (static_cast<int64_t>(waited) - asleep_) / 8;
    return !slept_;
  }

 private:
  static constexpr uint64_t kLongest = 200'000;
  static constexpr int64_t kAtOnce = 4'000;
  static constexpr int64_t kSoon = 12'000;
  static constexpr uint64_t kProbe = 64;
  // Spins that pay outnumber those that do not by four to one, or end.
  static constexpr int kLoss = 4;
  static constexpr int kMost = 16;

  bool worth_a_try() const {
    return mode_ != WaitMode::event && far_ == 0 && (asleep_ < kAtOnce || asleep_ > kSoon) &&
           (credit_ > 0 || waits_ % kProbe == 0);
  }

  const WaitMode mode_;
  uint64_t since_ = 0;
  uint64_t waits_ = 0;
  uint64_t far_ = 0;  // so many waits go by without a try
  bool tries_ = false;
  bool slept_ = false;
  int64_t asleep_ = (kAtOnce + kSoon) / 2;  // moving average of the waits in which nothing was tried
  int credit_ = 0;
};

}  // namespace rdmakit::volume
