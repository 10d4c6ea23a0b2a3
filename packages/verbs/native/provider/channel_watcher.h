// One thread that waits on the completion channels JavaScript watches.
#pragma once

#include <cstdint>
#include <functional>

#include "rdmakit/handle.h"

namespace rdmakit {

// An event of a queue, and 0; or nullptr and an errno value, once: the channel cannot be read any more, for
// its device is gone. Called on the watcher's thread.
using ChannelSink = std::function<void(ibv_cq* cq, int error)>;

// Calls `told` for each event of `channel`, until the watch ends. 0 and errno set on failure.
uint64_t watch_channel(ibv_comp_channel* channel, const DataPathVerbs* verbs, ChannelSink told);
// After its return the watcher does not touch the channel again, nor calls the sink.
void unwatch_channel(uint64_t watch);

}  // namespace rdmakit
