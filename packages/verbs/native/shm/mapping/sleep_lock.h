// A lock for sections of some ten nanoseconds, which also bears to be held for the copy of a gigabyte: who
// waits spins as long as a short section takes, and then sleeps. A thread of real-time priority that went on
// spinning could keep the processor from the holder; JavaScript's would burn it. Uncontended it makes no
// system call.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdmakit::shm {

class SleepLock {
 public:
  SleepLock() = default;
  SleepLock(const SleepLock&) = delete;

  void lock() {
    uint32_t state = kFree;
    if (!state_.compare_exchange_strong(state, kHeld, std::memory_order_acquire)) [[unlikely]]
      wait();
  }
  // Another thread may have the lock, and this object be gone, before this returns.
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) [[unlikely]]
      state_.notify_one();
  }

 private:
  // Some microseconds.
  static constexpr int kSpins = 200;
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kHeld = 1;
  static constexpr uint32_t kAwaited = 2;  // held, and somebody may sleep

  [[gnu::noinline]] void wait() {
    for (int i = 0; i < kSpins; i++) {
      uint32_t state = kFree;
      if (state_.load(std::memory_order_relaxed) == kFree &&
          state_.compare_exchange_strong(state, kHeld, std::memory_order_acquire)) {
        return;
      }
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    // Whoever has slept takes it as awaited: there may be others.
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree) state_.wait(kAwaited);
  }

  std::atomic<uint32_t> state_{kFree};
};

}  // namespace rdmakit::shm
