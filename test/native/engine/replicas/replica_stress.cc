// Volumes with replicas, on memory devices: servers that die, hang and come back under verified load,
// refills while pages are written, and what happens when no copy is left.
//
//   engine_stress engine_replica [SEED]   the same failures at the same points, as far as threads allow
#include "../fixture/damage.h"
#include "../fixture/workers.h"

namespace engine_replica_stress {

using namespace fixture;

uint64_t seed = 0;

const int kOperationsOfAWorker = effort(120);
constexpr uint32_t kWorkers = 6;

Shape replicated(uint32_t replicas, Behaviour behaviour) {
  Shape shape;
  shape.size = 12 << 20;
  shape.servers = 3;
  shape.lanes = 2;
  shape.replicas = replicas;
  shape.refill_lane = true;
  shape.behaviour = behaviour;
  shape.options.operation_timeout_ns = 300'000'000;
  return shape;
}
constexpr Behaviour kPlain{.delay_ns = 20'000, .jitter_ns = 50'000};
constexpr Behaviour kIwarp{.delay_ns = 20'000, .jitter_ns = 100'000, .iwarp = true};

void when_done(const Workers& workers, uint64_t operations) {
  await([&] { return workers.done >= operations; });
}
// For each test its own.
uint64_t some_point(uint64_t test) {
  std::mt19937_64 random(seed + test);
  return kWorkers * static_cast<uint64_t>(kOperationsOfAWorker) * (1 + random() % 6) / 8;
}

// 1. One server goes at a random point: no request fails, no byte is wrong. `heals`: it answers again
// later, with old data, and must not be asked any more.
void one_failure(uint64_t test, uint32_t replicas, Server::Mode how, Behaviour behaviour, bool heals) {
  TestVolume volume(replicated(replicas, behaviour));
  {
    Workers workers(volume, kWorkers);
    std::thread killer([&, point = some_point(test)] {
      when_done(workers, point);
      volume.servers[1]->set_mode(how);
      if (!heals) return;
      volume.wait_for(Event::Type::server_failed);
      volume.servers[1]->set_mode(Server::Mode::healthy);
    });
    workers.run(kOperationsOfAWorker, false, 300'000);
    killer.join();
    workers.run(0, false, 300'000);
    CHECK(volume.wait_for(Event::Type::server_failed).server == 1);
  }
  CHECK(volume.count(Event::Type::server_failed) == 1);
  CHECK(volume.engine->close(kCloseTime) == 0);
  CHECK(sum(volume, &LaneStatistics::errors) == 0);
}

int drop(TestVolume& volume, uint32_t slab, uint32_t server) {
  Volume::Dropped dropped;
  const int error = volume.drop(slab, server, dropped);
  CHECK(error != 0 || (dropped.was_live && dropped.live_left == 1));
  return error;
}

// Gives every slab that server `from` held a replica where it has none, and waits for each to be filled.
void repair(TestVolume& volume, uint32_t from) {
  Volume& slabs = volume.engine->volume();
  for (uint32_t slab = 0; slab < slabs.slabs(); slab++) {
    const SlabPlace place = slabs.place(slab * slabs.slab_size());
    if (place.find(from) == nullptr) continue;
    uint32_t to = 0;
    while (place.find(to) != nullptr || slabs.failed(to)) to++;
    CHECK(drop(volume, slab, from) == 0);
    CHECK(slabs.add_replica(slab, volume.replica(slab, to)) == 0);
    CHECK(slabs.add_replica(slab, volume.replica(slab, to)) == EEXIST);
    std::string why;
    CHECK(volume.engine->refill(slab, to, why) == 0);
    volume.wait_until([=](const Event& event) {
      return event.type == Event::Type::slab_refilled && event.slab == slab && event.server == to;
    });
    CHECK(slabs.place(slab * slabs.slab_size()).find(to)->live);
  }
}

// 2. A server dies, its slabs are filled elsewhere while everything is being written, and then each of the
// other two dies in its turn as far as copies go: still nothing fails.
void refill_under_load(uint64_t test, Behaviour behaviour, Acknowledge acknowledge) {
  Shape shape = replicated(2, behaviour);
  shape.servers = 4;
  shape.options.acknowledge = acknowledge;
  TestVolume volume(shape);
  {
    Workers workers(volume, kWorkers);
    std::atomic<bool> repaired{false};
    std::thread control([&, point = some_point(test) / 2] {
      when_done(workers, point);
      volume.servers[0]->set_mode(Server::Mode::dead);
      volume.wait_for(Event::Type::server_failed);
      repair(volume, 0);
      if (acknowledge == Acknowledge::all) {
        volume.servers[1]->set_mode(Server::Mode::dead);
        volume.wait_until(
            [](const Event& event) { return event.type == Event::Type::server_failed && event.server == 1; });
        repair(volume, 1);
      }
      repaired = true;
    });
    // Pages acknowledged by only one server may be lost with it; they may not be wrong.
    const bool lossy = acknowledge == Acknowledge::one;
    while (!repaired) workers.run(kOperationsOfAWorker, lossy, 100'000);
    control.join();
    if (!lossy) volume.servers[2]->set_mode(Server::Mode::dead);
    workers.run(kOperationsOfAWorker, lossy, 300'000);
    if (lossy)
      std::printf("  %llu requests met lost pages\n", static_cast<unsigned long long>(workers.errors));
  }
  const RefillStatistics& refills = volume.engine->refill_lane()->work().refill().statistics();
  const uint64_t slabs = refills.slabs.get();
  CHECK(slabs >= 6 && refills.bytes.get() > 0 && refills.active.get() == 0);
  CHECK(volume.count(Event::Type::refill_failed) == 0);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// 3. The target of a refill dies, or its source does.
void refill_fails(bool source) {
  Shape shape = replicated(2, kPlain);
  shape.options.refill_rate = 1 << 16;  // 16 s: slow enough to be met under way
  TestVolume volume(shape);
  Volume& slabs = volume.engine->volume();
  Client client(volume.attach(0));
  std::vector<uint8_t> data(1 << 20, 0x3c);
  CHECK(client.write(0, data.data(), 1 << 20) == 0);
  CHECK(drop(volume, 0, 1) == 0);
  CHECK(slabs.add_replica(0, volume.replica(0, 2)) == 0);
  std::string why;
  CHECK(volume.engine->refill(0, 2, why) == 0);
  CHECK(volume.engine->refill(0, 2, why) == EBUSY);
  const RefillStatistics& progress = volume.engine->refill_lane()->work().refill().statistics();
  await([&] { return progress.pages_done.get() > 0; });
  CHECK(progress.active.get() == 1 && progress.slab.get() == 0 && progress.pages.get() == 256);
  volume.servers[source ? 0 : 2]->set_mode(Server::Mode::dead);
  const Event event = volume.wait_for(Event::Type::refill_failed);
  CHECK(event.slab == 0 && event.server == 2 && event.reason[0] != '\0');
  std::vector<uint8_t> got(1 << 20);
  const int error = client.read(0, got.data(), 1 << 20);
  CHECK(error == (source ? EIO : 0) && (source || got == data));
  CHECK(!slabs.place(0).find(2)->live);
  if (source) CHECK(slabs.add_replica(0, volume.replica(0, 1)) == ENODATA);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// 4. No faster than it may: 1 MiB at 4 MiB/s.
void refill_rate() {
  Shape shape = replicated(2, {});
  shape.options.refill_rate = 4 << 20;
  TestVolume volume(shape);
  Volume& slabs = volume.engine->volume();
  Client client(volume.attach(0));
  const std::vector<uint8_t> data(1 << 20, 0x3c);
  CHECK(client.write(0, data.data(), 1 << 20) == 0);
  CHECK(drop(volume, 0, 1) == 0 && slabs.add_replica(0, volume.replica(0, 2)) == 0);
  const auto start = Clock::now();
  std::string why;
  CHECK(volume.engine->refill(0, 2, why) == 0);
  volume.wait_for(Event::Type::slab_refilled);
  CHECK(seconds_since(start) > 0.15);
}

// 5. Both servers of a slab die: EIO for its written pages, the rest goes on, and a new place takes new data.
void nothing_left() {
  TestVolume volume(replicated(2, kPlain));
  Volume& slabs = volume.engine->volume();
  Client client(volume.attach(0));
  std::vector<uint8_t> page(4096, 5);
  for (uint64_t slab = 0; slab < 3; slab++)
    CHECK(client.write(slab * slabs.slab_size(), page.data(), 4096) == 0);
  for (const int server : {0, 1}) volume.servers[static_cast<size_t>(server)]->set_mode(Server::Mode::dead);
  CHECK(client.read(0, page.data(), 4096) == EIO);  // slab 0: on 0 and 1
  CHECK(client.write(0, page.data(), 4096) == EIO);
  CHECK(client.read(8192, page.data(), 4096) == 0 && page[0] == 0);               // never written
  CHECK(client.read(slabs.slab_size(), page.data(), 4096) == 0 && page[0] == 5);  // slab 1: on 1 and 2
  CHECK(client.read(2 * slabs.slab_size(), page.data(), 4096) == 0);
  volume.wait_until([](const Event& event) { return event.type == Event::Type::server_failed; });
  const Replica elsewhere = volume.replica(0, 2);
  CHECK(slabs.replace_slab(0, elsewhere.server, elsewhere.remote_key, elsewhere.address, true) == 0);
  CHECK(client.read(0, page.data(), 4096) == EIO);
  CHECK(client.write(100, page.data(), 100) == EIO);
  CHECK(client.write(0, page.data(), 4096) == 0 && client.read(0, page.data(), 4096) == 0);
}

// 6. An epoch is acknowledged when nothing that started before it is left, and not earlier.
void synchronizes() {
  Shape shape = replicated(2, kPlain);
  shape.options.operation_timeout_ns = 500'000'000;
  TestVolume volume(shape);
  const auto passed = [&](uint64_t epoch) {
    volume.wait_until(
        [=](const Event& event) { return event.type == Event::Type::synchronized && event.epoch >= epoch; });
  };
  passed(volume.engine->synchronize());
  const uint64_t first = volume.engine->synchronize();
  const uint64_t second = volume.engine->synchronize();  // before the first is through: they are not one
  CHECK(second >= first);
  passed(second);
  Client client(volume.attach(0));
  const std::vector<uint8_t> page(4096, 5);
  volume.servers[0]->set_mode(Server::Mode::hung);
  const auto start = Clock::now();
  std::thread writer([&] { CHECK(client.write(0, page.data(), 4096) == 0); });
  await([&] { return volume.engine->lane(0).statistics().rdma_writes.get() > 0; });
  passed(volume.engine->synchronize());
  // The operation timeout, or nearly: a lane goes by the time at which its present turn began.
  CHECK(seconds_since(start) > 0.3);
  writer.join();
}

// 7. A replica on a server that a lane cannot reach would miss that lane's writes: the server fails instead.
void unreachable_replica() {
  Shape shape = replicated(2, kPlain);
  TestVolume volume(shape);
  Volume& slabs = volume.engine->volume();
  Client client(volume.attach(0));
  std::vector<uint8_t> page(4096, 5);
  CHECK(drop(volume, 0, 1) == 0);
  Replica stranger = volume.replica(0, 2);
  stranger.server = 77;
  CHECK(slabs.add_replica(0, stranger) == 0);
  CHECK(client.write(0, page.data(), 4096) == 0 && client.read(0, page.data(), 4096) == 0);
  CHECK(volume.wait_for(Event::Type::server_failed).server == 77);
  CHECK(slabs.promote_replica(0, 77) == EHOSTDOWN);
  CHECK(slabs.add_replica(1, stranger) == EHOSTDOWN);
}

// 8. A device that never gives its work requests back: the other replica answers all the same.
void kept_flushes() {
  Shape shape = replicated(2, kPlain);
  shape.behaviour.keeps_flushes = true;
  shape.servers = 2;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  std::vector<uint8_t> page(4096, 5);
  CHECK(client.write(0, page.data(), 4096) == 0);
  volume.servers[0]->set_mode(Server::Mode::hung);
  CHECK(client.write(0, page.data(), 4096) == 0);  // decided by the other one
  CHECK(client.read(0, page.data(), 4096) == 0 && page[0] == 5);
  CHECK(volume.engine->close(100'000'000) == ETIMEDOUT);
  // Its lanes must stay; somebody must know them, or the leak checker speaks up.
  static TestVolume::Engine* volatile stuck;
  stuck = volume.engine.release();
  CHECK(stuck != nullptr);
}

STRESS(engine_replica) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  seed = count > 1 ? std::strtoull(arguments[1], nullptr, 0) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  side_by_side({
      {"no copy left", nothing_left},
      {"epochs", synchronizes},
      {"a replica that a lane cannot reach", unreachable_replica},
      {"a device that keeps its work requests", kept_flushes},
      {"a refill whose target dies", [] { refill_fails(false); }},
      {"a refill whose source dies", [] { refill_fails(true); }},
      {"refill rate", refill_rate},
  });
  side_by_side({
      {"a server dies, 2 replicas", [] { one_failure(0, 2, Server::Mode::dead, kPlain, false); }},
      {"a server hangs, 2 replicas", [] { one_failure(1, 2, Server::Mode::hung, kPlain, false); }},
      {"a server comes back, 2 replicas", [] { one_failure(2, 2, Server::Mode::hung, kPlain, true); }},
  });
  side_by_side({
      {"a server dies, 3 replicas, iWARP", [] { one_failure(3, 3, Server::Mode::dead, kIwarp, false); }},
      {"a server comes back, 2 replicas, iWARP", [] { one_failure(4, 2, Server::Mode::hung, kIwarp, true); }},
  });
  timed("refill under load", [] { refill_under_load(5, kPlain, Acknowledge::all); });
  timed("refill under load, iWARP", [] { refill_under_load(6, kIwarp, Acknowledge::all); });
  timed("refill under load, --ack one", [] { refill_under_load(7, kIwarp, Acknowledge::one); });
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_replica_stress
