#include "iwarp/progress_thread.h"

#include <sched.h>

#include <array>
#include <thread>

#include "base/clock.h"
#include "base/patience.h"

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

// Waits that are looked through take at most this long.
constexpr uint64_t kMostPatientNs = 100'000;

// Hot path as far as queue pairs are ready: wait, dispatch.
//
// A peer that sends its next READ when it has the answer to the last is awaited without sleep: a wake-up of
// this thread takes as long as everything else that is done for it.
void ProgressThread::run() {
  std::array<epoll_event, 64> events;
  // With one processor nothing comes while this thread has it.
  Patience patience(std::thread::hardware_concurrency() > 1 ? kMostPatientNs : 0);
  bool looks = false;  // on, instead of sleeping
  while (true) {
    const int count =
        poll_set_.wait(events.data(), static_cast<int>(events.size()), looks ? 0 : timeout_ms());
    if (looks && count == 0) {
      looks = patience.looks_on(now_ns());
      if (looks) sched_yield();
      continue;
    }
    if (count > 0) {
      if (patience.waits()) patience.found(now_ns());
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
    looks = patience.looks_on(now_ns());
    run_deadlines();
  }
}
// End of hot path.

}  // namespace rdmakit::iwarp
