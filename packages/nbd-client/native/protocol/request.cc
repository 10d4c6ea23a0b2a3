#include "protocol/request.h"

#include <cerrno>

namespace rdmakit::nbd {

bool decode_request(const uint8_t* bytes, NbdRequest& request) {
  RequestHeader header;
  std::memcpy(&header, bytes, sizeof header);
  if (header.magic != kRequestMagic) return false;
  request = {header.type, header.flags, header.cookie, header.offset, header.length};
  return true;
}

namespace {

// Written so that no sum can wrap.
bool within(const NbdRequest& request, uint64_t size) {
  return request.offset <= size && request.length <= size - request.offset;
}

ErrorCode validate_range(const NbdRequest& request, const Export& exported, ErrorCode past_the_end) {
  // The specification leaves length 0 open; like nbdkit we call it the client's mistake.
  if (request.length == 0) return kEinval;
  if (!within(request, exported.size)) return past_the_end;
  const uint64_t unit = exported.minimum_block;
  return request.offset % unit == 0 && request.length % unit == 0 ? kOk : kEinval;
}

// FUA is accepted on every command, as the specification asks of a server that advertises it.
uint16_t flags_allowed(uint16_t command, const Terms& terms) {
  const uint16_t advertised = terms.exported.flags;
  uint16_t flags = (advertised & kFlagSendFua) != 0 ? kCmdFlagFua : 0;
  if (command == kCmdRead && (advertised & kFlagSendDf) != 0) flags |= kCmdFlagDf;
  if (command == kCmdBlockStatus) flags |= kCmdFlagReqOne;
  if (command == kCmdWriteZeroes) {
    flags |= kCmdFlagNoHole;
    if ((advertised & kFlagSendFastZero) != 0) flags |= kCmdFlagFastZero;
  }
  return flags;
}

// Whole pages are zeroed in the page map. The rest of a page is a write like any other, and whether it can
// be spared (the page may hold nothing) would have to be found out first.
bool zeroes_fast(const NbdRequest& request) {
  return request.offset % kGranularity == 0 && request.length % kGranularity == 0;
}

}  // namespace

ErrorCode validate_request(const NbdRequest& request, const Terms& terms) {
  const Export& exported = terms.exported;
  if ((request.flags & ~flags_allowed(request.command, terms)) != 0) return kEinval;
  ErrorCode range;
  switch (request.command) {
    case kCmdRead:
      if (request.length > kMaxPayload) return kEinval;
      range = validate_range(request, exported, kEinval);
      if (range != kOk) return range;
      return (request.flags & kCmdFlagDf) != 0 && request.length > kMaxUnfragmented ? kEoverflow : kOk;
    case kCmdWrite:
      if (exported.read_only()) return kEperm;
      if (request.length > kMaxPayload) return kEinval;
      return validate_range(request, exported, kEnospc);
    case kCmdWriteZeroes:
      if (exported.read_only()) return kEperm;
      range = validate_range(request, exported, kEnospc);
      if (range != kOk) return range;
      return (request.flags & kCmdFlagFastZero) != 0 && !zeroes_fast(request) ? kEnotsup : kOk;
    case kCmdTrim:
      if (exported.read_only()) return kEperm;
      return validate_range(request, exported, kEinval);
    case kCmdCache:
      return validate_range(request, exported, kEinval);
    case kCmdBlockStatus:
      return terms.base_allocation ? validate_range(request, exported, kEinval) : kEinval;
    case kCmdFlush:
      return request.offset == 0 && request.length == 0 ? kOk : kEinval;
    case kCmdDisconnect:
      return kOk;
    default:
      return kEinval;
  }
}

std::string_view describe(ErrorCode error) {
  switch (error) {
    case kOk:
      return "no error";
    case kEperm:
      return "the export is read-only";
    case kEio:
      return "the memory behind it is lost or out of reach";
    case kEnomem:
      return "out of memory";
    case kEinval:
      return "invalid request: command, flags, alignment, or beyond the end";
    case kEnospc:
      return "beyond the end of the export";
    case kEoverflow:
      return "too long for one chunk";
    case kEnotsup:
      return "not faster than a write: not whole pages";
    case kEshutdown:
      return "the server is shutting down";
  }
  return "unknown error";
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
