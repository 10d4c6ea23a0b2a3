// Asynchronous events, from the data path to the watchers.
//
// Who finds that something has happened, under whatever locks, puts a node of the object concerned on a list
// and wakes the progress thread: no allocation, no sink. The progress thread takes the node off and calls the
// sinks.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/unique_fd.h"
#include "iwarp/progress_thread.h"
#include "provider/provider.h"
#include "software/async_events.h"

namespace rdmakit::iwarp {

// A member of the object that the events are about. One event of it waits at a time.
class DeviceEvent {
 public:
  // `act`: what the progress thread does with the object before it calls the sinks.
  explicit DeviceEvent(void* object, void (*act)(void*) = nullptr);
  DeviceEvent(const DeviceEvent&) = delete;
  // Not told any more; waits for `act` and the sinks if they are running, but on the progress thread.
  ~DeviceEvent();
  // Any thread, under any lock but the list's own.
  void raise(ibv_event_type type);

 private:
  friend class DeviceEvents;
  void* const object_;
  void (*const act_)(void*);
  ibv_event_type type_{};
  DeviceEvent* next_ = nullptr;
  bool waiting_ = false;
};

class DeviceEvents final : public ProgressThread::Client {
 public:
  static DeviceEvents& instance();
  software::AsyncEvents& watchers() { return watchers_; }

  void on_ready() override;
  void on_deadline() override {}

 private:
  friend class DeviceEvent;
  DeviceEvents();

  software::AsyncEvents watchers_;
  UniqueFd wake_fd_;
  std::mutex mutex_;
  std::condition_variable acted_;
  DeviceEvent* first_ = nullptr;
  DeviceEvent* last_ = nullptr;
  DeviceEvent* acting_ = nullptr;
};

}  // namespace rdmakit::iwarp
