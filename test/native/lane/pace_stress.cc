// Limits of servers, which all lanes of an engine share without a lock, and when slabs were used last.
#include "../engine/fixture/damage.h"
#include "../engine/fixture/nbd_fixture.h"
#include "../engine/fixture/workers.h"
#include "volume/rate_limiter.h"

namespace lane_pace_stress {

using namespace fixture;

constexpr uint64_t kMiB = 1 << 20;

// 1. Threads that start as many operations as they may: no more than the limit allows, and not less. The
// clock is theirs, and moves on when one of them has to wait.
void rate_is_kept(uint64_t bytes_limit, uint64_t operations_limit, uint32_t length) {
  constexpr int kThreads = 4;
  constexpr uint64_t kStart = 1'000'000'000'000, kTime = 2'000'000'000;
  RateLimiter pace;
  pace.set(bytes_limit, operations_limit);
  std::atomic<uint64_t> clock{kStart};
  std::atomic<uint64_t> operations{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++) {
    threads.emplace_back([&] {
      for (uint64_t now = clock; now < kStart + kTime; now = clock) {
        const uint64_t turn = pace.turn(now);
        if (turn == 0) {
          pace.charge(length, now);
          operations++;
          continue;
        }
        CHECK(turn > now);
        while (now < turn && !clock.compare_exchange_weak(now, turn)) {
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const double allowed = std::min(operations_limit == 0 ? 1e18 : static_cast<double>(operations_limit),
                                  bytes_limit == 0 ? 1e18 : static_cast<double>(bytes_limit) / length);
  const double expected = allowed * static_cast<double>(kTime + RateLimiter::kBurst) * 1e-9;
  const auto done = static_cast<double>(operations.load());
  std::printf("%.0f operations, %.0f expected\n", done, expected);
  CHECK(done >= 0.999 * expected - 1 && done <= 1.001 * expected + 2 * kThreads);
}

// 2. No limits, limits that are too low, limits lifted.
void edges() {
  RateLimiter pace;
  const uint64_t now = now_ns();
  pace.charge(1 << 30, now);
  CHECK(pace.turn(now) == 0);
  pace.set(1, 1);
  pace.charge(RateLimiter::kLeastBytes, now);
  const uint64_t turn = pace.turn(now);
  CHECK(turn > now + 900'000'000 && turn < now + 1'000'000'000);
  CHECK(pace.turn(turn) == 0);
  pace.set(0, 0);
  CHECK(pace.turn(now) == 0);
  pace.set(100'000'000'000, 0);
  for (int i = 0; i < 1000; i++) pace.charge(1 << 18, now + 10'000'000'000);  // 2.6 ms of it
  CHECK(pace.turn(now + 10'000'000'000) == 0);
}

// 3. Verified load on lanes whose servers' limits change all the time: nothing fails, and no byte is wrong.
void limits_change_under_load(Behaviour behaviour) {
  NbdShape shape;
  shape.size = 12 * kMiB;
  shape.servers = 3;
  shape.lanes = 2;
  shape.replicas = 2;
  shape.refill_lane = true;
  shape.behaviour = behaviour;
  NbdVolume volume(shape);
  {
    WorkersOf<SocketClient> workers(volume, 4);
    std::atomic<bool> done{false};
    std::thread control([&] {
      std::mt19937_64 random(7);
      while (!done) {
        const auto server = static_cast<uint32_t>(random() % 3);
        const bool open = random() % 3 == 0;
        CHECK(volume.engine->set_limits(server, open ? 0 : (2 + random() % 8) * kMiB,
                                        open ? 0 : 100 + random() % 500) == 0);
        uint64_t idle;
        CHECK(volume.engine->volume().idle(static_cast<uint32_t>(random() % 12), now_ns(), idle) == 0);
        usleep(5000);
      }
      for (uint32_t server = 0; server < 3; server++) CHECK(volume.engine->set_limits(server, 0, 0) == 0);
    });
    do workers.run(effort(150), false, 100'000);
    while (sum(volume, &LaneStatistics::turns_waited_for) == 0);
    done = true;
    control.join();
    workers.run(0, false, 100'000);
    CHECK(workers.errors == 0);
  }
  CHECK(volume.engine->set_limits(kMaxServers, 1, 1) == EINVAL);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// 4. A lane that sleeps until its turn wakes when the limit is lifted; one that waits when its engine closes
// does not hold that up.
void lifted_and_closed() {
  constexpr uint64_t kLimit = 16;  // operations a second: the lowest
  constexpr uint64_t kWrites = kLimit * 2 * kHang.count();
  NbdShape shape;
  shape.servers = 1;
  NbdVolume volume(shape);
  SocketClient client(volume.attach(0));
  const std::vector<uint8_t> page(4096, 5);
  const auto waits = [&] { return sum(volume, &LaneStatistics::turns_waited_for); };
  CHECK(volume.engine->set_limits(0, 0, kLimit) == 0);
  std::atomic<bool> done{false};
  std::thread waiting([&] {
    for (uint64_t i = 0; i < kWrites; i++) CHECK(client.write(i * 4096, page.data(), 4096) == kOk);
    done = true;
  });
  await([&] { return waits() > 0; });
  CHECK(volume.engine->set_limits(0, 0, 0) == 0);
  await([&] { return done.load(); });
  waiting.join();
  const uint64_t before = waits();
  CHECK(volume.engine->set_limits(0, 0, kLimit) == 0);
  std::thread late([&] {
    uint32_t error = kOk;
    while (error == kOk) error = client.write(0, page.data(), 4096);
    CHECK(error == kEio || error == kEshutdown || error == SocketClient::kGone);
  });
  await([&] { return waits() > before; });
  CHECK(volume.engine->close(200'000'000) == 0);
  late.join();
}

// 5. When a slab was used last: by READs and WRITEs of pages that are at a server, and nothing else.
void idle_times() {
  NbdShape shape;
  shape.size = 4 * kMiB;
  NbdVolume volume(shape);
  Volume& slabs = volume.engine->volume();
  SocketClient client(volume.attach(0));
  std::vector<uint8_t> page(4096, 5);
  const auto idle = [&](uint32_t slab) {
    uint64_t nanoseconds = 0;
    CHECK(slabs.idle(slab, now_ns(), nanoseconds) == 0);
    return nanoseconds;
  };
  CHECK(client.write(0, page.data(), 4096) == kOk && client.write(kMiB, page.data(), 4096) == kOk);
  usleep(600'000);  // what is measured is time itself
  for (uint32_t slab = 0; slab < 4; slab++) CHECK(idle(slab) > 450'000'000);
  const auto used = Clock::now();
  CHECK(client.read(0, page.data(), 4096) == kOk);
  CHECK(client.read(2 * kMiB, page.data(), 4096) == kOk);  // never written
  std::fill(page.begin(), page.end(), 5);                  // zeros would not be sent
  CHECK(client.write(3 * kMiB, page.data(), 4096) == kOk);
  // A loaded machine may take long from one line to the next; what is kept is exact within 134 ms.
  const uint64_t read = idle(0), written = idle(3);
  const double most = seconds_since(used) + 0.134;
  CHECK(static_cast<double>(read) < most * 1e9 && static_cast<double>(written) < most * 1e9);
  CHECK(idle(1) > 450'000'000 && idle(2) > 450'000'000);
  uint64_t ignored;
  CHECK(slabs.idle(4, 0, ignored) == EINVAL);
}

STRESS(lane_pace) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  timed("edges", edges);
  timed("bytes", [] { rate_is_kept(16 * kMiB, 0, 4096); });
  timed("operations", [] { rate_is_kept(0, 5000, 4096); });
  timed("both", [] { rate_is_kept(64 * kMiB, 3000, 65536); });
  side_by_side({
      {"limits change under load",
       [] { limits_change_under_load({.delay_ns = 20'000, .jitter_ns = 50'000}); }},
      {"limits change under load, iWARP",
       [] { limits_change_under_load({.delay_ns = 20'000, .jitter_ns = 100'000, .iwarp = true}); }},
      {"lifted, and closed", lifted_and_closed},
      {"idle times", idle_times},
  });
  std::printf("ok\n");
  return 0;
}

}  // namespace lane_pace_stress
