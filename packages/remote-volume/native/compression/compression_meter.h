// Whether compressing what a lane writes pays, found by trying both. It knows of pages and of time, not of
// LZ4.
//
//   trial ── the best turn with it took 1/16 less than the best one without ──> on for kStay pages ── trial
//         └─ else ────────────────────────────────────────────────────────────> off for kStay pages ── trial
//   trial or on ── less than 1/8 of the bytes of kGlance pages went ──> off for kShortRest pages ── trial
//
// The time of a turn is that in which the lane had something under way or was busy putting it there, so that
// of a client that thinks does not count; and of several turns the best one is taken, so that of a machine
// that is busy with others does not either.
#pragma once

#include <cstdint>

namespace rdmakit::volume {

enum class Compression : uint8_t { off, measured, always };

class CompressionMeter {
 public:
  // All in pages.
  static constexpr uint32_t kGlance = 64;
  static constexpr uint32_t kSettle = 256;  // as many may be under way, of the turn before
  static constexpr uint32_t kMeasure = 512;
  static constexpr uint32_t kTurns = 6;  // of a trial, every other one with compression
  static constexpr uint32_t kStay = 1 << 17;
  static constexpr uint32_t kShortRest = 1 << 14;

  explicit CompressionMeter(Compression mode) : mode_(mode), compresses_(mode != Compression::off) {}

  bool compresses() const { return compresses_; }
  // `pages` were written, of which `spared` bytes are not sent.
  void wrote(uint32_t pages, uint32_t spared);
  // In each turn of the lane's loop, with the time (ns) at its beginning.
  void turn(uint64_t now, bool under_way) {
    if (mode_ != Compression::measured) return;
    if (busy_) spent_ += now - now_;
    now_ = now;
    busy_ = under_way;
  }
  // Something is under way since the beginning of this turn.
  void posted() { busy_ = true; }

 private:
  enum class Stage : uint8_t { trial, on, off };

  void begin_trial();
  void begin_turn();
  void end_turn();
  void rest(uint32_t pages);

  const Compression mode_;
  bool compresses_;
  Stage stage_ = Stage::trial;
  uint32_t left_ = kStay;  // pages, of on or off
  uint32_t glanced_ = 0;   // pages tried since the last glance at what went
  uint32_t glance_spared_ = 0;
  uint32_t turn_ = 0;                // of the trial
  uint32_t pages_ = 0;               // of the turn
  uint32_t best_with_ = UINT32_MAX;  // ns a page
  uint32_t best_without_ = UINT32_MAX;
  bool busy_ = false;
  uint64_t now_ = 0;
  uint64_t spent_ = 0;  // ns, busy, in the measured part of the turn
  bool measuring_ = false;
};

}  // namespace rdmakit::volume
