// How long the rest of a payload takes, so that a lane need not listen for it.
//
//   nbd.ko     |header|page|page|page| ... |page|
//   listening  wakes  wakes wakes wakes     wakes     three switches a page where both share a processor
//   pausing    wakes  |______ pause __________| takes all
//
// nbd.ko hands its socket a page at a time, and a lane that swaps comes before it. Nothing but that payload
// can come meanwhile. The length of a pause follows what they have brought: an eighth shorter after each that
// was long enough, doubled after each that was not.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "volume/limits.h"

namespace rdmakit::nbd {

using namespace volume;

class PayloadPace {
 public:
  // With less than this to come (bytes), a pause takes longer than it saves.
  static constexpr uint32_t kLeast = 4 * kPage;
  static constexpr uint64_t kLongest = kMillisecond;

  void reset() { *this = PayloadPace(); }

  // ---- hot path ----
  // The socket has been looked at: `rest` bytes of a payload are to come; 0: none are.
  void looked(uint32_t rest, uint64_t now) {
    if (rest != rest_) stalled_ = false;
    if (end_ == 0 || now < end_) return;
    end_ = 0;
    stalled_ = rest == rest_;
    page_time_ = rest < kLeast ? std::max(page_time_ - page_time_ / 8, kQuickestPage)
                               : std::min(page_time_ * 2, kSlowestPage);
  }
  // For how long (ns) the lane need not listen for the rest; 0: it must. The last pause brought nothing, say.
  uint64_t pause(uint32_t rest, uint64_t now) {
    if (rest < kLeast || stalled_) return 0;
    if (end_ == 0) {
      rest_ = rest;
      end_ = now + std::min(page_time_ * (rest / kPage), kLongest);
    }
    return now < end_ ? end_ - now : 0;
  }

 private:
  static constexpr uint64_t kQuickestPage = 1'000;
  static constexpr uint64_t kSlowestPage = 250'000;

  uint64_t page_time_ = kQuickestPage;
  uint64_t end_ = 0;   // of the pause; 0: none
  uint32_t rest_ = 0;  // when it began
  bool stalled_ = false;
};

}  // namespace rdmakit::nbd
