// A front's request to a volume. The front has checked that it is within the volume and permitted.
#pragma once

#include <cstdint>

#include "volume/limits.h"

namespace rdmakit::volume {

enum class RequestKind : uint8_t {
  read,
  write,
  write_zeroes,  // as a WRITE of zeros; whole pages cost no network
  trim,          // whole pages become zeros; their edges stay as they are
  flush,         // nothing to do: no WRITE is answered before it is where it must be
  cache,         // nothing to do: a closer copy would have to be invalidated by other lanes
  describe,      // the front reports the allocation (Volume::allocation)
};

struct Request {
  RequestKind kind = RequestKind::flush;
  uint64_t offset = 0;  // in the volume
  uint32_t length = 0;
  // The destination of a READ's data, inside the lane's memory regions; nullptr: chunks of the lane, see
  // RequestSlot. A WRITE brings its payload by RequestExecutor::write().
  uint8_t* memory = nullptr;
  // The front's buffer that `memory` lies in, pinned until the answer is out (see BufferPins).
  uint16_t buffer = kNone;
  bool fragments = false;    // of a READ: it is answered in runs of data and of holes, and the memory of
                             // holes is not filled
  bool keeps_place = false;  // of WRITE_ZEROES: the pages are to be no holes
};

}  // namespace rdmakit::volume
