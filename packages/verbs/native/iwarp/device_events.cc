#include "iwarp/device_events.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace rdmakit::iwarp {

DeviceEvents::DeviceEvents() : wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

DeviceEvents& DeviceEvents::instance() {
  // Never destroyed: the progress thread may run until the process is gone.
  static DeviceEvents* const events = [] {
    static const std::shared_ptr<DeviceEvents>& made =
        *std::make_unique<std::shared_ptr<DeviceEvents>>(std::unique_ptr<DeviceEvents>(new DeviceEvents))
             .release();
    const uint64_t number = ProgressThread::instance().enroll(made);
    ProgressThread::instance().watch(number, made->wake_fd_.get(), EPOLLIN);
    return made.get();
  }();
  return *events;
}

DeviceEvent::DeviceEvent(void* object, void (*act)(void*)) : object_(object), act_(act) {
  DeviceEvents::instance();  // here and not when the first event is raised
}

DeviceEvent::~DeviceEvent() {
  DeviceEvents& events = DeviceEvents::instance();
  std::unique_lock lock(events.mutex_);
  if (waiting_) {
    DeviceEvent* before = nullptr;
    for (DeviceEvent* at = events.first_; at != this; at = at->next_) before = at;
    (before == nullptr ? events.first_ : before->next_) = next_;
    if (events.last_ == this) events.last_ = before;
  }
  // From a sink it is this very event perhaps.
  if (ProgressThread::instance().on_this_thread()) return;
  events.acted_.wait(lock, [&] { return events.acting_ != this; });
}

void DeviceEvent::raise(ibv_event_type type) {
  DeviceEvents& events = DeviceEvents::instance();
  const std::lock_guard lock(events.mutex_);
  if (waiting_) return;
  waiting_ = true;
  type_ = type;
  next_ = nullptr;
  (events.last_ == nullptr ? events.first_ : events.last_->next_) = this;
  events.last_ = this;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t done = write(events.wake_fd_.get(), &one, sizeof one);
}

void DeviceEvents::on_ready() {
  uint64_t count;
  [[maybe_unused]] const ssize_t done = read(wake_fd_.get(), &count, sizeof count);
  std::unique_lock lock(mutex_);
  while (first_ != nullptr) {
    DeviceEvent* event = first_;
    first_ = event->next_;
    if (first_ == nullptr) last_ = nullptr;
    event->waiting_ = false;
    const AsyncEvent told{event->type_, reinterpret_cast<uint64_t>(event->object_)};
    acting_ = event;
    lock.unlock();
    if (event->act_ != nullptr) event->act_(event->object_);
    watchers_.emit(told);
    lock.lock();
    acting_ = nullptr;
    acted_.notify_all();
  }
}

}  // namespace rdmakit::iwarp
