#include "iwarp/progress_thread.h"

#include <array>

namespace rdmakit::iwarp {

ProgressThread& ProgressThread::instance() {
  // Never destroyed: its thread may run until the process is gone.
  static ProgressThread* thread = std::make_unique<ProgressThread>().release();
  return *thread;
}

ProgressThread::ProgressThread() : software::ProgressThread("rdmakit-iwarp") {
  poll_set_.add_foreign(kWake, wake_fd(), EPOLLIN);
}

int ProgressThread::watch(uint64_t number, int fd, uint32_t events) {
  return poll_set_.add_foreign(number, fd, events);
}

int ProgressThread::change(uint64_t number, int fd, uint32_t events) {
  return poll_set_.change_foreign(number, fd, events);
}

// Hot path as far as queue pairs are ready: wait, dispatch.
void ProgressThread::run() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int count = poll_set_.wait(events.data(), static_cast<int>(events.size()), timeout_ms());
    if (count > 0) {
      poll_set_.dispatch(events.data(), count);
      for (int i = 0; i < count; i++) {
        if (!(events[i].data.u64 & PollSet::kForeign)) continue;
        const uint64_t number = events[i].data.u64 & ~PollSet::kForeign;
        if (number == kWake) {
          run_tasks();
        } else if (const std::shared_ptr<Client> client = find(number)) {
          client->on_ready();
        }
      }
    }
    run_deadlines();
  }
}
// End of hot path.

}  // namespace rdmakit::iwarp
