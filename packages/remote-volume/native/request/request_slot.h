// One request, from its arrival until its answer is out.
#pragma once

#include <array>
#include <cstdint>

#include "request/request.h"
#include "volume/limits.h"

namespace rdmakit::volume {

struct RequestSlot {
  static constexpr uint64_t kNowhere = UINT64_MAX;

  bool used = false;
  Request request{};
  uint64_t started = 0;  // ns

  // When it began: see RequestExecutor::first_lost.
  uint64_t failures = 0;   // Volume::last_failure
  bool backed_up = false;  // the backup worked

  int error = 0;             // the answer, an errno value
  uint32_t outstanding = 0;  // operations that belong to it
  bool received = false;     // all of it is here, its payload too
  bool issued = false;       // nothing more will be started for it
  bool answered = false;     // the front was given its answer, and sends it
  bool released = false;     // its answer is sent, or no longer wanted
  bool failed_late = false;  // after it was answered

  // READ. Its data are parts of kOutputChunk bytes; part p lies in chunk[p % window].
  // A READ of at most a page has window 0 and lies in the slot's own page. One with memory of its own has
  // window 0, too.
  uint32_t cursor = 0;       // bytes issued
  uint32_t parts_ready = 0;  // leading parts that are complete
  uint32_t parts_sent = 0;   // leading parts whose chunk may be used again; the front says so
  uint16_t window = 0;       // chunks held
  bool queued = false;       // in the queue of READs that have more to issue
  std::array<uint16_t, kWindow> chunk{};
  std::array<uint16_t, kWindow> pending{};  // operations on the part in that place
  // For a READ that fragments: bit i of a part is set if the i-th page that it touches is a hole. The memory
  // of a hole is not filled.
  std::array<uint32_t, kWindow> holes{};

  uint64_t failed_at = kNowhere;      // in the volume
  uint32_t parts_before_failure = 0;  // of a READ that fragments and fails: the parts that are still sent

  void begin(const Request& what, uint64_t now) {
    used = true;
    request = what;
    started = now;
    error = 0;
    outstanding = cursor = parts_ready = parts_sent = parts_before_failure = 0;
    received = issued = answered = released = failed_late = queued = false;
    window = 0;
    failed_at = kNowhere;
    pending = {};
  }
  // Bytes, or zeros in their place.
  bool writes() const {
    return request.kind == RequestKind::write || request.kind == RequestKind::write_zeroes;
  }
  bool is_read() const { return request.kind == RequestKind::read; }
  uint32_t parts() const { return (request.length + kOutputChunk - 1) / kOutputChunk; }
  // Its data are more than the lane has chunks for: they are answered as they come.
  bool streams() const { return is_read() && request.memory == nullptr && parts() > kWindow; }
  uint32_t part_length(uint32_t part) const {
    const uint32_t left = request.length - part * kOutputChunk;
    return left < kOutputChunk ? left : kOutputChunk;
  }
  // Place of the hole bits of a part.
  uint32_t& holes_of(uint32_t part) { return holes[window == 0 ? 0 : part % window]; }
};

// The page whose hole bit counts for byte `within` of a part.
inline uint32_t page_of_part(const RequestSlot& slot, uint32_t part, uint32_t within) {
  const uint64_t begin = slot.request.offset + uint64_t{part} * kOutputChunk;
  return static_cast<uint32_t>((begin % kPage + within) / kPage);
}

}  // namespace rdmakit::volume
