// Watchers of asynchronous events: all hear all, in order, and none after it has stopped watching.
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "../stress.h"
#include "provider/provider.h"
#include "software/async_events.h"

namespace software_async_events_stress {

using namespace fixture;
using namespace rdmakit;
using software::AsyncEvents;

void in_order() {
  AsyncEvents events;
  std::vector<uint64_t> heard[2];
  const uint64_t first = events.watch([&](const AsyncEvent& event) { heard[0].push_back(event.element); });
  const uint64_t second = events.watch([&](const AsyncEvent& event) { heard[1].push_back(event.element); });
  CHECK(first != 0 && second != 0 && first != second);
  events.emit({IBV_EVENT_CQ_ERR, 1});
  events.emit({IBV_EVENT_QP_FATAL, 2});
  events.unwatch(first);
  events.unwatch(first);
  events.emit({IBV_EVENT_CQ_ERR, 3});
  CHECK((heard[0] == std::vector<uint64_t>{1, 2}) && (heard[1] == std::vector<uint64_t>{1, 2, 3}));
}

// A watcher that begins within a sink gets the next event first.
void watch_within_a_sink() {
  AsyncEvents events;
  std::vector<uint64_t> heard;
  bool added = false;
  events.watch([&](const AsyncEvent&) {
    if (std::exchange(added, true)) return;
    CHECK(events.watch([&](const AsyncEvent& event) { heard.push_back(event.element); }) != 0);
  });
  events.emit({IBV_EVENT_CQ_ERR, 1});
  events.emit({IBV_EVENT_CQ_ERR, 2});
  CHECK(heard == std::vector<uint64_t>{2});
}

// Sinks end while others emit: what a sink uses may go as soon as unwatch has returned.
void come_and_go() {
  AsyncEvents events;
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; t++) {
    threads.emplace_back([&] {
      while (!over) events.emit({IBV_EVENT_CQ_ERR, 1});
    });
  }
  std::atomic<int> inside{0};
  std::atomic<uint64_t> all_heard{0};
  for (int t = 0; t < 2; t++) {
    threads.emplace_back([&] {
      for (int i = 0; i < effort(3000) || all_heard < 1000; i++) {
        auto heard = std::make_unique<uint64_t>(0);
        const uint64_t token = events.watch([&inside, at = heard.get()](const AsyncEvent& event) {
          CHECK(inside++ == 0);  // one at a time
          *at += event.element;
          inside--;
        });
        std::this_thread::yield();
        events.unwatch(token);
        all_heard += *heard;
        heard.reset();
      }
    });
  }
  for (size_t t = 2; t < threads.size(); t++) threads[t].join();
  over = true;
  for (size_t t = 0; t < 2; t++) threads[t].join();
}

STRESS(software_async_events) {
  timed("in order", in_order);
  timed("watch within a sink", watch_within_a_sink);
  timed("come and go", come_and_go);
  std::puts("ok");
  return 0;
}

}  // namespace software_async_events_stress
