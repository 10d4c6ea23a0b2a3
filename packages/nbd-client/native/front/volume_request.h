// The volume's operation for a request of the protocol, which was validated.
#pragma once

#include <cerrno>

#include "protocol/request.h"
#include "request/request.h"

namespace rdmakit::nbd {

// Answers of a volume are errno values, and so are the numbers of the protocol.
static_assert(kEperm == EPERM && kEio == EIO && kEnomem == ENOMEM && kEinval == EINVAL && kEnospc == ENOSPC &&
              kEoverflow == EOVERFLOW && kEnotsup == EOPNOTSUPP && kEshutdown == ESHUTDOWN);

// FUA needs no work on any request: see RequestKind::flush. `error`: the error with which it is refused, or
// 0.
inline volume::Request to_volume(const NbdRequest& request, const Terms& terms, int error) {
  volume::Request asked;
  asked.offset = request.offset + (error == 0 ? terms.exported.offset : 0);
  asked.length = request.length;
  switch (request.command) {
    case kCmdRead:
      asked.kind = volume::RequestKind::read;
      asked.fragments = terms.structured && (request.flags & kCmdFlagDf) == 0;
      break;
    case kCmdWrite:
      asked.kind = volume::RequestKind::write;
      break;
    case kCmdWriteZeroes:
      asked.kind = volume::RequestKind::write_zeroes;
      asked.keeps_place = (request.flags & kCmdFlagNoHole) != 0;
      break;
    case kCmdTrim:
      asked.kind = volume::RequestKind::trim;
      asked.keeps_place = (request.flags & kCmdFlagNoHole) != 0;
      break;
    case kCmdCache:
      asked.kind = volume::RequestKind::cache;
      break;
    case kCmdBlockStatus:
      asked.kind = volume::RequestKind::describe;
      break;
    default:
      asked.kind = volume::RequestKind::flush;
  }
  return asked;
}

}  // namespace rdmakit::nbd
