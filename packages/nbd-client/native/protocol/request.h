// Validates a client's request in the transmission phase, before any work is done.
#pragma once

#include <cstdint>
#include <string_view>

#include "protocol/wire.h"

namespace rdmakit::nbd {

// "Maximum payload": what every server should accept, and what we advertise.
inline constexpr uint32_t kMaxPayload = 32u << 20;
// The payload of a refused WRITE is read and dropped up to here, so that its error can be told; a
// longer one ends the connection.
inline constexpr uint32_t kMaxDrainedPayload = 64u << 20;

struct NbdRequest {
  uint16_t command;
  uint16_t flags;
  uint64_t cookie;
  uint64_t offset;
  uint32_t length;
};

// The unit in which the volume tracks state and zeroes without the network.
inline constexpr uint32_t kGranularity = 4096;

// A named part of the volume as a client sees it.
struct Export {
  uint64_t size = 0;
  uint16_t flags = 0;          // transmission flags, kFlag…
  uint64_t offset = 0;         // in the volume, a multiple of kGranularity
  uint32_t minimum_block = 1;  // requests that are not a multiple of it are refused
  bool read_only() const { return (flags & kFlagReadOnly) != 0; }
};

// The result of the handshake: the rules of the transmission phase.
struct Terms {
  Export exported;
  bool structured = false;       // READ is answered in chunks, errors with a text
  bool base_allocation = false;  // BLOCK_STATUS may be asked
  // A client out there, which may be slow or gone; else the kernel at the other end of a socketpair.
  bool remote = false;
  // A remote client has this long (ns) for the rest of a request that it has begun, plus a second for each
  // 256 KiB of payload; and for receiving the next byte of its answers. It may be idle for ever. 0: no limit.
  uint64_t stall = 0;
};

// A READ longer than this is answered in several chunks, so not with DF.
inline constexpr uint32_t kMaxUnfragmented = 1u << 20;

// False: the bytes are no request (bad magic), and the stream cannot be trusted any further.
bool decode_request(const uint8_t* bytes, NbdRequest& request);

// kOk, or the error to answer with. Pure: looks at nothing but its arguments.
ErrorCode validate_request(const NbdRequest& request, const Terms& terms);

// The message for people about an error of a request.
std::string_view describe(ErrorCode error);

// The one map from errno values to what the protocol may carry.
ErrorCode to_error_code(int error);

}  // namespace rdmakit::nbd
