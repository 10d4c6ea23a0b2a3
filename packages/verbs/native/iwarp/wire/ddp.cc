#include "iwarp/wire/ddp.h"

#include <cstring>

#include "iwarp/wire/byte_order.h"

namespace rdmakit::iwarp {
namespace {

constexpr uint8_t kTaggedFlag = 0x80;
constexpr uint8_t kLastFlag = 0x40;
constexpr uint8_t kDdpVersion = 1;
constexpr uint8_t kRdmapVersion = 1;  // RFC 5040 §4.1: 1 for the IETF's RDMAP

// Control word of a Terminate: which headers follow.
constexpr uint8_t kHasLength = 0x80;
constexpr uint8_t kHasDdpHeader = 0x40;
constexpr uint8_t kHasRdmapHeader = 0x20;

// "SEND" in the second half of an Immediate Data message.
constexpr uint32_t kBelongsToNextSend = 0x53454e44;

bool refuse(TerminateCode& why, TerminateCode code) {
  why = code;
  return false;
}

void parse_fields(const uint8_t* ulpdu, Segment& segment) {
  segment.tagged = ulpdu[0] & kTaggedFlag;
  segment.last = ulpdu[0] & kLastFlag;
  segment.opcode = static_cast<Opcode>(ulpdu[1] & 0x0f);
  if (segment.tagged) {
    segment.stag = load_be32(ulpdu + 2);
    segment.offset = load_be64(ulpdu + 6);
  } else {
    segment.invalidate = load_be32(ulpdu + 2);
    segment.queue = load_be32(ulpdu + 6);
    segment.sequence = load_be32(ulpdu + 10);
    segment.message_offset = load_be32(ulpdu + 14);
  }
}

}  // namespace

bool parse_segment(const uint8_t* ulpdu, size_t ulpdu_length, Segment& segment, TerminateCode& why) {
  if (ulpdu_length < 2) return refuse(why, terminate::rdmap_catastrophic);
  const size_t header = header_length(ulpdu[0]);
  if (ulpdu_length < header) return refuse(why, terminate::rdmap_catastrophic);
  parse_fields(ulpdu, segment);
  segment.header_length = static_cast<uint32_t>(header);
  segment.payload_length = static_cast<uint32_t>(ulpdu_length - header);
  if ((ulpdu[0] & 0x03) != kDdpVersion) {
    return refuse(why, segment.tagged ? terminate::ddp_tagged_version : terminate::ddp_untagged_version);
  }
  if (ulpdu[1] >> 6 != kRdmapVersion) return refuse(why, terminate::rdmap_version);

  uint32_t queue = 0;
  bool one_segment = false;
  size_t exact_length = 0;
  switch (segment.opcode) {
    case Opcode::write:
    case Opcode::read_response:
      if (!segment.tagged) return refuse(why, terminate::rdmap_opcode);
      return true;
    case Opcode::send:
    case Opcode::send_solicited:
    case Opcode::send_invalidate:
    case Opcode::send_solicited_invalidate:
      queue = kSendQueue;
      break;
    case Opcode::immediate:
    case Opcode::immediate_solicited:
      queue = kSendQueue;
      one_segment = true;
      exact_length = kImmediateLength;
      break;
    case Opcode::read_request:
      queue = kReadRequestQueue;
      one_segment = true;
      exact_length = kReadRequestLength;
      break;
    case Opcode::atomic_request:
      queue = kReadRequestQueue;
      one_segment = true;
      exact_length = kAtomicRequestLength;
      break;
    case Opcode::atomic_response:
      queue = kAtomicResponseQueue;
      one_segment = true;
      exact_length = kAtomicResponseLength;
      break;
    case Opcode::terminate:
      queue = kTerminateQueue;
      one_segment = true;
      break;
    default:
      return refuse(why, terminate::rdmap_opcode);
  }
  if (segment.tagged) return refuse(why, terminate::rdmap_opcode);
  if (segment.queue != queue) return refuse(why, terminate::ddp_queue);
  if (one_segment && (segment.message_offset != 0 || !segment.last)) {
    return refuse(why, terminate::ddp_message_offset);
  }
  if (exact_length != 0 && segment.payload_length != exact_length) {
    return refuse(
        why, segment.payload_length > exact_length ? terminate::ddp_too_long : terminate::rdmap_catastrophic);
  }
  if (segment.opcode == Opcode::terminate && segment.payload_length > kMaxTerminateLength) {
    return refuse(why, terminate::ddp_too_long);
  }
  return true;
}

size_t build_segment(uint8_t* to, const Segment& segment) {
  to[0] =
      static_cast<uint8_t>((segment.tagged ? kTaggedFlag : 0) | (segment.last ? kLastFlag : 0) | kDdpVersion);
  to[1] = static_cast<uint8_t>(kRdmapVersion << 6 | static_cast<uint8_t>(segment.opcode));
  if (segment.tagged) {
    store_be32(to + 2, segment.stag);
    store_be64(to + 6, segment.offset);
    return kTaggedHeaderLength;
  }
  store_be32(to + 2, segment.invalidate);
  store_be32(to + 6, segment.queue);
  store_be32(to + 10, segment.sequence);
  store_be32(to + 14, segment.message_offset);
  return kUntaggedHeaderLength;
}

ReadRequest parse_read_request(const uint8_t* payload) {
  ReadRequest request;
  request.sink_stag = load_be32(payload);
  request.sink_offset = load_be64(payload + 4);
  request.length = load_be32(payload + 12);
  request.source_stag = load_be32(payload + 16);
  request.source_offset = load_be64(payload + 20);
  return request;
}

void build_read_request(uint8_t* to, const ReadRequest& request) {
  store_be32(to, request.sink_stag);
  store_be64(to + 4, request.sink_offset);
  store_be32(to + 12, request.length);
  store_be32(to + 16, request.source_stag);
  store_be64(to + 20, request.source_offset);
}

bool parse_atomic_request(const uint8_t* payload, AtomicRequest& request) {
  const uint32_t operation = load_be32(payload) & 0x0f;  // behind 28 reserved bits
  request.operation = static_cast<AtomicOperation>(operation);
  request.identifier = load_be32(payload + 4);
  request.stag = load_be32(payload + 8);
  request.offset = load_be64(payload + 12);
  request.add_swap = load_be64(payload + 20);
  request.add_swap_mask = load_be64(payload + 28);
  request.compare = load_be64(payload + 36);
  request.compare_mask = load_be64(payload + 44);
  return request.operation == AtomicOperation::fetch_add ||
         request.operation == AtomicOperation::compare_swap;
}

uint64_t atomic_result(const AtomicRequest& request, uint64_t original) {
  const uint64_t mask = request.add_swap_mask;
  if (request.operation == AtomicOperation::fetch_add) {
    // Field by field: the last bit of each is added without its carry.
    return ((original & ~mask) + (request.add_swap & ~mask)) ^ ((original ^ request.add_swap) & mask);
  }
  if ((original ^ request.compare) & request.compare_mask) return original;
  return (original & ~mask) | (request.add_swap & mask);
}

void build_atomic_request(uint8_t* to, const AtomicRequest& request) {
  store_be32(to, static_cast<uint32_t>(request.operation));
  store_be32(to + 4, request.identifier);
  store_be32(to + 8, request.stag);
  store_be64(to + 12, request.offset);
  store_be64(to + 20, request.add_swap);
  store_be64(to + 28, request.add_swap_mask);
  store_be64(to + 36, request.compare);
  store_be64(to + 44, request.compare_mask);
}

AtomicResponse parse_atomic_response(const uint8_t* payload) {
  return {load_be32(payload), load_be64(payload + 4)};
}

void build_atomic_response(uint8_t* to, const AtomicResponse& response) {
  store_be32(to, response.identifier);
  store_be64(to + 4, response.original);
}

Immediate parse_immediate(const uint8_t* payload) {
  Immediate immediate;
  std::memcpy(&immediate.data, payload, sizeof immediate.data);
  immediate.belongs_to_next_send = load_be32(payload + 4) == kBelongsToNextSend;
  return immediate;
}

void build_immediate(uint8_t* to, const Immediate& immediate) {
  std::memcpy(to, &immediate.data, sizeof immediate.data);
  store_be32(to + 4, immediate.belongs_to_next_send ? kBelongsToNextSend : 0);
}

bool parse_terminate(const uint8_t* payload, size_t length, TerminateMessage& message) {
  if (length < 4) return false;
  message.code = {static_cast<uint8_t>(payload[0] >> 4), static_cast<uint8_t>(payload[0] & 0x0f), payload[1]};
  const uint8_t headers = payload[2];
  message.has_segment = false;
  size_t at = 4;
  if (headers & kHasLength) at += 2;
  if (!(headers & kHasDdpHeader) || length < at + 2) return true;
  if (length < at + header_length(payload[at])) return true;
  parse_fields(payload + at, message.segment);
  message.has_segment = true;
  return true;
}

size_t build_terminate(uint8_t* to, const TerminateMessage& message, const uint8_t* read_request) {
  to[0] = static_cast<uint8_t>(message.code.layer << 4 | message.code.type);
  to[1] = message.code.code;
  to[2] = 0;
  to[3] = 0;
  size_t length = 4;
  if (!message.has_segment) return length;
  to[2] = kHasLength | kHasDdpHeader;
  // DDP Segment Length: of the segment to blame, header and payload.
  store_be16(to + length,
             static_cast<uint16_t>(message.segment.header_length + message.segment.payload_length));
  length += 2;
  length += build_segment(to + length, message.segment);
  if (read_request != nullptr) {
    to[2] |= kHasRdmapHeader;
    std::memcpy(to + length, read_request, kReadRequestLength);
    length += kReadRequestLength;
  }
  return length;
}

}  // namespace rdmakit::iwarp
