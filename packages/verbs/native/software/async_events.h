// The watchers of a software provider's asynchronous events.
//
// A sink may be slow and may allocate, so it must not run on a data path. A data path that finds an event
// marks it in the object concerned and wakes a thread of the provider; that thread calls emit().
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "provider/provider.h"

namespace rdmakit::software {

class AsyncEvents {
 public:
  using Sink = Provider::AsyncSink;

  // The token for unwatch(), or 0 and errno. From any thread, also from within a sink.
  uint64_t watch(Sink sink);
  // The sink is neither running nor called any more when this returns. Not from within a sink.
  void unwatch(uint64_t token);

  // Calls every sink, one at a time, on the caller's thread. Events of several threads do not overlap; each
  // reaches the watchers that are there when its emit() begins and still when their turn comes.
  void emit(const AsyncEvent& event);

 private:
  struct Watcher {
    uint64_t token;
    Sink sink;
  };

  std::mutex emitting_;  // held while sinks run; before mutex_
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::shared_ptr<const Watcher>> watchers_;
  uint64_t next_token_ = 1;
  uint64_t running_ = 0;  // the token of the sink that is being called, or 0
};

}  // namespace rdmakit::software
