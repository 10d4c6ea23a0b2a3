// One request of a client, from its header to the last byte of its reply.
#pragma once

#include <array>
#include <cstdint>

#include "engine/limits.h"
#include "protocol/request.h"

namespace rdmakit::nbd {

struct RequestSlot {
  bool used = false;
  Request request{};
  uint64_t started = 0;  // ns
  SimpleReply header{};

  uint32_t error = kOk;      // ErrorCode
  uint32_t outstanding = 0;  // operations that belong to it
  bool received = false;     // header and payload are here
  bool issued = false;       // nothing more will be started for it
  bool replied = false;      // its reply is queued
  bool sent = false;         // its reply is sent, or nobody waits for it any more

  // READ. Its data are parts of kOutputChunk bytes; part p lies in chunk[p % window].
  // A READ of at most a page has window 0 and lies in the slot's own page.
  uint32_t cursor = 0;       // bytes issued
  uint32_t parts_ready = 0;  // leading parts that are complete
  uint32_t parts_sent = 0;   // leading parts whose chunk may be used again
  uint16_t window = 0;       // chunks held
  bool queued = false;       // in the queue of READs that have more to issue
  std::array<uint16_t, kWindow> chunk{};
  std::array<uint16_t, kWindow> pending{};  // operations on the part in that place

  void begin(const Request& what, uint64_t now) {
    *this = RequestSlot{};
    used = true;
    request = what;
    started = now;
  }
  bool is_read() const { return request.command == kCmdRead; }
  uint32_t parts() const { return (request.length + kOutputChunk - 1) / kOutputChunk; }
  bool streams() const { return is_read() && parts() > kWindow; }
  // Bytes of the reply, its header included.
  uint64_t reply_length() const { return sizeof header + (is_read() && error == kOk ? request.length : 0); }
  // Of the data, how many bytes from the start may be sent.
  uint32_t sendable() const {
    if (!streams()) return request.length;
    const uint64_t ready = uint64_t{parts_ready} * kOutputChunk;
    return ready < request.length ? static_cast<uint32_t>(ready) : request.length;
  }
};

}  // namespace rdmakit::nbd
