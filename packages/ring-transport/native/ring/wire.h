// What ring transports say to each other: frames in the ring, and 32-bit notifications.
//
// The ring. The receiver owns it; the sender writes frames into it with RDMA WRITE. Positions are
// 64-bit and only grow; a position's place is its remainder by the capacity, a power of two. Frames
// start on 64-byte units, and never cross the ring's end: a PAD fills what is left there.
//
// Notifications. Each tells either "n more units are published" or, with the top bit set, "this much
// is consumed" (credit). They travel as the immediate of a WRITE, or as a 4-byte SEND behind it.
//
// Credit. A sender may be at most C bytes (the capacity) and D notifications (the receive depth)
// ahead of the last credit. The receiver returns credit when C/2 bytes or D/2 notifications are
// consumed since the last one. Claims, with u < C/2 and v < D/2 the consumed but not yet credited:
//  1. A sender does not wait for ever. When all it published is consumed, it has C - u > C/2 bytes
//     and D - v >= 1 notifications. A frame is at most C/2 bytes, and so is a pad (a frame that needs
//     one is at most C/2, so the ring's end is nearer than that). The pad is published by itself, so
//     each of the two needs to fit alone.
//  2. Credits never run out of receives. Past the last credit that the sender has handled, it can
//     have sent C bytes and D notifications, so the receiver has sent at most C/(C/2) + D/(D/2) = 4
//     credits more. The sender keeps kReservedForCredit = 4 receives beside the D of its data, and
//     posts a receive again before it makes use of the credit that came with it.
//  3. Credits never wait for data in the send queue: kReservedForCredit of its entries are theirs.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace rdmakit::ring {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

inline constexpr uint32_t kUnit = 64;
inline constexpr uint32_t kUnitLog2 = 6;
inline constexpr uint32_t kMinLog2Capacity = 12;
inline constexpr uint32_t kMaxLog2Capacity = 26;
inline constexpr uint32_t kMinReceiveDepth = 8;
inline constexpr uint32_t kMaxReceiveDepth = 512;
inline constexpr uint32_t kReservedForCredit = 4;

enum class FrameType : uint16_t {
  data = 1,
  pad = 2,      // `length` covers the rest of the ring
  request = 3,  // answered by one response or error of the same correlation
  response = 4,
  error = 5,  // "CODE message" in UTF-8
  close = 6,  // the sender's last word but for responses
};

struct FrameHeader {
  uint32_t length;  // bytes of the payload, which follows
  uint16_t type;    // FrameType
  uint16_t flags;   // zero
  uint64_t correlation;
};
static_assert(sizeof(FrameHeader) == 16);

// Units that a payload takes, with its header.
constexpr uint32_t units_of(uint32_t length) {
  return static_cast<uint32_t>((uint64_t{length} + sizeof(FrameHeader) + kUnit - 1) >> kUnitLog2);
}

// Largest payload for a ring of `units`: a frame takes at most half of it (claim 1).
constexpr uint32_t max_payload(uint32_t units) {
  return units / 2 * kUnit - static_cast<uint32_t>(sizeof(FrameHeader));
}

// A credit is cumulative, modulo what its bits hold: no order of arrival or loss could confuse it, and
// its reader takes nothing from memory that the peer writes meanwhile.
inline constexpr uint32_t kCreditBit = 1u << 31;
inline constexpr uint32_t kCreditUnitBits = 21;  // 2^20 units outstanding at most, and zero
inline constexpr uint32_t kCreditUnitMask = (1u << kCreditUnitBits) - 1;
inline constexpr uint32_t kCreditNotificationMask = (1u << 10) - 1;

constexpr uint32_t encode_credit(uint64_t units, uint64_t notifications) {
  return kCreditBit | static_cast<uint32_t>(units & kCreditUnitMask) |
         static_cast<uint32_t>(notifications & kCreditNotificationMask) << kCreditUnitBits;
}

// What a peer can do wrong. The order is known to src/link.ts.
enum class Violation : uint32_t {
  published = 0,
  credit,
  frame_length,
  frame_type,
  pad,
  notification_size,
  none = 0xffffffff,
};

}  // namespace rdmakit::ring
