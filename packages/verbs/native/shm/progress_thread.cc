#include "shm/progress_thread.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>

namespace rdmakit::shm {

ProgressThread& ProgressThread::instance() {
  // Never destroyed: its thread may run until the process is gone.
  static ProgressThread* thread = std::make_unique<ProgressThread>().release();
  return *thread;
}

ProgressThread::ProgressThread()
    : software::ProgressThread("rdmakit-shm"), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  watch(kWake, wake_fd());
}

void ProgressThread::call(Errand& errand) {
  {
    const std::lock_guard lock(errands_mutex_);
    if (errand.queued_) return;
    errand.queued_ = true;
    errand.next_ = nullptr;
    (last_errand_ == nullptr ? first_errand_ : last_errand_->next_) = &errand;
    last_errand_ = &errand;
  }
  ring();
}

void ProgressThread::cancel(Errand& errand) {
  std::unique_lock lock(errands_mutex_);
  if (errand.queued_) {
    Errand* before = nullptr;
    for (Errand* at = first_errand_; at != &errand; at = at->next_) before = at;
    (before == nullptr ? first_errand_ : before->next_) = errand.next_;
    if (last_errand_ == &errand) last_errand_ = before;
    errand.queued_ = false;
  }
  if (!on_this_thread()) errand_over_.wait(lock, [&] { return running_ != &errand; });
}

void ProgressThread::run_errands() {
  std::unique_lock lock(errands_mutex_);
  while (first_errand_ != nullptr) {
    running_ = first_errand_;
    first_errand_ = running_->next_;
    if (first_errand_ == nullptr) last_errand_ = nullptr;
    running_->queued_ = false;
    lock.unlock();
    running_->run_();
    lock.lock();
    running_ = nullptr;
    errand_over_.notify_all();
  }
}

int ProgressThread::watch(uint64_t number, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = number;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : errno;
}

void ProgressThread::unwatch(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void ProgressThread::run() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms());
    for (int i = 0; i < count; i++) {
      const uint64_t number = events[i].data.u64;
      if (number == kWake) {
        run_tasks();
        run_errands();
      } else if (const std::shared_ptr<Client> client = find(number)) {
        client->on_ready();
      }
    }
    run_deadlines();
  }
}

}  // namespace rdmakit::shm
