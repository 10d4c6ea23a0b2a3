// One RDMA work request of a lane, with what must be known when it completes: a READ, or a WRITE to one
// replica, as a part of an Operation; or a fence.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "volume/limits.h"

namespace rdmakit::volume {

struct WorkRequest {
  enum class Kind : uint8_t {
    read,
    write,
    fence,  // confirms the writes before it (see RdmaQueue)
  };

  uint16_t index = 0;  // constant
  Kind kind = Kind::read;
  bool posted = false;         // or refused by the device, until it is over
  uint16_t operation = kNone;  // that it is a part of; a fence is of none
  uint16_t server = 0;
  bool live = false;       // its replica was when it was chained
  bool abandoned = false;  // given up: what counts is decided, its memory is not free yet
  bool flushing = false;   // a READ whose server failed: it moves to another one when its flush arrives
  uint8_t epoch = 0;       // parity of the volume's epoch
  uint64_t deadline = 0;
  uint16_t older = kNone;  // neighbours in the order of deadlines, while posted and not given up
  uint16_t newer = kNone;
  bool timed = false;

  // A write completes for its operation when its fence does.
  uint16_t fence = kNone;
  uint16_t next_fenced = kNone;  // of a fence: the first; of a write: the next under the same fence
  bool completed = false;
  bool succeeded = false;

  ibv_send_wr wr{};  // wr_id: the serial number of the connection, and behind it (16 bits) the index
  ibv_sge sge{};
};

inline uint16_t index_of(uint64_t wr_id) { return static_cast<uint16_t>(wr_id); }
inline uint16_t index_of(const ibv_send_wr* request) {
  return request == nullptr ? kNone : index_of(request->wr_id);
}

}  // namespace rdmakit::volume
