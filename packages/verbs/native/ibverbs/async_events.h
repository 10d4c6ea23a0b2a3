// The asynchronous events of devices (ibv_get_async_event(3)), read by one thread for all of them.
#pragma once

#include <map>
#include <mutex>

#include "ibverbs/libraries.h"
#include "provider/provider.h"
#include "rdmakit/thread.h"

namespace rdmakit::ibverbs {

// Lives until exit: its thread uses it.
class AsyncEvents {
 public:
  explicit AsyncEvents(const Libraries& lib) : lib_(lib) {}

  // The token, or 0 and errno.
  uint64_t watch(ibv_context* context, Provider::AsyncSink sink);
  void unwatch(ibv_context* context, uint64_t token);
  // Before the context is closed.
  void forget(ibv_context* context);

 private:
  int start();
  void run();
  void drain(ibv_context* context);

  const Libraries& lib_;
  std::mutex mutex_;  // held while sinks are called: nothing of a watcher runs on after unwatch
  int epoll_ = -1;    // made with the thread, for the first watcher
  Thread reader_;
  uint64_t last_token_ = 0;
  std::map<ibv_context*, std::map<uint64_t, Provider::AsyncSink>> watched_;
};

}  // namespace rdmakit::ibverbs
