// What a lane does while nothing comes, by its mode: it looks on, or sleeps.
#include <cstdio>

#include "../engine/fixture/nbd_fixture.h"

namespace lane_looks_on_stress {

using namespace fixture;

constexpr uint64_t kHour = 3'600'000'000'000;

struct Client {
  NbdVolume volume;
  SocketClient socket;
  const LaneStatistics& statistics;
  std::vector<uint8_t> page = std::vector<uint8_t>(kPage, 1);

  explicit Client(const NbdShape& shape)
      : volume(shape), socket(volume.attach(0)), statistics(volume.engine->lane(0).statistics()) {
    CHECK(socket.write(0, page.data(), kPage) == kOk);
  }
  // Waits for a completion and for a request.
  void read() { CHECK(socket.read(0, page.data(), kPage) == kOk); }
};

NbdShape shape_of(WaitMode mode, uint64_t max_spin_ns) {
  NbdShape shape;
  shape.options.wait_mode = mode;
  shape.options.max_spin_ns = max_spin_ns;
  shape.behaviour.delay_ns = 20'000;  // or the completion is there at once
  return shape;
}

// A lane that was preempted finds what it waits for there when it is back, and has looked on for nothing.
void never_sleeps(WaitMode mode, int reads) {
  Client client(shape_of(mode, kHour));
  const uint64_t looked_on = client.statistics.spins.get(), sleeps = client.statistics.sleeps.get();
  for (int i = 0; i < reads || client.statistics.spins.get() == looked_on; i++) {
    CHECK(i < 100'000, "it never looks on");
    client.read();
  }
  CHECK(client.statistics.sleeps.get() == sleeps);
}

void polls() { never_sleeps(WaitMode::poll, 100); }

// At first it knows of no waits that take less than half of an hour. Every one takes an eighth off.
void adapts() { never_sleeps(WaitMode::adaptive, 40); }

// Completions take twenty times the bound, so nearly each is slept for, and only some are tried.
void sleeps_for_a_slow_device() {
  NbdShape shape = shape_of(WaitMode::adaptive, 100'000);
  shape.behaviour = {.delay_ns = 2'000'000};
  Client client(shape);
  for (int i = 0; i < 20; i++) client.read();
  const uint64_t sleeps = client.statistics.sleeps.get();
  for (int i = 0; i < 100; i++) client.read();
  CHECK(client.statistics.sleeps.get() >= sleeps + 90);
}

// After long waits, short ones.
void learns() {
  constexpr uint32_t kLong = 1 << 20;
  NbdShape shape = shape_of(WaitMode::adaptive, 100'000);
  shape.behaviour = {.ns_per_byte = 5};  // 20 µs a page
  Client client(shape);
  std::vector<uint8_t> data(kLong, 2);
  for (int i = 0; i < 20; i++) CHECK(client.socket.write(0, data.data(), kLong) == kOk);
  const uint64_t looked_on = client.statistics.spins.get();
  for (int i = 0; client.statistics.spins.get() < looked_on + 20; i++) {
    CHECK(i < 100'000, "it looks on no more");
    client.read();
  }
}

void sleeps_at_once() {
  Client client(shape_of(WaitMode::event, kHour));
  const uint64_t sleeps = client.statistics.sleeps.get();
  for (int i = 0; i < 100 || client.statistics.sleeps.get() == sleeps; i++) {
    CHECK(i < 100'000, "it never sleeps");
    client.read();
  }
  CHECK(client.statistics.spins.get() == 0);
}

STRESS(lane_looks_on) {
  timed("polls", polls);
  timed("adapts", adapts);
  timed("sleeps for a slow device", sleeps_for_a_slow_device);
  timed("learns", learns);
  timed("sleeps at once", sleeps_at_once);
  return 0;
}

}  // namespace lane_looks_on_stress
