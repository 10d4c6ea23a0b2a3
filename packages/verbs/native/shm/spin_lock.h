// A lock for sections of some ten nanoseconds, which also bears to be held for a long copy.
#pragma once

#include <sched.h>

#include <atomic>

namespace rdmakit::shm {

class SpinLock {
 public:
  void lock() {
    int spins = 0;
    while (locked_.exchange(true, std::memory_order_acquire)) {
      while (locked_.load(std::memory_order_relaxed)) {
        // The holder may be copying a gigabyte, or be waiting for this very core.
        if (++spins > 100) sched_yield();
      }
    }
  }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> locked_{false};
};

}  // namespace rdmakit::shm
