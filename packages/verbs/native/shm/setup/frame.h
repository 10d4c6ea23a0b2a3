// The protocol over a connection's socket: one frame per packet (SOCK_SEQPACKET), with descriptors.
//
//   initiator                         responder
//   request  + area, table, eventfd ─►
//            ◄─ accept + area, table, eventfd   |  reject
//   announce … synchronized ──────────►         either may use the other's area from here on;
//            ◄────────── announce … synchronized  `established` follows the peer's `synchronized`
//   In one of these each says whether it may copy memory of the other that is not shared. announce, withdraw,
//   kick ◄►
//   end ◄────────────────────────────►          a hang-up without it is a peer's death
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <span>

#include "shm/mapping/shared_mapping.h"

namespace rdmakit::shm {

inline constexpr uint32_t kFrameMagic = 0x6b6d6472;  // "rdmk"
inline constexpr uint16_t kFrameVersion = 2;
inline constexpr size_t kMaxPrivateData = 512;

enum class FrameType : uint16_t {
  request = 1,
  accept,
  reject,
  announce,      // a segment: its descriptor is beside the frame
  withdraw,      // a segment
  synchronized,  // all segments of the time before the connection have been announced
  kick,          // a receive was posted that the peer was waiting for
  end,           // the queue pair is in the error state and touches nothing any more
};

struct FrameHeader {
  uint32_t magic;
  uint16_t version;
  FrameType type;
};

// Flags of a greeting: its content beyond the area and the region table.
inline constexpr uint32_t kGreetingEventFd = 1;  // the third descriptor: rung for arrivals
inline constexpr uint32_t kGreetingStamps = 2;   // arrivals are to carry the time
// Any other says something that this version does not do, as the 4 of shared receive queues, which were.
inline constexpr uint32_t kGreetingKnown = kGreetingEventFd | kGreetingStamps;
inline constexpr size_t kMaxDescriptors = 5;  // older versions send up to as many

struct GreetingFrame {  // request, accept, reject
  FrameHeader header;
  uint32_t receive_entries;  // AreaShape of the sender's area
  uint32_t receive_sges;
  uint32_t queue_pair;  // number
  uint32_t flags;       // kGreeting…
  uint32_t reserved[2];
  int32_t status;  // reject: 0, or an errno value when it was not the application that said no;
                   // accept: reach_of() the initiator
  uint32_t private_length;
  uint8_t private_data[kMaxPrivateData];
};

struct SegmentFrame {  // announce, withdraw
  FrameHeader header;
  uint32_t number;
  uint32_t generation;
};

// The error of the receiver of an end frame, as an asynchronous event reports it.
enum class Blame : uint8_t { nothing, access, request };

struct PlainFrame {  // synchronized, kick, end
  FrameHeader header;
  int32_t status;  // end: 0 is orderly, else an errno value; synchronized, of the initiator: reach_of() the
                   // responder
  Blame blame;     // end
  uint8_t reserved[3];
};

inline FrameHeader header_of(FrameType type) { return {kFrameMagic, kFrameVersion, type}; }

struct Frame {
  union {
    FrameHeader header;
    GreetingFrame greeting;
    SegmentFrame segment;
    PlainFrame plain;
  };
  std::array<UniqueFd, kMaxDescriptors> fds;
  // The sending process, as reported by the kernel.
  pid_t pid;
  uid_t uid;
  Frame() : greeting{}, pid(0), uid(static_cast<uid_t>(-1)) {}
};

// 0, or an errno value: EAGAIN also when the kernel has no memory, or too many descriptors in flight.
int send_frame(int socket, const void* frame, size_t length, std::span<const int> fds);
// 0, EAGAIN, EPIPE at the end of the stream, EPROTO for what is not a frame, EMFILE when its
// descriptors did not fit into this process, or another errno value.
int receive_frame(int socket, Frame& frame);

}  // namespace rdmakit::shm
