// One request of a client, from its header to the last byte of its reply.
#pragma once

#include <array>
#include <cstdint>

#include "protocol/request.h"
#include "volume/limits.h"

namespace rdmakit::nbd {

using namespace volume;

struct RequestSlot {
  // The longest head of a reply: an error with its text and its place.
  static constexpr size_t kHead = 128;
  static constexpr uint64_t kNowhere = UINT64_MAX;

  bool used = false;
  Request request{};     // its offset is one in the volume
  uint64_t started = 0;  // ns

  // Of a request of a ublk device: its buffer, which holds a WRITE's payload and takes all of a READ's data.
  uint8_t* memory = nullptr;
  uint16_t buffer = 0;

  uint32_t error = kOk;      // ErrorCode
  uint32_t outstanding = 0;  // operations that belong to it
  bool received = false;     // header and payload are here
  bool issued = false;       // nothing more will be started for it
  bool replied = false;      // its reply is queued
  bool sent = false;         // its reply is sent, or nobody waits for it any more

  // READ. Its data are parts of kOutputChunk bytes; part p lies in chunk[p % window].
  // A READ of at most a page has window 0 and lies in the slot's own page. One of a ublk device has window 0,
  // too.
  uint32_t cursor = 0;       // bytes issued
  uint32_t parts_ready = 0;  // leading parts that are complete
  uint32_t parts_sent = 0;   // leading parts whose chunk may be used again
  uint16_t window = 0;       // chunks held
  bool queued = false;       // in the queue of READs that have more to issue
  bool fragments = false;    // answered in chunks of data and of holes (structured replies)
  std::array<uint16_t, kWindow> chunk{};
  std::array<uint16_t, kWindow> pending{};  // operations on the part in that place
  // Of a READ that fragments: bit i of a part is set when the i-th page that it touches is a hole. Nobody
  // fills the memory of a hole.
  std::array<uint32_t, kWindow> holes{};

  uint64_t failed_at = kNowhere;      // in the volume
  uint32_t parts_before_failure = 0;  // of a READ that fragments and fails: what is sent all the same

  // The reply: a head, and data_length bytes of data. A READ that fragments has its chunks first, each with
  // a head of its own, and this head only when it fails.
  uint32_t data_length = 0;
  uint16_t head_length = 0;
  std::array<uint8_t, kHead> head;

  void begin(const Request& what, uint64_t now) {
    used = true;
    request = what;
    started = now;
    error = kOk;
    outstanding = cursor = parts_ready = parts_sent = parts_before_failure = data_length = 0;
    received = issued = replied = sent = queued = fragments = false;
    window = head_length = 0;
    memory = nullptr;
    failed_at = kNowhere;
    pending = {};
  }
  bool is_read() const { return request.command == kCmdRead; }
  uint32_t parts() const { return (request.length + kOutputChunk - 1) / kOutputChunk; }
  bool streams() const { return is_read() && parts() > kWindow; }
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

}  // namespace rdmakit::nbd
