#include "protocol/request.h"

#include <cerrno>

namespace rdmakit::nbd {

bool decode_request(const uint8_t* bytes, Request& request) {
  RequestHeader header;
  std::memcpy(&header, bytes, sizeof header);
  if (header.magic != kRequestMagic) return false;
  request = {header.type, header.flags, header.cookie, header.offset, header.length};
  return true;
}

namespace {

// Written so that no sum can wrap.
bool within(const Request& request, uint64_t size) {
  return request.offset <= size && request.length <= size - request.offset;
}

ErrorCode validate_range(const Request& request, uint64_t size, ErrorCode past_the_end) {
  // The specification leaves length 0 open; like nbdkit we call it the client's mistake.
  if (request.length == 0) return kEinval;
  return within(request, size) ? kOk : past_the_end;
}

// FUA is accepted on every command, as the specification asks of a server that advertises it.
uint16_t flags_allowed(uint16_t command, uint16_t advertised) {
  uint16_t flags = (advertised & kFlagSendFua) != 0 ? kCmdFlagFua : 0;
  if (command == kCmdWriteZeroes) {
    flags |= kCmdFlagNoHole;
    if ((advertised & kFlagSendFastZero) != 0) flags |= kCmdFlagFastZero;
  }
  return flags;
}

}  // namespace

ErrorCode validate_request(const Request& request, const Export& exported) {
  if ((request.flags & ~flags_allowed(request.command, exported.flags)) != 0) return kEinval;
  switch (request.command) {
    case kCmdRead:
      if (request.length > kMaxPayload) return kEinval;
      return validate_range(request, exported.size, kEinval);
    case kCmdWrite:
      if (exported.read_only()) return kEperm;
      if (request.length > kMaxPayload) return kEinval;
      return validate_range(request, exported.size, kEnospc);
    case kCmdWriteZeroes:
      if (exported.read_only()) return kEperm;
      return validate_range(request, exported.size, kEnospc);
    case kCmdTrim:
      if (exported.read_only()) return kEperm;
      return validate_range(request, exported.size, kEinval);
    case kCmdFlush:
      return request.offset == 0 && request.length == 0 ? kOk : kEinval;
    case kCmdDisconnect:
      return kOk;
    default:
      return kEinval;
  }
}

ErrorCode to_error_code(int error) {
  switch (error) {
    case 0:
      return kOk;
    case EPERM:
    case EACCES:
    case EROFS:
      return kEperm;
    case ENOMEM:
      return kEnomem;
    case EINVAL:
      return kEinval;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return kEnospc;
    case ESHUTDOWN:
      return kEshutdown;
    default:
      return kEio;
  }
}

}  // namespace rdmakit::nbd
