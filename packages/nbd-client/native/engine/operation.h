// One RDMA work request of a lane, with what must be known when it completes.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "engine/page_map.h"

namespace rdmakit::nbd {

inline constexpr uint16_t kNone = 0xffff;

struct Operation {
  enum class Kind : uint8_t {
    read,       // slab -> output buffer
    write,      // payload -> slab
    zero_edge,  // zeros -> part of a page of the slab (WRITE_ZEROES)
    zero_fill,  // zeros -> a whole claimed page, before a part of it is written; belongs to no request
    fence,      // confirms the writes before it (see RdmaQueue)
  };
  enum class Stage : uint8_t { free, waiting, chained, posted };

  uint16_t index = 0;  // wr_id; constant
  Kind kind = Kind::read;
  Stage stage = Stage::free;
  uint16_t request = kNone;  // slot
  uint16_t part = 0;         // of a READ: place in its window
  uint16_t chunk = kNone;    // input chunk that it holds

  uint64_t offset = 0;  // in the volume
  uint32_t length = 0;
  uint8_t* memory = nullptr;

  // A claim over whole pages: offset and length say which.
  bool claimed = false;
  PageState claimed_from = PageState::unset;
  uint32_t slab_version = 0;

  uint16_t server = 0;
  uint64_t deadline = 0;
  uint16_t older = kNone;  // neighbours in the order of deadlines, while posted and not given up
  uint16_t newer = kNone;
  bool timed = false;

  // A write completes for its request when its fence does.
  uint16_t fence = kNone;
  uint16_t next_fenced = kNone;  // of a fence: the first; of a write: the next under the same fence
  bool completed = false;
  bool succeeded = false;

  ibv_send_wr wr{};
  ibv_sge sge{};
};

}  // namespace rdmakit::nbd
