// A work completion as JavaScript reads it: fixed places in a completion array (src/completion-array.ts).
#pragma once

#include <cstdint>

#include "binding/objects.h"

namespace rdmakit::binding {

struct CompletionEntry {
  uint64_t work_request_id;  // 0
  uint32_t status;           // 8
  uint32_t opcode;           // 12
  uint32_t byte_length;      // 16
  uint32_t immediate;        // 20, host byte order; or the key that was invalidated
  uint32_t flags;            // 24, IBV_WC_…
  uint32_t queue_pair;       // 28
  uint32_t vendor_error;     // 32
  uint32_t source;           // 36, queue pair number of a datagram's sender
  uint64_t timestamp;        // 40
  uint64_t reserved[2];
};
static_assert(sizeof(CompletionEntry) == 64);

// Takes up to `max` completions, at most kMaxPoll. Their number, or -1 when the queue is broken.
inline constexpr int kMaxPoll = 256;
int poll_into(CqObject& queue, int max, CompletionEntry* entries);

}  // namespace rdmakit::binding
