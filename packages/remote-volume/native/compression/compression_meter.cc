#include "compression/compression_meter.h"

#include <algorithm>

#include "volume/limits.h"

namespace rdmakit::volume {

// ---- hot path begins: no system call, no lock, no allocation ----

void CompressionMeter::wrote(uint32_t pages, uint32_t spared) {
  if (mode_ != Compression::measured) return;
  if (compresses_) {
    glanced_ += pages;
    glance_spared_ += spared;
    if (glanced_ >= kGlance) {
      const bool little = glance_spared_ < glanced_ * (kPage / 8);
      glanced_ = glance_spared_ = 0;
      if (little) return rest(kShortRest);
    }
  }
  if (stage_ != Stage::trial) {
    if (left_ <= pages) return begin_trial();
    left_ -= pages;
    return;
  }
  pages_ += pages;
  if (!measuring_ && pages_ >= kSettle) {
    measuring_ = true;
    pages_ = 0;
    spent_ = 0;
  } else if (measuring_ && pages_ >= kMeasure) {
    end_turn();
  }
}

void CompressionMeter::begin_trial() {
  stage_ = Stage::trial;
  turn_ = 0;
  best_with_ = best_without_ = UINT32_MAX;
  begin_turn();
}

void CompressionMeter::begin_turn() {
  compresses_ = turn_ % 2 == 0;
  measuring_ = false;
  pages_ = glanced_ = glance_spared_ = 0;
}

void CompressionMeter::end_turn() {
  uint32_t& best = compresses_ ? best_with_ : best_without_;
  best = static_cast<uint32_t>(std::min<uint64_t>(best, spent_ / pages_));
  if (++turn_ < kTurns) return begin_turn();
  if (uint64_t{best_with_} * 16 > uint64_t{best_without_} * 15) return rest(kStay);
  stage_ = Stage::on;
  compresses_ = true;
  left_ = kStay;
}

void CompressionMeter::rest(uint32_t pages) {
  stage_ = Stage::off;
  compresses_ = false;
  left_ = pages;
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
