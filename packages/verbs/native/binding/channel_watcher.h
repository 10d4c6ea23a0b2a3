// One thread that waits on the completion channels JavaScript watches.
#pragma once

#include <napi.h>

#include <cstdint>

#include "rdmakit/handle.h"

namespace rdmakit::binding {

// Calls `wake` (with the CQ's external made by `cq_context`) for each event of `channel`, until the
// watch ends. 0 and errno set on failure.
uint64_t watch_channel(ibv_comp_channel* channel, const DataPathVerbs* verbs, Napi::ThreadSafeFunction wake);
// After its return the watcher does not touch the channel again.
void unwatch_channel(uint64_t watch);

}  // namespace rdmakit::binding
