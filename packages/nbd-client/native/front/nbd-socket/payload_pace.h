// How long a payload takes to come, so that a lane need not listen for it.
//
//   nbd.ko     |header|page|page|page| ... |page|
//   listening  wakes  wakes wakes wakes     wakes     three switches a page where both share a processor
//   pausing    wakes  |______ pause __________| takes all
//
// nbd.ko hands its socket a page at a time, and a lane that swaps comes before it. Nothing but that payload
// can come meanwhile. The length of a pause follows what pauses have brought: an eighth shorter after each
// that was long enough, doubled after each that was not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/clock.h"
#include "volume/limits.h"

namespace rdmakit::nbd {

using namespace volume;

class PayloadPace {
 public:
  // Less of a payload than this is written together with its rest, since each piece is a WRITE of its own;
  // and a pause is for no more, which any socket holds.
  static constexpr uint32_t kPiece = 64 << 10;
  // With less than this to come (bytes), a pause takes longer than it saves.
  static constexpr uint32_t kLeast = 4 * kPage;
  static constexpr uint64_t kLongest = kMillisecond;

  void reset() { *this = PayloadPace(); }

  // ---- hot path ----
  // recv(2) has been called, and has brought so many bytes, of whichever request.
  void received(size_t bytes) {
    looked_ = true;
    brought_ += bytes;
    if (bytes > 0) stalled_ = false;
  }
  // Whether the pause that has ended was long enough.
  void judge(uint64_t now) {
    if (!std::exchange(looked_, false) || end_ == 0) return;
    const bool enough = brought_ + kLeast > aim_;
    if (now < end_ && !enough) return;
    end_ = 0;
    stalled_ = brought_ == 0;
    page_time_ = enough ? std::max(page_time_ - page_time_ / 8, kQuickestPage)
                        : std::min(page_time_ * 2, kSlowestPage);
  }
  // For how long (ns) the lane need not listen for `rest` bytes of a payload; 0: it must. The last pause
  // brought nothing, say.
  uint64_t pause(uint32_t rest, uint64_t now) {
    if (rest < kLeast || stalled_) return 0;
    // A lane's clock may be set back.
    if (end_ == 0 || end_ > now + kLongest) {
      aim_ = std::min(rest, kPiece);
      brought_ = 0;
      end_ = now + page_time_ * (aim_ / kPage);
    }
    return now < end_ ? end_ - now : 0;
  }

 private:
  static constexpr uint64_t kQuickestPage = 1'000;
  static constexpr uint64_t kSlowestPage = kLongest / (kPiece / kPage);

  uint64_t page_time_ = kQuickestPage;
  uint64_t end_ = 0;    // of the pause; 0: none
  uint32_t aim_ = 0;    // bytes that shall come meanwhile
  size_t brought_ = 0;  // since it began
  bool looked_ = false;
  bool stalled_ = false;
};

}  // namespace rdmakit::nbd
