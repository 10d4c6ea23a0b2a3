// What a client may ask in the transmission phase, decided before any work is done.
#pragma once

#include <cstdint>

#include "protocol/wire.h"

namespace rdmakit::nbd {

// "Maximum payload": what every server should accept, and what we advertise.
inline constexpr uint32_t kMaxPayload = 32u << 20;
// The payload of a refused WRITE is read and dropped up to here, so that its error can be told; a
// longer one ends the connection.
inline constexpr uint32_t kMaxDrainedPayload = 64u << 20;

struct Request {
  uint16_t command;
  uint16_t flags;
  uint64_t cookie;
  uint64_t offset;
  uint32_t length;
};

struct Export {
  uint64_t size = 0;
  uint16_t flags = 0;  // transmission flags, kFlag…
  bool read_only() const { return (flags & kFlagReadOnly) != 0; }
};

// False: the bytes are no request (bad magic), and the stream cannot be trusted any further.
bool decode_request(const uint8_t* bytes, Request& request);

// kOk, or the error to answer with. Pure: looks at nothing but its arguments.
ErrorCode validate_request(const Request& request, const Export& exported);

// The one map from errno values to what the protocol may carry.
ErrorCode to_error_code(int error);

}  // namespace rdmakit::nbd
