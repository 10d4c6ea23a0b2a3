// Servers that go and come back with what they had, under verified load, on memory devices: no request fails,
// and no byte is older than the last answered WRITE, in whatever order they went.
//
//   engine_stress engine_reconnect [SEED]
#include <algorithm>

#include "../fixture/damage.h"
#include "../fixture/workers.h"

namespace engine_reconnect_stress {

using namespace fixture;

uint64_t seed = 0;

const int kOperationsOfAWorker = effort(150);
const uint32_t kReturns = static_cast<uint32_t>(effort(24));
constexpr uint32_t kWorkers = 6;
constexpr Behaviour kPlain{.delay_ns = 20'000, .jitter_ns = 50'000};
constexpr Behaviour kIwarp{.delay_ns = 20'000, .jitter_ns = 100'000, .iwarp = true};

Shape of(uint32_t servers, uint32_t replicas, Behaviour behaviour) {
  Shape shape;
  shape.size = 12 << 20;
  shape.servers = servers;
  shape.lanes = 2;
  shape.replicas = replicas;
  shape.refill_lane = replicas > 1;
  shape.roomy = true;
  shape.behaviour = behaviour;
  shape.options.operation_timeout_ns = 50'000'000;
  return shape;
}

// What control does when a server fails: the last of a slab's replicas to fail stays on record until the
// server is back, others are dropped, and filled again from what is left. Then its index is free for the
// next.
class Control {
 public:
  explicit Control(TestVolume& volume) : volume_(volume), slabs_(volume.engine->volume()) {
    for (const auto& server : volume.servers) incarnations_.push_back(server.get());
    slabs_.set_waits();
  }

  // All that have failed since the last call: their records, then the way back for each, then repair.
  void settle() {
    const std::vector<uint32_t> failed = slabs_.failed_in_order();
    for (const uint32_t server : failed) {
      if (std::find(handled_.begin(), handled_.end(), server) != handled_.end()) continue;
      handled_.push_back(server);
      drop_replicas(server);
      back(server);
      release(server);
    }
    if (volume_.shape.replicas > 1) repair();
  }
  uint32_t kept() const { return kept_; }
  uint32_t dropped() const { return dropped_; }
  uint32_t came_back() const { return came_back_; }

 private:
  // As SlabTable.dropServer: the order may have grown since settle() looked.
  void drop_replicas(uint32_t server) {
    const std::vector<uint32_t> order = slabs_.failed_in_order();
    const auto place_of = [&](uint32_t which) {
      return std::find(order.begin(), order.end(), which) - order.begin();
    };
    for (uint32_t slab = 0; slab < slabs_.slabs(); slab++) {
      const SlabPlace place = slabs_.place(slab * slabs_.slab_size());
      const Replica* const replica = place.find(server);
      if (replica == nullptr) continue;
      bool last = replica->live;
      for (uint32_t i = 0; i < place.count; i++)
        if (place.replicas[i].live && place_of(place.replicas[i].server) > place_of(server)) last = false;
      if (last) {
        kept_++;
        continue;
      }
      dropped_++;
      Volume::Dropped dropped;
      CHECK(slabs_.drop_replica(slab, server, false, dropped) == 0);
    }
  }

  void back(uint32_t from) {
    Server& server = *incarnations_[from];
    server.resume();
    const auto free = std::find(incarnations_.begin(), incarnations_.end(), nullptr);
    const auto to = static_cast<uint32_t>(free - incarnations_.begin());
    if (free == incarnations_.end()) incarnations_.push_back(nullptr);
    incarnations_[to] = &server;
    volume_.connect(server, to);
    for (uint32_t slab = 0; slab < slabs_.slabs(); slab++) {
      const Replica* const there = slabs_.place(slab * slabs_.slab_size()).find(from);
      if (there == nullptr) continue;
      Replica moved = *slabs_.place(slab * slabs_.slab_size()).find(from);
      moved.server = static_cast<uint16_t>(to);
      CHECK(slabs_.move_replica(slab, from, moved) == 0);
      CHECK(slabs_.move_replica(slab, from, moved) != 0);
    }
    came_back_++;
  }

  void release(uint32_t server) {
    volume_.release(server);
    incarnations_[server] = nullptr;
    std::erase(handled_, server);
  }

  void repair() {
    for (uint32_t slab = 0; slab < slabs_.slabs(); slab++) {
      SlabPlace place = slabs_.place(slab * slabs_.slab_size());
      for (uint32_t to = 0; place.count < volume_.shape.replicas && to < incarnations_.size(); to++) {
        if (incarnations_[to] == nullptr || slabs_.failed(to) || holds(place, *incarnations_[to])) continue;
        Replica replica = volume_.replica(slab, static_cast<uint32_t>(number_of(*incarnations_[to])));
        replica.server = static_cast<uint16_t>(to);
        if (slabs_.add_replica(slab, replica) != 0) continue;  // one of them has failed by now
        std::string why;
        const size_t before = outcomes(slab, to);
        if (volume_.engine->refill(slab, to, why) != 0) continue;
        await([&] { return outcomes(slab, to) > before; });
        place = slabs_.place(slab * slabs_.slab_size());
        if (const Replica* const filled = place.find(to); filled != nullptr && !filled->live) {
          Volume::Dropped dropped;
          CHECK(slabs_.drop_replica(slab, to, false, dropped) == 0);
        }
        place = slabs_.place(slab * slabs_.slab_size());
      }
    }
  }
  size_t outcomes(uint32_t slab, uint32_t to) {
    return volume_.count_if([=](const Event& event) {
      return (event.type == Event::Type::slab_refilled || event.type == Event::Type::refill_failed) &&
             event.slab == slab && event.server == to;
    });
  }
  bool holds(const SlabPlace& place, const Server& server) const {
    for (uint32_t i = 0; i < place.count; i++)
      if (incarnations_[place.replicas[i].server] == &server) return true;
    return false;
  }
  size_t number_of(const Server& server) const {
    size_t number = 0;
    while (volume_.servers[number].get() != &server) number++;
    return number;
  }

  TestVolume& volume_;
  Volume& slabs_;
  std::vector<Server*> incarnations_;  // by index; nullptr: it is free
  std::vector<uint32_t> handled_;
  std::atomic<uint32_t> kept_{0};
  std::atomic<uint32_t> dropped_{0};
  std::atomic<uint32_t> came_back_{0};
};

// Servers go at random moments, several at once, and come back when control gets to it: no request fails.
void flapping(uint32_t servers, uint32_t replicas, Behaviour behaviour) {
  Shape shape = of(servers, replicas, behaviour);
  TestVolume volume(shape);
  Control control(volume);
  std::atomic<bool> over{false};
  {
    Workers workers(volume, kWorkers);
    std::thread breaker([&] {
      std::mt19937_64 random(seed);
      while (!over) {
        usleep(static_cast<useconds_t>(random() % 10'000));
        for (auto& server : volume.servers) {
          const auto how = random() % 3 == 0 ? Server::Mode::hung : Server::Mode::dead;
          if (random() % 3 != 0) server->set_mode(how);
        }
        // Those that hang are noticed after the operation timeout.
        usleep(static_cast<useconds_t>(random() % 2 == 0 ? random() % 3'000 : random() % 100'000));
        control.settle();
        // Those whose failure was not noticed.
        for (auto& server : volume.servers) server->set_mode(Server::Mode::healthy);
      }
      while (!over) {
        control.settle();
        usleep(1'000);
      }
    });
    do workers.run(kOperationsOfAWorker, false, 300'000);
    while (control.came_back() < kReturns || control.kept() == 0 || (replicas > 1 && control.dropped() == 0));
    over = true;
    breaker.join();
  }
  CHECK(volume.engine->close(kCloseTime) == 0);
  CHECK(sum(volume, &LaneStatistics::errors) == 0);
  CHECK(volume.engine->volume().count_pages(PageState::lost) == 0);
  std::printf("%u servers, %u replicas: %u returns, %u slabs waited for, %u replicas dropped\n", servers,
              replicas, control.came_back(), control.kept(), control.dropped());
}

// A server comes back more often than there are indexes, and what it has goes on each time.
void more_returns_than_indexes() {
  TestVolume volume(of(1, 1, kPlain));
  Control control(volume);
  Client client(volume.attach(0));
  std::vector<uint8_t> page(4096);
  for (uint32_t i = 0; i < kMaxServers + 100; i++) {
    const auto byte = static_cast<uint8_t>(i % 251 + 1);
    std::fill(page.begin(), page.end(), byte);
    CHECK(client.write(i % 16 * 4096, page.data(), 4096) == 0);
    const uint32_t index = volume.engine->volume().place(0).replicas[0].server;
    CHECK(volume.engine->fail_server(index, "cut") == 0);
    control.settle();
    CHECK(client.read(i % 16 * 4096, page.data(), 4096) == 0 && page[0] == byte && page[4095] == byte);
  }
  CHECK(control.came_back() == kMaxServers + 100);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// An index stays its server's as long as anything may name it.
void index_in_use() {
  TestVolume volume(of(2, 1, kPlain));
  VolumeEngine& engine = *volume.engine;
  std::string why;
  CHECK(engine.disconnect_server(kMaxServers, why) == EINVAL);
  CHECK(engine.disconnect_server(0, why) == ENOENT);
  CHECK(engine.release_server(0, why) == ENOENT);
  for (uint32_t server = 0; server < 2; server++) CHECK(engine.fail_server(server, "cut") == 0);
  volume.wait_for_count(Event::Type::server_failed, 2);
  CHECK(engine.disconnect_server(0, why) == EBUSY);  // slabs are there
  for (uint32_t slab = 0; slab < engine.volume().slabs(); slab++) {
    Volume::Dropped dropped;
    CHECK(engine.volume().drop_replica(slab, slab % 2, false, dropped) == 0);
  }
  CHECK(engine.release_server(0, why) == EBUSY);  // lanes are connected
  CHECK(engine.disconnect_server(0, why) == 0);
  CHECK(engine.release_server(0, why) == EBUSY);     // no lane has said that its queue pair is gone
  CHECK(engine.disconnect_server(1, why) == EBUSY);  // one at a time
  volume.release(0);
  CHECK(!engine.volume().failed(0) && engine.volume().failed_in_order() == std::vector<uint32_t>{1});
  volume.release(1);
  CHECK(engine.volume().failed_in_order().empty());
  volume.servers[0]->resume();
  volume.connect(*volume.servers[0], 0);
  CHECK(engine.close(kCloseTime) == 0);
}

// Operations outstanding to a failed server keep its index, for as long as the device has them.
void index_under_way() {
  Shape shape = of(1, 1, kPlain);
  shape.options.operation_timeout_ns = kNever;
  TestVolume volume(shape);
  VolumeEngine& engine = *volume.engine;
  Client client(volume.attach(0));
  std::vector<uint8_t> page(4096, 5);
  volume.servers[0]->set_mode(Server::Mode::hung);
  std::thread writer([&] { CHECK(client.write(0, page.data(), 4096) == EIO); });
  await([&] { return engine.lane(0).statistics().outstanding_operations.get() == 1; });
  CHECK(engine.fail_server(0, "cut") == 0);
  volume.wait_for(Event::Type::server_failed);
  for (uint32_t slab = 0; slab < engine.volume().slabs(); slab++) {
    Volume::Dropped dropped;
    CHECK(engine.volume().drop_replica(slab, 0, false, dropped) == 0);
  }
  volume.release(0);
  CHECK(engine.lane(0).statistics().outstanding_operations.get() == 0);
  writer.join();
  CHECK(engine.close(kCloseTime) == 0);
}

// A page that waits holds up no other: one server of two is away.
void others_go_on() {
  TestVolume volume(of(2, 1, kPlain));
  Control control(volume);
  Client client(volume.attach(0));
  Volume& slabs = volume.engine->volume();
  std::vector<uint8_t> page(4096, 5);
  for (uint64_t slab = 0; slab < 2; slab++)
    CHECK(client.write(slab * slabs.slab_size(), page.data(), 4096) == 0);
  volume.servers[0]->set_mode(Server::Mode::dead);
  std::atomic<int> answered{0};
  std::vector<uint8_t> mine(4096, 7), got(4096), large(64 << 10);
  std::vector<std::thread> waiting;
  waiting.emplace_back([&] {
    CHECK(client.read(0, got.data(), 4096) == 0 && got[0] == 5);
    answered++;
  });
  waiting.emplace_back([&] {
    CHECK(client.write(8192, mine.data(), 4096) == 0);
    answered++;
  });
  waiting.emplace_back([&] {
    CHECK(client.write(4096 + 100, mine.data(), 100) == 0);
    answered++;
  });
  waiting.emplace_back([&] {
    // Both slabs: half of it has no place to come from.
    CHECK(client.read(slabs.slab_size() - (32 << 10), large.data(), 64 << 10) == 0 && large[32 << 10] == 5);
    answered++;
  });
  volume.wait_for(Event::Type::server_failed);
  for (int i = 0; i < 50; i++) {
    CHECK(client.read(slabs.slab_size(), page.data(), 4096) == 0 && page[0] == 5);
    CHECK(client.write(slabs.slab_size() + 4096, page.data(), 4096) == 0);
    CHECK(client.write_zeroes(slabs.slab_size() + 8192, 4096) == 0);
  }
  // The READ of both slabs knows no data in the first: zeros, unless it came after a WRITE.
  CHECK(answered <= 1);
  control.settle();
  for (auto& thread : waiting) thread.join();
  CHECK(answered == 4);
  CHECK(client.read(8192, page.data(), 4096) == 0 && page == mine);
  CHECK(client.read(4096, page.data(), 4096) == 0 && page[99] == 0 && page[100] == 7 && page[200] == 0);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// Time is up: control drops the replicas, and what waited is EIO.
void given_up() {
  TestVolume volume(of(1, 1, kPlain));
  Volume& slabs = volume.engine->volume();
  slabs.set_waits();
  Client client(volume.attach(0));
  std::vector<uint8_t> page(4096, 5);
  CHECK(client.write(0, page.data(), 4096) == 0);
  volume.servers[0]->set_mode(Server::Mode::dead);
  std::atomic<int> answered{0};
  std::thread reader([&] {
    std::vector<uint8_t> got(4096);
    CHECK(client.read(0, got.data(), 4096) == EIO);
    answered++;
  });
  std::thread writer([&] {
    CHECK(client.write(4096, page.data(), 4096) == EIO);
    answered++;
  });
  volume.wait_for(Event::Type::server_failed);
  await([&] { return volume.engine->lane(0).statistics().in_flight.get() == 2; });
  // Both wait while the lane answers others, which know no data.
  std::vector<uint8_t> zeros(4096);
  for (int i = 0; i < 100; i++) CHECK(client.read(8192, zeros.data(), 4096) == 0);
  CHECK(answered == 0);
  for (uint32_t slab = 0; slab < slabs.slabs(); slab++) {
    Volume::Dropped dropped;
    CHECK(slabs.drop_replica(slab, 0, false, dropped) == 0 && dropped.was_live && dropped.live_left == 0);
  }
  reader.join();
  writer.join();
  CHECK(client.read(8192, page.data(), 4096) == 0);  // never written
}

// A client that leaves, and an engine that closes, do not wait for a server.
void left() {
  TestVolume volume(of(1, 1, kPlain));
  volume.engine->volume().set_waits();
  std::vector<uint8_t> page(4096, 5);
  for (int round = 0; round < 2; round++) {
    Client client(volume.attach(0));
    if (round == 0) CHECK(client.write(0, page.data(), 4096) == 0);
    volume.servers[0]->set_mode(Server::Mode::dead);
    std::thread reader([&] {
      std::vector<uint8_t> got(4096);
      CHECK(client.read(0, got.data(), 4096) == Client::kGone);
    });
    std::thread writer([&] { CHECK(client.write(4096, page.data(), 4096) == Client::kGone); });
    volume.wait_for(Event::Type::server_failed);
    await([&] { return volume.engine->lane(0).statistics().in_flight.get() == 2; });
    if (round == 0) {
      client.leave();
    } else {
      CHECK(volume.engine->close(200'000'000) == 0);
    }
    reader.join();
    writer.join();
  }
}

STRESS(engine_reconnect) {
  seed = count > 1 ? std::strtoull(arguments[1], nullptr, 0) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  side_by_side({
      {"other slabs go on", others_go_on},
      {"given up", given_up},
      {"left while it waited", left},
      {"more returns than indexes", more_returns_than_indexes},
      {"an index in use", index_in_use},
      {"an index under way", index_under_way},
      {"one server", [] { flapping(1, 1, kPlain); }},
      {"three servers", [] { flapping(3, 1, kPlain); }},
  });
  side_by_side({
      {"three servers, iWARP completions", [] { flapping(3, 1, kIwarp); }},
      {"2 replicas on 3", [] { flapping(3, 2, kPlain); }},
      {"3 replicas on 3, iWARP completions", [] { flapping(3, 3, kIwarp); }},
  });
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_reconnect_stress
