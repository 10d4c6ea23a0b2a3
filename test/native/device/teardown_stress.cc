// Teardown: closing an object waits for it, but never for long, and nothing is done twice or forgotten.
#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "ibverbs_fixture.h"
#include "provider/teardown.h"

namespace device_teardown_stress {

using namespace std::chrono_literals;
using rdmakit::Teardown;
using Clock = std::chrono::steady_clock;

// Work that takes until it is ended, as in the kernel.
struct Stuck {
  std::promise<void> told;
  std::shared_future<void> end = told.get_future().share();
  std::atomic<int> begun{0};
  std::function<void()> work() {
    return [this] {
      begun.fetch_add(1);
      end.wait();
    };
  }
};

void work_that_is_quick_is_done_when_run_returns() {
  Teardown teardown(60s);
  for (int i = 0; i < 1000; ++i) {
    std::thread::id where;
    teardown.run([&where] { where = std::this_thread::get_id(); }, true);
    CHECK(where != std::thread::id());
    CHECK(where != std::this_thread::get_id());
  }
}

void nobody_waits_for_work_that_is_late() {
  Stuck stuck;
  Teardown teardown(1s, 2);
  auto start = Clock::now();
  teardown.run(stuck.work(), true);
  CHECK(Clock::now() - start >= 1s);
  start = Clock::now();
  std::atomic<int> done{0};
  // One thread is left, which does all of this: the caller does not wait while the first work is late.
  for (int i = 0; i < 100; ++i) teardown.run([&done] { done.fetch_add(1); }, true);
  while (done.load() < 100) std::this_thread::yield();
  // Even without a free thread, no call waits.
  Stuck other;
  teardown.run(other.work(), true);
  while (other.begun.load() == 0) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) teardown.run([&done] { done.fetch_add(1); }, true);
  CHECK(done.load() == 100);
  // 200 s where each of them waited.
  CHECK(Clock::now() - start < 50s);
  other.told.set_value();
  while (done.load() < 200) std::this_thread::yield();
  stuck.told.set_value();
  // And it waits again when nothing is late any more.
  while (true) {
    auto answer = std::make_shared<std::promise<void>>();
    auto answered = answer->get_future();
    teardown.run([answer] { answer->set_value(); }, true);
    if (answered.wait_for(0s) == std::future_status::ready) break;
    answered.wait();
  }
}

// An event loop closes hundreds of objects in one turn: it waits for all of them no longer than for one.
void those_who_are_slow_are_waited_for_together() {
  constexpr int kWorks = 100;
  Teardown teardown(200ms);
  int waited = 0;
  for (int i = 0; i < kWorks; ++i) {
    const auto done = std::make_shared<std::atomic<bool>>(false);
    teardown.run(
        [done] {
          std::this_thread::sleep_for(50ms);
          done->store(true);
        },
        true);
    if (done->load()) ++waited;
  }
  CHECK(waited < kWorks / 2);
}

void what_work_tears_down_is_done_within_it() {
  Teardown teardown(60s, 1);
  bool inner = false;
  bool inner_first = false;
  teardown.run(
      [&] {
        teardown.run([&inner] { inner = true; }, true);
        inner_first = inner;
      },
      true);
  CHECK(inner_first);
}

void who_does_not_wait_does_not() {
  Stuck stuck;
  std::atomic<bool> done{false};
  {
    Teardown teardown(60s, 4);
    const auto start = Clock::now();
    teardown.run(stuck.work(), false);
    teardown.run([&done] { done = true; }, false);
    CHECK(Clock::now() - start < 50s);
    while (!done.load()) std::this_thread::yield();
    stuck.told.set_value();
  }
  CHECK(stuck.begun.load() == 1);
}

void many_at_once() {
  std::atomic<int> done{0};
  {
    Teardown teardown(1ms, 8);
    std::vector<std::thread> callers;
    for (int c = 0; c < 4; ++c)
      callers.emplace_back([&teardown, &done, c] {
        for (int i = 0; i < 2000; ++i)
          teardown.run(
              [&done, i] {
                if (i % 200 == 0) std::this_thread::sleep_for(2ms);
                done.fetch_add(1);
              },
              (i + c) % 3 != 0);
      });
    for (auto& caller : callers) caller.join();
  }
  // The end of a Teardown waits for what is left.
  CHECK(done.load() == 8000);
}

STRESS(device_teardown) {
  work_that_is_quick_is_done_when_run_returns();
  nobody_waits_for_work_that_is_late();
  those_who_are_slow_are_waited_for_together();
  what_work_tears_down_is_done_within_it();
  who_does_not_wait_does_not();
  many_at_once();
  return 0;
}

}  // namespace device_teardown_stress
