// A mutex that is granted to its waiters in the order of arrival. With std::mutex, a thread that locks again
// as soon as it has unlocked keeps a waiter out for as long as it does so: an application that polls a queue
// pair whose peer never pauses would keep out the thread that serves all the others.
//
// For long holds and rare waiters: the next waiter must wake up before any thread continues. The unlocking
// thread must know that the mutex outlives the call. A thread of real-time priority that only tries to lock,
// in a loop, must not do so on the only processor of a waiter: the mutex belongs to the waiter, which cannot
// run.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdmakit {

class FairMutex {
 public:
  FairMutex() = default;
  FairMutex(const FairMutex&) = delete;

  void lock() {
    const uint32_t mine = next_.fetch_add(1);
    for (uint32_t now = serving_.load(); now != mine; now = serving_.load()) serving_.wait(now);
  }
  // false also while others wait: it never goes before them.
  bool try_lock() {
    uint32_t now = serving_.load();
    return next_.compare_exchange_strong(now, now + 1);
  }
  void unlock() {
    const uint32_t next = serving_.load(std::memory_order_relaxed) + 1;
    // A waiter draws its number and then looks here, this shows the number and then looks for a waiter.
    serving_.store(next);
    if (next_.load() != next) serving_.notify_all();
  }
  // How many wait. Only while the caller holds the mutex.
  uint32_t waiting() const { return next_.load() - serving_.load() - 1; }

 private:
  std::atomic<uint32_t> next_{0};  // the number of who comes next
  std::atomic<uint32_t> serving_{0};
};

}  // namespace rdmakit
