// What lies in memory that two processes share. Whoever reads a field that the other side can write
// reads it once and checks what it got.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "software/limits.h"

namespace rdmakit::shm {

// One load, whatever the other side does meanwhile.
template <typename Value>
Value read_once(const Value& shared) {
  return *static_cast<const volatile Value*>(&shared);
}

using software::kMaxMessage;
using software::kMaxSge;
using software::kMaxWorkRequests;
inline constexpr uint32_t kMaxRegions = 64 * 1024;  // of a process; also the size of every region table

// Two cache lines: the adjacent-line prefetcher of x86 moves them together, so what one side writes is
// this far from what the other writes.
inline constexpr size_t kApart = 128;

enum class SlotKind : uint8_t {
  payload,           // a SEND whose bytes are in the slot
  placed,            // a SEND whose bytes are in the receive's buffers
  write,             // the immediate data of an RDMA WRITE
  length_error,      // a SEND too long for the receive; the connection is over
  protection_error,  // a receive whose buffers are not to be written; the connection is over
  wrong_key,         // a SEND that would invalidate what is no window of the connection; which is over
};

inline constexpr uint8_t kSlotImmediate = 1;
inline constexpr uint8_t kSlotSolicited = 2;
inline constexpr uint8_t kSlotInvalidate = 4;  // `immediate` is the key of a window of the receiver
inline constexpr uint32_t kSlotPayload = 112;

// The arrival of a message, one for each posted receive, in the same order. Written by the peer.
struct alignas(kApart) Slot {
  std::atomic<uint32_t> sequence;  // receive's number + 1 once the rest is valid; stored last
  uint32_t length;
  uint32_t immediate;  // network byte order; or a key
  SlotKind kind;
  uint8_t flags;
  uint16_t reserved;
  uint8_t payload[kSlotPayload];
};
static_assert(sizeof(Slot) == kApart);

struct ReceiveSge {
  uint64_t address;  // in the owner
  uint32_t length;
  uint32_t key;
};

// A posted receive. Written by the owner, read by the peer, which places long SENDs itself.
struct ReceiveEntry {
  uint32_t sge_count;
  uint32_t reserved;
  ReceiveSge sges[];
};

struct AreaHeader {
  // Owner, seldom.
  alignas(kApart) std::atomic<uint32_t> closed;
  std::atomic<uint32_t> floor;  // no receive posted so far is shorter than this
  // Owner, at every post_recv: how many receives were posted, modulo 2^32.
  alignas(kApart) std::atomic<uint32_t> posted;
  // Owner arms, peer disarms when it rings the eventfd.
  alignas(kApart) std::atomic<uint32_t> armed;
  // Peer: the key of the owner's region that it is about to touch, or 0.
  alignas(kApart) std::atomic<uint32_t> hazard;
  // Peer: 1 while it waits for a receive to be posted. The owner takes it back when it wakes the peer.
  alignas(kApart) std::atomic<uint32_t> starved;
};

inline constexpr uint32_t kArmedNot = 0;
inline constexpr uint32_t kArmedSolicited = 1;
inline constexpr uint32_t kArmedAny = 2;

// Where things are in an area for `entries` receives (a power of two) of up to `sges` pieces.
struct AreaShape {
  uint32_t entries = 0;
  uint32_t sges = 0;
  bool stamped = false;

  bool sane() const {
    return entries > 0 && entries <= kMaxWorkRequests && (entries & (entries - 1)) == 0 && sges > 0 &&
           sges <= kMaxSge;
  }
  size_t entry_stride() const { return (sizeof(ReceiveEntry) + sges * sizeof(ReceiveSge) + 63) / 64 * 64; }
  size_t slots_at() const { return sizeof(AreaHeader); }
  size_t entries_at() const { return slots_at() + entries * sizeof(Slot); }
  // When each arrival was published: std::atomic<uint64_t>, nanoseconds of CLOCK_MONOTONIC.
  size_t stamps_at() const { return entries_at() + entries * entry_stride(); }
  size_t size() const { return stamps_at() + (stamped ? entries * sizeof(uint64_t) : 0); }
};

// A region of a protection domain, or a window that is bound. Written by its owner; peers map the table
// read-only.
struct alignas(64) RegionEntry {
  std::atomic<uint32_t> key;  // 0: free. Stored last, and removed first
  uint32_t access;            // IBV_ACCESS_…, and kRegion
  uint32_t segment;           // kNoSegment: memory that is not shared
  uint32_t generation;        // of the segment
  uint64_t address;
  uint64_t length;
  uint64_t segment_address;  // of the segment's first byte, in the owner
  uint32_t queue_pair;       // of a window: the owner's, whose peer alone may use it
};

// In the access flags of a region, and in those that everybody but the user of a window asks for.
inline constexpr uint32_t kRegion = 1u << 31;

inline constexpr uint32_t kNoSegment = UINT32_MAX;
inline constexpr uint32_t kMaxSegments = 64 * 1024;

// A key is 16 bits of slot number and 16 random bits: a peer that guesses is wrong 65535 times of 65536
// and loses its connection each time.
inline uint32_t slot_of_key(uint32_t key) { return key >> 8 & 0xffff; }

}  // namespace rdmakit::shm
