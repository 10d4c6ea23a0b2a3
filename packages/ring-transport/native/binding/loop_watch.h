// Turns a poller of mode `caller` or `guarded` on the event loop of JavaScript: no thread, no wake-up. The
// loop watches the completion channel as it watches a socket.
//
// Two moments of a loop's iteration matter:
//  - The channel is readable: its events are taken, the poller turned, and JavaScript called when something
//    is on the event ring that it does not know of.
//  - The loop is about to sleep (uv_prepare): what JavaScript asked for meanwhile is attended to. When no
//    event is armed, one is, and the poller is turned once more, because what completed before the arming
//    raises none (ibv_req_notify_cq(3)). It is the last moment on purpose: all that JavaScript sent in this
//    iteration, from callbacks, promises and immediates, has completed without an event by then. If nothing
//    has come and the loop has nothing else to do, the poller looks on for a moment before it arms.
// So nothing that JavaScript asks for needs to wake the loop: it asks on the loop's own thread. What a
// guardian has put on the event ring while the loop slept does (wake).
//
// The end. The guardian is ended first, which wakes the loop. Handles may be closed at any time but are freed
// by the loop later, so a watch owns itself: close() forgets the poller and closes the handles, the last
// one's callback deletes the watch. An environment that ends (the process's, a worker's) calls close() by an
// asynchronous cleanup hook, and turns the loop until the hook is removed, which the last callback does.
#pragma once

#include <node_api.h>
#include <uv.h>

#include <memory>
#include <vector>

#include "ring/polling/poller.h"

namespace rdmakit::ring::binding {

class LoopWatch {
 public:
  // Watches a poller, before it is started, and calls `doorbell`. Does not keep the loop alive. Null with
  // `error` set to an errno.
  static LoopWatch* open(napi_env env, std::shared_ptr<Poller> poller, napi_value doorbell, int& error);
  LoopWatch(const LoopWatch&) = delete;
  LoopWatch& operator=(const LoopWatch&) = delete;

  // Whether the loop is kept alive.
  void set_ref(bool on);
  // Makes the loop look again; from any thread.
  void wake();
  // Nothing is called any more, and the channel not looked at: it may be closed. The watch is gone after
  // this.
  void close();

 private:
  LoopWatch(napi_env env, std::shared_ptr<Poller> poller) : env_(env), poller_(std::move(poller)) {}
  ~LoopWatch();
  int start(napi_value doorbell);
  void on_readable();
  void before_sleep();
  void look_again();
  OtherWork other_work() const;
  void ring(const Poller::Look& look);
  void handle_closed();
  template <typename Handle>
  static LoopWatch& of(Handle* handle) {
    return *static_cast<LoopWatch*>(handle->data);
  }

  napi_env env_;
  std::shared_ptr<Poller> poller_;
  napi_ref doorbell_ = nullptr;
  napi_async_context context_ = nullptr;
  napi_async_cleanup_hook_handle cleanup_ = nullptr;
  uv_poll_t channel_{};
  uv_prepare_t prepare_{};
  uv_timer_t timer_{};
  uv_idle_t again_{};
  uv_async_t waker_{};
  // Those that are open, which the loop knows until they are closed.
  std::vector<uv_handle_t*> open_;
  bool closing_ = false;
};

}  // namespace rdmakit::ring::binding
