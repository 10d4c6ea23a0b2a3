// The protocol of ring transports: frames in the ring, and 32-bit notifications.
//
// The ring. The receiver owns it; the sender writes frames into it with RDMA WRITE. Positions are
// 64-bit and only grow; a position's place is its remainder by the capacity, a power of two. Frames start on
// units, and never cross the ring's end: a PAD fills the rest there. The length of a unit and the layout of a
// frame's header depend on the version (frame_format.h).
//
// Notifications. Each is a 32-bit word: "n more units are published", a credit ("this much is consumed"),
// or a ping. They travel as the immediate of a WRITE, or as a 4-byte SEND behind it.
//
// Windows. From version 4 on a ring may be several windows (windows.h); C is the capacity of the one that an
// end is in. A sender that has no room for a frame leaves its window by a GROW frame, for which it has kept a
// unit, and has all of a larger one at once: places in two windows are different memory, so nothing that is
// not consumed is overwritten. The receiver follows when it reads the GROW. Positions, credit and
// notifications go on as they are.
//
// Credit. A sender may be at most C bytes (the capacity) and D notifications (the receive depth)
// ahead of the last credit. The receiver returns credit when C/2 bytes or D/2 notifications are
// consumed since the last one. Bytes are credited in grains of 64, so that the bits suffice for the largest
// ring in units of 16: a partly consumed grain is credited later. A ping is answered at once by repeating the
// last credit: every other credit exceeds the one before it, so the answer (the pong) is recognized by its
// lack of an increase. The sender of a ping waits for the pong before it pings again. Claims, with u < C/2
// and v < D/2 the consumed but not yet credited bytes and notifications (the whole grains of u are C/2 - 64
// at most, because at C/2 they are credited, and the part of one is less than 64):
//  1. A sender does not wait for ever. In a window that is not the last it does not wait for bytes. In the
//     last, when all it published is consumed, it has C - u > C/2 bytes and D - v >= 1 notifications. A frame
//     is at most C/2 bytes, and so is a pad (a frame that needs one is at most C/2, so the ring's end is
//     nearer than that). The pad is published by itself, so each of the two needs to fit alone.
//  2. Notifications never run out of receives. Past the last credit that the sender has handled, it can
//     have sent C bytes and D notifications, so the receiver has sent at most C/(C/2) + D/(D/2) = 4
//     credits more, and one for each GROW: what was sent in a window that was left is at most that window's C
//     past the same credit, so of the credits that are due by bytes and end there, a second one takes all of
//     it and is the first of all. Besides these there are one ping and one pong each way at most. A side
//     keeps kReceivesForControl = 4 + 7 + 1 + 1 receives beside the D of the peer's data. It posts a receive
//     again before it makes use of the credit or the pong that came with it, before it answers the ping that
//     did, and, for those of data, before it returns the credit that counts them. No sooner is needed.
//  3. Control never waits for data in the send queue: kReservedForControl of its entries are for four
//     credits, a pong and a ping. A fifth credit, or a second pong, waits for the completion of one.
//  4. Nor does any of that wait for READs, whose entries are kReservedForReads others. A READ needs nothing
//     of the ring, so a request that the device delays behind one waits no longer than the READ takes.
#pragma once

#include <cstdint>

namespace rdmakit::ring {

inline constexpr uint32_t kGrainLog2 = 6;
inline constexpr uint32_t kMinLog2Capacity = 12;
inline constexpr uint32_t kMaxLog2Capacity = 26;
inline constexpr uint32_t kMinReceiveDepth = 8;
inline constexpr uint32_t kMaxReceiveDepth = 512;
inline constexpr uint32_t kCreditsInFlight = 4;
inline constexpr uint32_t kReservedForControl = kCreditsInFlight + 2;  // and a pong, and a ping
inline constexpr uint32_t kMaxWindows = 8;
inline constexpr uint32_t kReceivesForControl = kReservedForControl + kMaxWindows - 1;
inline constexpr uint32_t kReservedForReads = 4;
inline constexpr uint32_t kMaxRead = 1u << 30;  // bytes of one READ; devices take 2^31 at least

enum class FrameType : uint32_t {
  data = 1,
  pad = 2,      // `length` covers the rest of the ring
  request = 3,  // answered by one response or error of the same correlation
  response = 4,
  error = 5,  // "CODE message" in UTF-8
  close = 6,  // the sender's last word but for responses
  // Types of a large message, which the receiver reads from the sender's memory.
  offer = 7,    // where it is
  settled = 8,  // the offer of that correlation has been read, or why not
  // Types of a message that is longer than a frame, from version 3 on; src/receiving/assembly.ts has the
  // rules.
  part = 9,   // all but the end; the correlation is the bytes of the whole, the immediate its type
  last = 10,  // its end, with what a frame of that type carries; empty when it was given up
  // From version 4 on: the frames behind it are in the window that its immediate names (windows.h).
  grow = 11,
};

// A credit is cumulative, modulo what its bits hold: no order of arrival or loss could confuse it, and
// its reader takes nothing from memory that the peer writes meanwhile.
inline constexpr uint32_t kCreditBit = 1u << 31;
inline constexpr uint32_t kCreditGrainBits = 21;  // 2^20 grains outstanding at most, and zero
inline constexpr uint32_t kCreditGrainMask = (1u << kCreditGrainBits) - 1;
inline constexpr uint32_t kCreditNotificationMask = (1u << 10) - 1;

constexpr uint32_t encode_credit(uint64_t grains, uint64_t notifications) {
  return kCreditBit | static_cast<uint32_t>(grains & kCreditGrainMask) |
         static_cast<uint32_t>(notifications & kCreditNotificationMask) << kCreditGrainBits;
}

// No count of units is this large: the maximum is 2^22.
inline constexpr uint32_t kPing = 1u << 30;

// Violations by a peer. src/setup/link-errors.ts depends on the order.
enum class Violation : uint32_t {
  published = 0,
  credit,
  frame_length,
  frame_type,
  pad,
  notification_size,
  ping,
  grow,
  none = 0xffffffff,
};

}  // namespace rdmakit::ring
