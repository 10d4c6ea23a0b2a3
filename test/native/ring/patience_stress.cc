// How long an application's thread looks on before it sleeps.
#include <string>

#include "base/clock.h"
#include "base/patience.h"
#include "held_poller.h"

namespace ring_patience_stress {

using namespace ring_test;

constexpr uint64_t kHour = 3'600'000'000'000;

// A poller that would look on for an hour, and what it did in one look.
struct Looker {
  Device device;
  Poller poller{device, ring::Mode::caller, kHour};
  UniqueFd others{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  int polls = 0;
  bool armed = false;

  Looker() {
    poller.connect();
    while (poller->look_before_sleep().again) {
    }
    // An event has disarmed the queue, and what it was for is done.
    device.make_readable();
    poller->look_at_events();
    device.before_arming = [this] { armed = true; };
  }
  // `at_poll` is called before each poll.
  ring::Poller::Look look(int descriptor, std::function<void()> at_poll, uint64_t until = ~uint64_t{}) {
    polls = 0;
    device.before_polling = [this, at_poll = std::move(at_poll)] {
      CHECK(++polls < 1000, "it looks on and on");
      at_poll();
    };
    const ring::Poller::Look look = poller->look_before_sleep({descriptor, until});
    device.before_polling = {};
    return look;
  }
};

// What comes meanwhile is there without an event: the peer saw no armed queue.
void comes_while_it_looks_on() {
  Looker looker;
  const ring::Poller::Look look = looker.look(looker.others.get(), [&] {
    if (looker.polls == 5) looker.device.arrive(0);
  });
  CHECK(look.again && !looker.armed);
  CHECK(looker.polls == 5, "%d polls", looker.polls);
  CHECK(has(looker.poller.take(), ring::FrameType::data));
}

// Others want the application's thread, or it has something to do.
void others_come_first() {
  Looker looker;
  const ring::Poller::Look look = looker.look(looker.others.get(), [&] {
    const uint64_t one = 1;
    if (looker.polls == 5) CHECK(write(looker.others.get(), &one, sizeof one) == sizeof one);
  });
  CHECK(!look.again && looker.armed);
  CHECK(looker.polls < 20, "%d polls", looker.polls);
}
void has_something_to_do() {
  Looker looker;
  const ring::Poller::Look look = looker.look(-1, [] {});
  CHECK(!look.again && looker.armed);
  CHECK(looker.polls == 2, "%d polls", looker.polls);
}

// A timer is due.
void is_late_for_something() {
  Looker looker;
  const ring::Poller::Look look = looker.look(
      looker.others.get(), [] {}, now_ns());
  CHECK(!look.again && looker.armed);
  CHECK(looker.polls == 3, "%d polls", looker.polls);
}
// It took a part of what is there, and is to be told of the rest now.
void has_not_seen_all() {
  Looker looker;
  looker.device.arrive(0);
  looker.poller->look_before_sleep();
  looker.device.make_readable();
  looker.poller->look_at_events();
  looker.poller->event_ring().word(ring::EventRing::kIdle).store(1);
  const ring::Poller::Look look = looker.look(looker.others.get(), [] {});
  CHECK(look.doorbell);
  CHECK(looker.polls <= 3, "%d polls", looker.polls);
}

// Waits of a length in nanoseconds, one after the other, on a clock that stands still between them.
class Waits {
 public:
  // Until when it looked on, in nanoseconds after the beginning; at most `length`.
  uint64_t wait(uint64_t length) {
    uint64_t looked = 0;
    while (looked < length && patience_.looks_on(now_ + looked)) ++looked;
    CHECK(patience_.waits());
    patience_.found(now_ + length);
    CHECK(!patience_.waits());
    now_ += length;
    return looked;
  }
  // So many waits of that length in which it does not look on, before one in which it does.
  uint64_t left_out(uint64_t length) {
    for (uint64_t waits = 0; waits < 10'000; ++waits)
      if (wait(length) > 0) return waits;
    CHECK(false, "it never looks on");
  }

 private:
  Patience patience_{kBound};
  uint64_t now_ = 1;

 public:
  static constexpr uint64_t kBound = 1000;
};

void as_long_as_waits_take() {
  Waits waits;
  CHECK(waits.wait(100) == 100);
  // An average of 450: 500 before the first.
  CHECK(waits.wait(2000) == 900);
  CHECK(waits.wait(100) == 100);
  while (waits.wait(100) < 100) {
  }
  for (int i = 0; i < 50; ++i) CHECK(waits.wait(100) == 100);
  const uint64_t looked = waits.wait(900);
  CHECK(looked >= 200 && looked < 220, "%lu", static_cast<unsigned long>(looked));
}

// Over the bound, which may be for want of looking on.
void tries_less_and_less() {
  Waits waits;
  while (waits.wait(5000) != 0) {
  }
  std::string left_out;
  for (int tries = 0; tries < 11; ++tries)
    left_out += std::to_string(waits.left_out(5000) + (tries == 0)) + ' ';
  CHECK(left_out == "16 32 64 128 256 512 1024 2048 4096 4096 4096 ", "%s", left_out.c_str());
  // A try that finds what came in time is followed by another, until it is usual.
  waits.left_out(900);
  for (int i = 0; i < 30; ++i) CHECK(waits.wait(900) == 900, "try %d", i);
}

// How many waits of that length do not look on between those that do.
std::string left_out_after(uint64_t length, uint64_t bound = 1000) {
  Patience patience(bound);
  uint64_t now = 1;
  std::string left_out;
  for (int tries = 0, waits = 0; tries < 5; ++waits) {
    CHECK(waits < 1000);
    const bool looks = patience.looks_on(now);
    now += length;
    patience.found(now);
    if (!looks) continue;
    left_out += std::to_string(waits) + ' ';
    ++tries;
    waits = -1;
  }
  return left_out;
}

// The core was yielded, and came back too late; or a little later than was meant, which is no loss.
void finds_too_late() {
  const std::string late = left_out_after(3'000'000);
  CHECK(late == "0 16 32 64 128 ", "%s", late.c_str());
  CHECK(left_out_after(100) == "0 0 0 0 0 ");
  CHECK(left_out_after(1'900) == "0 0 0 0 0 ");
  // With any bound.
  CHECK(left_out_after(3'000'000, 2'000'000) == late);
}

// One that is too late costs more than some in time have won.
void forgets_slowly() {
  Patience patience(1000);
  uint64_t now = 1;
  const auto wait = [&](uint64_t length) {
    const bool looks = patience.looks_on(now);
    patience.found(now += length);
    return looks;
  };
  std::string left_out;
  const auto too_late = [&](int in_time_after) {
    CHECK(wait(3'000'000));
    int waits = 0;
    while (!wait(100)) CHECK(++waits < 1000);
    for (int i = 1; i < in_time_after; ++i) CHECK(wait(100));
    left_out += std::to_string(waits) + ' ';
  };
  for (const int in_time_after : {10, 10, 10, 34, 64, 1}) too_late(in_time_after);
  CHECK(left_out == "16 32 64 128 128 128 ", "%s", left_out.c_str());
}

// What interrupted a wait says nothing of it, nor does what came later.
void is_interrupted() {
  Patience patience(1000);
  for (uint64_t now = 1; now < 1'000'000; now += 10'000) {
    CHECK(patience.looks_on(now), "it does not look on at %lu", static_cast<unsigned long>(now));
    patience.interrupted();
    CHECK(!patience.waits());
  }
}

STRESS(ring_patience) {
  fixture::timed("comes while it looks on", comes_while_it_looks_on);
  fixture::timed("others come first", others_come_first);
  fixture::timed("has something to do", has_something_to_do);
  fixture::timed("is late for something", is_late_for_something);
  fixture::timed("has not seen all", has_not_seen_all);
  fixture::timed("is interrupted", is_interrupted);
  fixture::timed("as long as waits take", as_long_as_waits_take);
  fixture::timed("tries less and less", tries_less_and_less);
  fixture::timed("finds too late", finds_too_late);
  fixture::timed("forgets slowly", forgets_slowly);
  return 0;
}

}  // namespace ring_patience_stress
