// Waiting for the lock, and waking who waits (futex(2)).
#include "shm/mapping/sleep_lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

#include "base/all_threads_fence.h"

namespace rdmakit::shm {

// Some microseconds.
constexpr int kSpins = 200;
// Where the kernel has no barrier for all threads, an unlock may miss who has just begun to sleep.
constexpr timespec kLookAgain{0, 1'000'000};

std::array<SleepLock::Sleepers, 64> SleepLock::all_sleepers_;

void SleepLock::wait() {
  for (int i = 0; i < kSpins; i++) {
    if (state_.load(std::memory_order_relaxed) == kFree && try_lock()) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  std::atomic<uint32_t>& sleepers = sleepers_of(this).count;
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  // From here on an unlock sees the sleeper; one that did not has its store visible to the next line.
  const bool seen = fence_all_threads();
  while (!try_lock())
    syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, kHeld, seen ? nullptr : &kLookAgain, nullptr, 0);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void SleepLock::wake(std::atomic<uint32_t>* state) {
  syscall(SYS_futex, state, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace rdmakit::shm
