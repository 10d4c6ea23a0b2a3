// DDP segment headers (RFC 5041 §4) with the RDMAP fields that travel in them (RFC 5040 §4, RFC 7306).
// Pure: bytes in, values out.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmakit::iwarp {

enum class Opcode : uint8_t {
  write = 0,
  read_request = 1,
  read_response = 2,
  send = 3,
  send_invalidate = 4,
  send_solicited = 5,
  send_solicited_invalidate = 6,
  terminate = 7,
  immediate = 8,            // RFC 7306
  immediate_solicited = 9,  // RFC 7306
  atomic_request = 10,      // RFC 7306
  atomic_response = 11,     // RFC 7306
};

// Untagged queues, RFC 5040; Immediate Data shares queue 0 with Send, Atomic Requests share queue 1 with
// Read Requests (RFC 7306).
inline constexpr uint32_t kSendQueue = 0;
inline constexpr uint32_t kReadRequestQueue = 1;
inline constexpr uint32_t kTerminateQueue = 2;
inline constexpr uint32_t kAtomicResponseQueue = 3;

inline constexpr size_t kTaggedHeaderLength = 14;
inline constexpr size_t kUntaggedHeaderLength = 18;
inline constexpr size_t kMaxHeaderLength = kUntaggedHeaderLength;
inline constexpr size_t kReadRequestLength = 28;
inline constexpr size_t kImmediateLength = 8;
inline constexpr size_t kAtomicRequestLength = 52;
inline constexpr size_t kAtomicResponseLength = 12;

// The content of a Terminate message, RFC 5040 §4.8 and RFC 5041 §8.
struct TerminateCode {
  uint8_t layer = 0;
  uint8_t type = 0;
  uint8_t code = 0;
  bool operator==(const TerminateCode&) const = default;
};

// The peer's STag, range or right: of RDMAP, or of DDP's tagged buffers.
constexpr bool is_protection_error(TerminateCode code) { return code.layer <= 1 && code.type == 1; }

namespace terminate {
inline constexpr TerminateCode local_catastrophic{0, 0, 0};
// RDMAP remote protection errors
inline constexpr TerminateCode rdmap_invalid_stag{0, 1, 0x00};
inline constexpr TerminateCode rdmap_bounds{0, 1, 0x01};
inline constexpr TerminateCode rdmap_access{0, 1, 0x02};
inline constexpr TerminateCode rdmap_not_associated{0, 1, 0x03};
inline constexpr TerminateCode rdmap_wrap{0, 1, 0x04};
inline constexpr TerminateCode rdmap_cannot_invalidate{0, 1, 0x09};
// RDMAP remote operation errors
inline constexpr TerminateCode rdmap_version{0, 2, 0x05};
inline constexpr TerminateCode rdmap_opcode{0, 2, 0x06};
inline constexpr TerminateCode rdmap_catastrophic{0, 2, 0x07};
// DDP tagged buffer errors
inline constexpr TerminateCode ddp_invalid_stag{1, 1, 0x00};
inline constexpr TerminateCode ddp_bounds{1, 1, 0x01};
inline constexpr TerminateCode ddp_not_associated{1, 1, 0x02};
inline constexpr TerminateCode ddp_wrap{1, 1, 0x03};
inline constexpr TerminateCode ddp_tagged_version{1, 1, 0x04};
// DDP untagged buffer errors
inline constexpr TerminateCode ddp_queue{1, 2, 0x01};
inline constexpr TerminateCode ddp_no_buffer{1, 2, 0x02};
inline constexpr TerminateCode ddp_sequence{1, 2, 0x03};
inline constexpr TerminateCode ddp_message_offset{1, 2, 0x04};
inline constexpr TerminateCode ddp_too_long{1, 2, 0x05};
inline constexpr TerminateCode ddp_untagged_version{1, 2, 0x06};
// LLP: MPA
inline constexpr TerminateCode mpa_crc{2, 0, 0x02};
inline constexpr TerminateCode mpa_marker{2, 0,
                                          0x03};  // and the length field disagree on where an FPDU begins
inline constexpr TerminateCode mpa_insufficient_ird{2, 0, 0x06};  // RFC 6581
inline constexpr TerminateCode mpa_no_rtr{2, 0, 0x07};            // RFC 6581
}  // namespace terminate

struct Segment {
  bool tagged = false;
  bool last = false;
  Opcode opcode = Opcode::write;
  uint32_t stag = 0;            // tagged
  uint64_t offset = 0;          // tagged
  uint32_t invalidate = 0;      // untagged: STag of the Invalidate opcodes
  uint32_t queue = 0;           // untagged
  uint32_t sequence = 0;        // untagged
  uint32_t message_offset = 0;  // untagged
  uint32_t header_length = 0;
  uint32_t payload_length = 0;
};

// Length of the header that starts with this byte.
constexpr size_t header_length(uint8_t control) {
  return (control & 0x80) ? kTaggedHeaderLength : kUntaggedHeaderLength;
}

// Reads a header from a ULPDU of `ulpdu_length` bytes, of which at least min(header, ulpdu_length) are
// there, and checks whatever can be told from the header alone: versions, opcode against buffer model
// and queue, lengths of fixed-size messages. False: `why` is the Terminate to answer with.
bool parse_segment(const uint8_t* ulpdu, size_t ulpdu_length, Segment& segment, TerminateCode& why);

// Writes the header of `segment`; payload_length is ignored. Returns the header's length.
size_t build_segment(uint8_t* to, const Segment& segment);

// RDMA Read Request, RFC 5040 §4.4.
struct ReadRequest {
  uint32_t sink_stag = 0;
  uint64_t sink_offset = 0;
  uint32_t length = 0;
  uint32_t source_stag = 0;
  uint64_t source_offset = 0;
};
ReadRequest parse_read_request(const uint8_t* payload);
void build_read_request(uint8_t* to, const ReadRequest& request);

// Atomic Request, RFC 7306 §5.
enum class AtomicOperation : uint8_t { fetch_add = 0, compare_swap = 2 };
struct AtomicRequest {
  AtomicOperation operation = AtomicOperation::fetch_add;
  uint32_t identifier = 0;
  uint32_t stag = 0;
  uint64_t offset = 0;
  uint64_t add_swap = 0;
  // For an add: 1 where a field of the sum ends, so that nothing is carried beyond. For a swap: 1 where the
  // bits are replaced.
  uint64_t add_swap_mask = 0;
  uint64_t compare = 0;
  uint64_t compare_mask = 0;  // 1 where the bits are compared
};
// False when the operation is none that the RFC names.
bool parse_atomic_request(const uint8_t* payload, AtomicRequest& request);
// The contents of the memory afterwards if they were `original` before.
uint64_t atomic_result(const AtomicRequest& request, uint64_t original);
void build_atomic_request(uint8_t* to, const AtomicRequest& request);

struct AtomicResponse {
  uint32_t identifier = 0;
  uint64_t original = 0;  // what the memory held before
};
AtomicResponse parse_atomic_response(const uint8_t* payload);
void build_atomic_response(uint8_t* to, const AtomicResponse& response);

// Immediate Data, RFC 7306: 8 octets, of which verbs use the first four, as they are.
//
// The RFC binds immediate data to no message; verbs bind it to one. Behind a WRITE that is what every
// receiver makes of it. For a SEND the Immediate Data goes first and says in its last four octets that
// it belongs to the SEND behind it, so that both take one receive and make one completion. A receiver
// that knows nothing of this sees two messages.
struct Immediate {
  uint32_t data = 0;  // in network byte order, like ibv_send_wr's
  bool belongs_to_next_send = false;
};
Immediate parse_immediate(const uint8_t* payload);
void build_immediate(uint8_t* to, const Immediate& immediate);

// RDMAP Terminate, RFC 5040 §4.8: control word, then optionally the length and headers of the
// segment that is to blame.
struct TerminateMessage {
  TerminateCode code;
  bool has_segment = false;
  Segment segment;
};
inline constexpr size_t kMaxTerminateLength = 4 + 2 + kMaxHeaderLength + kReadRequestLength;
// Parses an arriving message: false if it is too short to be valid.
bool parse_terminate(const uint8_t* payload, size_t length, TerminateMessage& message);
// `read_request` is the payload of a Read Request to blame, else nullptr. Returns the length.
size_t build_terminate(uint8_t* to, const TerminateMessage& message, const uint8_t* read_request);

}  // namespace rdmakit::iwarp
