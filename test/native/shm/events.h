// The asynchronous events of the shm device.
#pragma once

#include <algorithm>

#include "traffic.h"

namespace fixture {

// The asynchronous events while it lives.
class Watch {
 public:
  Watch() {
    token_ = provider().watch_async_events(context(), [this](const AsyncEvent& event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(event);
      arrived_.notify_all();
    });
    CHECK(token_ != 0);
  }
  ~Watch() { provider().unwatch_async_events(context(), token_); }
  // Waits until this event of the object has come.
  void expect(ibv_event_type type, const void* element) {
    std::unique_lock lock(mutex_);
    CHECK(arrived_.wait_for(lock, kHang, [&] { return count(type, element) > 0; }));
    CHECK(count(type, element) == 1);
  }
  size_t how_many(ibv_event_type type, const void* element) {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(count(type, element));
  }
  bool none() {
    const std::lock_guard lock(mutex_);
    return events_.empty();
  }

 private:
  int64_t count(ibv_event_type type, const void* element) {
    return std::count_if(events_.begin(), events_.end(), [&](const AsyncEvent& each) {
      return each.type == type && each.element == reinterpret_cast<uint64_t>(element);
    });
  }
  uint64_t token_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<AsyncEvent> events_;
};

}  // namespace fixture
