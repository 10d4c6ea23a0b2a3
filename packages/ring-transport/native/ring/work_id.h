// The 64 bits of a work request id: whose it is, and all that its completion has to tell. Nothing is
// looked up in memory that another thread writes.
#pragma once

#include <cstdint>

namespace rdmakit::ring {

enum class Work : uint32_t { receive = 0, data = 1, control = 2, read = 3 };

// `low` of Work::control.
enum class Control : uint32_t { credit = 0, pong = 1, ping = 2 };

inline constexpr uint32_t kMaxConnections = 1u << 14;

// kind 2 | slot 14 | generation 8 | low 16 | high 24
struct WorkId {
  Work kind;
  uint32_t slot;
  uint32_t generation;  // so that a late completion is not taken for the slot's next connection's
  uint32_t low;         // receive, read: its index; data: work requests posted so far; control: Control
  uint32_t high;        // data: units posted so far

  constexpr uint64_t encode() const {
    return uint64_t{static_cast<uint32_t>(kind)} << 62 | uint64_t{slot & 0x3fff} << 48 |
           uint64_t{generation & 0xff} << 40 | uint64_t{low & 0xffff} << 24 | (high & 0xffffff);
  }
  static constexpr WorkId decode(uint64_t id) {
    return {static_cast<Work>(id >> 62), static_cast<uint32_t>(id >> 48) & 0x3fff,
            static_cast<uint32_t>(id >> 40) & 0xff, static_cast<uint32_t>(id >> 24) & 0xffff,
            static_cast<uint32_t>(id) & 0xffffff};
  }
};

// A connection's number in descriptors and calls.
constexpr uint32_t connection_number(uint32_t slot, uint32_t generation) { return generation << 16 | slot; }
constexpr uint32_t slot_of(uint32_t number) { return number & 0xffff; }
constexpr uint32_t generation_of(uint32_t number) { return number >> 16; }

}  // namespace rdmakit::ring
