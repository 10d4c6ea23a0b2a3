// The provider's thread: connection setup, announcements and hang-ups. It moves no data, except for
// queue pairs whose SENDs waited for a receive.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "base/unique_fd.h"
#include "software/progress_thread.h"

namespace rdmakit::shm {

class ProgressThread final : public software::ProgressThread {
 public:
  static ProgressThread& instance();

  ProgressThread();

  // A task that a data path can ask for: asking allocates nothing. It runs once for any number of calls
  // that come before it does.
  class Errand {
   public:
    explicit Errand(std::function<void()> run) : run_(std::move(run)) {}
    Errand(const Errand&) = delete;

   private:
    friend class ProgressThread;
    const std::function<void()> run_;
    Errand* next_ = nullptr;
    bool queued_ = false;
  };
  void call(Errand& errand);
  // It neither runs nor will when this returns. From a task of the progress thread it may be running still.
  void cancel(Errand& errand);

  // 0 or an errno value. A descriptor is watched until it is closed or unwatched.
  int watch(uint64_t number, int fd);
  void unwatch(int fd);

 private:
  void run() override;
  void run_errands();

  UniqueFd epoll_;
  std::mutex errands_mutex_;  // held for a few instructions only
  std::condition_variable errand_over_;
  Errand* first_errand_ = nullptr;
  Errand* last_errand_ = nullptr;
  Errand* running_ = nullptr;
};

}  // namespace rdmakit::shm
