// When a lane spins for its next request: with a clock of its own, against clients that share its core, that
// do not, and that take their time.
#include <algorithm>
#include <cstdio>

#include "../engine/fixture/nbd_fixture.h"
#include "lane/request_waiter.h"

namespace lane_request_waiter_stress {

using namespace fixture;

constexpr uint64_t kLook = 1'000;

struct Simulated {
  RequestWaiter waiter;
  uint64_t longest = 50'000;
  uint64_t now = 1'000'000;
  uint64_t tried = 0;  // waits that began with a spin
  uint64_t spun = 0;   // and were ended by it

  // One wait for a request that comes after so many ns where the lane spins, and after so many where it
  // sleeps.
  void wait(uint64_t spinning, uint64_t sleeping) {
    const uint64_t start = now;
    bool tries = false;
    while (waiter.spin(now, longest)) {
      tries = true;
      now += kLook;
      if (now - start >= spinning) break;
    }
    tried += tries;
    if (!tries || now - start < spinning) {
      waiter.sleeping();
      CHECK(!waiter.spin(now, longest));  // until something comes
      now = std::max(now, start + sleeping);
    }
    const bool ended_by_spin = waiter.heard(now);
    spun += ended_by_spin;
    now += 5'000;  // the answer
  }
  void waits(uint64_t count, uint64_t spinning, uint64_t sleeping) {
    for (uint64_t i = 0; i < count; i++) wait(spinning, sleeping);
  }
  void forget() { tried = spun = 0; }
};

// A wake-up of another core is what a spin spares, so a client there is spun for.
void another_core() {
  Simulated lane{RequestWaiter(WaitMode::adaptive)};
  lane.waits(128, 25'000, 45'000);
  lane.forget();
  lane.waits(1'000, 25'000, 45'000);
  CHECK(lane.tried == 1'000 && lane.spun == 1'000);
  // One pause of many does not end it.
  lane.wait(1'000'000, 1'000'000);
  lane.forget();
  lane.waits(100, 25'000, 45'000);
  CHECK(lane.spun == 100);
  std::printf("a client on another core\n");
}

// It runs when the lane sleeps: to spin would keep it from it.
void same_core() {
  Simulated lane{RequestWaiter(WaitMode::adaptive)};
  lane.waits(10'000, 60'000, 8'000);
  CHECK(lane.tried == 0);
  std::printf("a client on the same core\n");
}

// Beside its client too: one with many under way has the next request there as soon as it can look.
void many_under_way() {
  Simulated lane{RequestWaiter(WaitMode::adaptive), 4'000};
  lane.waits(128, 2'000, 3'000);
  lane.forget();
  lane.waits(1'000, 2'000, 3'000);
  CHECK(lane.spun == 1'000);
  lane.waits(1'000, 8'000, 8'000);
  lane.forget();
  lane.waits(1'000, 8'000, 8'000);
  CHECK(lane.tried == 0);
  std::printf("a client with many under way\n");
}

void slow_client() {
  Simulated lane{RequestWaiter(WaitMode::adaptive)};
  lane.waits(6'400, 80'000, 90'000);
  CHECK(lane.spun == 0 && lane.tried <= 100);
  // Which becomes quick: noticed at the next try.
  lane.forget();
  lane.waits(64, 20'000, 40'000);
  lane.forget();
  lane.waits(100, 20'000, 40'000);
  CHECK(lane.spun == 100);
  // And slow again: given up after a few.
  lane.forget();
  lane.waits(64, 80'000, 90'000);
  CHECK(lane.tried <= 6);
  std::printf("a slow client\n");
}

// Three of four requests in time do not pay, nine of ten do.
void now_and_then() {
  Simulated lane{RequestWaiter(WaitMode::adaptive)};
  for (int i = 0; i < 6'400; i++) lane.wait(i % 4 == 0 ? 80'000 : 20'000, i % 4 == 0 ? 90'000 : 40'000);
  CHECK(lane.tried < 3'200);
  Simulated mostly{RequestWaiter(WaitMode::adaptive)};
  for (int i = 0; i < 6'400; i++) mostly.wait(i % 10 == 0 ? 80'000 : 20'000, i % 10 == 0 ? 90'000 : 40'000);
  CHECK(mostly.tried > 6'000);
  std::printf("a client with pauses\n");
}

void far_device() {
  Simulated lane{RequestWaiter(WaitMode::adaptive)};
  lane.waits(128, 25'000, 45'000);
  lane.waiter.sleeps_for_completions();
  lane.forget();
  lane.waits(63, 25'000, 45'000);
  CHECK(lane.tried == 0);
  for (int i = 0; i < 1'000; i++) {
    lane.waiter.sleeps_for_completions();
    lane.wait(25'000, 45'000);
  }
  CHECK(lane.tried == 0);
  lane.waits(200, 25'000, 45'000);
  CHECK(lane.spun > 50);
  std::printf("a device whose completions take long\n");
}

void modes() {
  Simulated never{RequestWaiter(WaitMode::event)};
  never.waits(1'000, 1'000, 40'000);
  CHECK(never.tried == 0);
  Simulated always{RequestWaiter(WaitMode::poll)};
  always.waits(1'000, 500'000, 500'000);
  CHECK(always.spun == 1'000);
  std::printf("poll and event\n");
}

// What a lane goes by: how many connections are open, however they end.
void connections() {
  NbdShape shape;
  shape.lanes = 3;
  NbdVolume volume(shape);
  const Volume& counted = volume.engine->volume();
  const auto opened = [&](size_t count) {
    volume.wait_until([&](const Event&) { return counted.connections() == count; });
  };
  CHECK(counted.connections() == 0);
  auto first = std::make_unique<SocketClient>(volume.attach(0));
  SocketClient second(volume.attach(1));
  const int third = volume.attach(2);
  opened(3);
  first.reset();
  volume.wait_for(Event::Type::connection_closed);
  CHECK(counted.connections() == 2);
  CHECK(volume.engine->yield_lane(1) == 0);
  const Event yielded = volume.wait_for(Event::Type::lane_yielded);
  CHECK(yielded.descriptor >= 0 && counted.connections() == 1);
  close(yielded.descriptor);
  close(third);
  volume.wait_until(
      [&](const Event& event) { return event.type == Event::Type::connection_closed && event.lane == 2; });
  CHECK(counted.connections() == 0);
  std::printf("connections are counted\n");
}

// A lane that polls sleeps for no request. One that was preempted finds the next request there when it is
// back, and has spun for none.
void polls() {
  NbdShape shape;
  shape.options.wait_mode = WaitMode::poll;
  NbdVolume volume(shape);
  SocketClient client(volume.attach(0));
  std::vector<uint8_t> page(kPage);
  const LaneStatistics& statistics = volume.engine->lane(0).statistics();
  CHECK(client.read(0, page.data(), kPage) == kOk);
  const uint64_t spins = statistics.spins.get(), sleeps = statistics.sleeps.get();
  for (int i = 0; i < 100 || (statistics.spins.get() < spins + 100 && i < 100'000); i++)
    CHECK(client.read(0, page.data(), kPage) == kOk);
  CHECK(statistics.spins.get() >= spins + 100);
  CHECK(statistics.sleeps.get() == sleeps);
  std::printf("a lane that polls\n");
}

STRESS(lane_request_waiter) {
  another_core();
  same_core();
  slow_client();
  now_and_then();
  far_device();
  modes();
  many_under_way();
  connections();
  polls();
  std::printf("ok\n");
  return 0;
}

}  // namespace lane_request_waiter_stress
