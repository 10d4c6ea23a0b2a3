#include "software/async_events.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

namespace rdmakit::software {

uint64_t AsyncEvents::watch(Sink sink) {
  try {
    const std::lock_guard lock(mutex_);
    watchers_.push_back(std::make_shared<const Watcher>(Watcher{next_token_, std::move(sink)}));
    return next_token_++;
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return 0;
  }
}

void AsyncEvents::unwatch(uint64_t token) {
  std::shared_ptr<const Watcher> gone;  // destroyed after the lock is released: its sink may own anything
  std::unique_lock lock(mutex_);
  const auto found = std::find_if(watchers_.begin(), watchers_.end(),
                                  [&](const auto& each) { return each->token == token; });
  if (found == watchers_.end()) return;
  gone = std::move(*found);
  watchers_.erase(found);
  returned_.wait(lock, [&] { return running_ != token; });
}

void AsyncEvents::emit(const AsyncEvent& event) {
  const std::lock_guard emitting(emitting_);
  std::unique_lock lock(mutex_);
  // By token and not by place: sinks come and go while others run.
  const uint64_t end = next_token_;
  for (uint64_t done = 0; done < end;) {
    const auto next = std::find_if(watchers_.begin(), watchers_.end(),
                                   [&](const auto& each) { return each->token > done; });
    if (next == watchers_.end() || (*next)->token >= end) return;
    std::shared_ptr<const Watcher> watcher = *next;
    running_ = done = watcher->token;
    lock.unlock();
    watcher->sink(event);
    watcher.reset();
    lock.lock();
    running_ = 0;
    returned_.notify_all();
  }
}

}  // namespace rdmakit::software
