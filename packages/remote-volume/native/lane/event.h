// Events from lanes and the acceptor to the control path. There is never one per request.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>

namespace rdmakit::volume {

struct Event {
  enum class Type : uint8_t {
    server_failed,
    connection_opened,
    connection_closed,
    lane_idle,
    handshake_refused,
    listener_failed,
    slab_refilled,
    refill_failed,
    synchronized,
    slabs_changed,  // of a thin volume: see Volume::calls_control
    page_repaired,
    page_lost,
    lane_yielded,
    backup_failed,
  };
  Type type = Type::lane_idle;
  uint32_t lane = 0;
  uint32_t server = 0;
  uint32_t slab = 0;
  uint64_t epoch = 0;
  uint64_t page = 0;                // of the volume
  int descriptor = -1;              // of lane_yielded: the receiver's; -1: the lane had no connection
  std::array<char, 120> subject{};  // peer or address
  std::array<char, 120> reason{};

  static Event about(Type type, uint32_t lane, const char* reason, uint32_t server = 0) {
    Event event;
    event.type = type;
    event.lane = lane;
    event.server = server;
    snprintf(event.reason.data(), event.reason.size(), "%s", reason);
    return event;
  }
};

}  // namespace rdmakit::volume
