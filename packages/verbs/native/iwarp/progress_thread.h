// The provider's thread: connection setup, events to sinks, and the data of queue pairs with automatic
// progress.
#pragma once

#include <cstdint>

#include "iwarp/poll_set.h"
#include "software/progress_thread.h"

namespace rdmakit::iwarp {

class ProgressThread final : public software::ProgressThread {
 public:
  static ProgressThread& instance();

  ProgressThread();

  // Queue pairs with automatic progress.
  PollSet& poll_set() { return poll_set_; }

  // 0 or an errno value. A descriptor is watched until it is closed or unwatched.
  int watch(uint64_t number, int fd, uint32_t events);
  int change(uint64_t number, int fd, uint32_t events);
  void unwatch(int fd) { poll_set_.mute(fd); }

 private:
  void run() override;

  PollSet poll_set_;
};

}  // namespace rdmakit::iwarp
