// A lock for sections of some ten nanoseconds, which also bears to be held for the copy of a gigabyte: who
// waits spins as long as a short section takes, and then sleeps. A thread of real-time priority that went on
// spinning could keep the processor from the holder; JavaScript's would burn it. Uncontended it makes no
// system call, and one locked instruction: unlock() is a plain store, and a load of whether anybody sleeps.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace rdmakit::shm {

class SleepLock {
 public:
  SleepLock() = default;
  SleepLock(const SleepLock&) = delete;

  void lock() {
    if (!try_lock()) [[unlikely]]
      wait();
  }
  // Another thread may have the lock, and this object be gone, as soon as it is free: nothing of it is read
  // after that, and sleepers are counted elsewhere.
  void unlock() {
    const std::atomic<uint32_t>& sleepers = sleepers_of(this).count;
    state_.store(kFree, std::memory_order_release);
    // Free it, then look who sleeps; who is about to sleep says so, then looks whether it is free (wait()).
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_relaxed) != 0) [[unlikely]]
      wake(&state_);
  }

 private:
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kHeld = 1;

  // Who sleeps, for all locks whose address falls into the same group: one that nobody waits for may make a
  // needless call of the kernel for as long as another of its group is slept for.
  struct alignas(64) Sleepers {
    std::atomic<uint32_t> count{0};
  };
  static Sleepers& sleepers_of(const SleepLock* lock) {
    return all_sleepers_[reinterpret_cast<uintptr_t>(lock) / sizeof(Sleepers) % all_sleepers_.size()];
  }

  bool try_lock() {
    uint32_t state = kFree;
    return state_.compare_exchange_strong(state, kHeld, std::memory_order_acquire);
  }
  void wait();
  // The lock may be gone: its address is all that counts.
  static void wake(std::atomic<uint32_t>* state);

  static std::array<Sleepers, 64> all_sleepers_;

  std::atomic<uint32_t> state_{kFree};
};

}  // namespace rdmakit::shm
