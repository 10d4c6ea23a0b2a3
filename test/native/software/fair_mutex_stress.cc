// The mutex of what a polling thread and others share: one holder at a time, and each waiter in its turn.
#include <mutex>
#include <thread>
#include <vector>

#include "../stress.h"
#include "base/fair_mutex.h"

namespace software_fair_mutex_stress {

using namespace fixture;
using rdmakit::FairMutex;

void until(const FairMutex& mutex, uint32_t waiting) {
  const auto deadline = Clock::now() + kHang;
  while (mutex.waiting() != waiting) {
    CHECK(Clock::now() < deadline);
    std::this_thread::yield();
  }
}

// A thread that unlocks and locks again at once comes after the waiters, and these come in order.
void in_turn() {
  for (int round = 0; round < 200; round++) {
    FairMutex mutex;
    std::vector<int> order;
    std::vector<std::thread> threads;
    mutex.lock();
    for (int i = 1; i <= 3; i++) {
      threads.emplace_back([&, i] {
        const std::lock_guard lock(mutex);
        order.push_back(i);
      });
      until(mutex, static_cast<uint32_t>(i));
    }
    mutex.unlock();
    mutex.lock();
    order.push_back(4);
    mutex.unlock();
    for (std::thread& each : threads) each.join();
    CHECK((order == std::vector<int>{1, 2, 3, 4}));
  }
}

// A poller does not lock before those who wait.
void give_way() {
  FairMutex mutex;
  CHECK(mutex.try_lock() && !mutex.try_lock());
  std::atomic<bool> had{false}, go{false};
  std::thread waiter([&] {
    const std::lock_guard lock(mutex);
    had = true;
    while (!go) std::this_thread::yield();
  });
  until(mutex, 1);
  mutex.unlock();
  CHECK(!mutex.try_lock());  // the waiter has it, awake or not yet
  go = true;
  waiter.join();
  CHECK(had && mutex.try_lock());
  mutex.unlock();
}

void one_at_a_time() {
  FairMutex mutex;
  uint64_t count = 0;  // a race if two were inside
  std::atomic<uint64_t> expected{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&, t] {
      uint64_t mine = 0;
      for (int i = 0; i < effort(20'000); i++) {
        std::unique_lock lock(mutex, std::defer_lock);
        if (t % 2 == 0) {
          lock.lock();
        } else if (!lock.try_lock()) {
          continue;
        }
        count++;
        mine++;
      }
      expected += mine;
    });
  }
  for (std::thread& each : threads) each.join();
  CHECK(count == expected && count >= 2u * effort(20'000));
}

STRESS(software_fair_mutex) {
  timed("in turn", in_turn);
  timed("give way", give_way);
  timed("one at a time", one_at_a_time);
  std::puts("ok");
  return 0;
}

}  // namespace software_fair_mutex_stress
