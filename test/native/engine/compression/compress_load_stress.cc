// Compressed pages while lanes race for the same ones, bits flip at the servers, servers die or hang, slabs
// move, and the backup is all that is left.
#include <unistd.h>

#include "../fixture/damage.h"
#include "compressed_pages.h"

namespace engine_compress_load_stress {

using namespace fixture;

// Each slab gets a replica on the third server and gives up its first one, while the lanes go on.
void move_slabs(TestVolume& volume) {
  Volume& slabs = volume.engine->volume();
  for (uint32_t slab = 0; slab < slabs.slabs(); slab++) {
    CHECK(slabs.add_replica(slab, volume.replica(slab, (slab + 2) % 3)) == 0);
    std::string why;
    CHECK(volume.engine->refill(slab, (slab + 2) % 3, why) == 0);
    volume.wait_until([slab](const Event& event) {
      CHECK(event.type != Event::Type::refill_failed);
      return event.type == Event::Type::slab_refilled && event.slab == slab;
    });
    Volume::Dropped dropped;
    CHECK(volume.drop(slab, slab % 3, dropped) == 0 && dropped.live_left == 2);
  }
}

// Lanes write and read the same pages at the same time, and meanwhile something else goes on: each page
// that is read is one that was written.
enum class Meanwhile { nothing, flips, dies, hangs, moves };
void under_load(Behaviour behaviour, Meanwhile what) {
  const bool flips = what == Meanwhile::flips || what == Meanwhile::dies;
  Shape shape = compressed(what == Meanwhile::nothing ? 1 : 2);
  shape.behaviour = behaviour;
  shape.lanes = 3;
  shape.options.operation_timeout_ns = 500'000'000;
  TestVolume volume(shape);
  std::atomic<bool> moved{false};
  // What is to happen meanwhile may begin; and has happened.
  const auto ready = [&] {
    if (flips) return sum(volume, &LaneStatistics::pages_repaired) >= 3;
    return what != Meanwhile::hangs || sum(volume, &LaneStatistics::pages_packed) >= 300;
  };
  const auto happened = [&] {
    if (what == Meanwhile::moves) return moved.load();
    if (what == Meanwhile::dies) return volume.engine->volume().failed(0);
    if (what == Meanwhile::hangs) return volume.engine->volume().failed(1);
    return ready();
  };
  std::atomic<bool> over{false};
  {
    std::vector<std::unique_ptr<Client>> clients;
    for (uint32_t i = 0; i < shape.lanes; i++) clients.push_back(std::make_unique<Client>(volume.attach(i)));
    std::thread flipper([&] {
      std::mt19937_64 random(3);
      while (flips && !over) {
        const uint64_t offset = random() % (shape.size / 4096) * 4096;
        if (offset / shape.slab_size % 3 == 0) corrupt(volume, offset + random() % 4096, 0);
        usleep(500);
      }
    });
    std::vector<std::thread> workers;
    for (uint32_t i = 0; i < 6; i++)
      workers.emplace_back([&, i] {
        std::mt19937_64 random(i);
        std::vector<uint8_t> data(16 * 4096);
        Client& client = *clients[i % shape.lanes];
        for (int n = 0; n < effort(400) || !happened(); n++) {
          const uint64_t count = random() % 3 == 0 ? 1 + random() % 16 : 1;
          // Few enough that they meet; half of the load in one spot.
          const uint64_t pages = random() % 2 == 0 ? 24 : shape.size / 4096;
          const uint64_t first = random() % (pages - count + 1);
          const auto bytes = static_cast<uint32_t>(count * 4096);
          if (random() % 2 == 0) {
            for (uint64_t k = 0; k < count; k++) fill_page(data.data() + k * 4096, 1 + random() % 1'000'000);
            CHECK(client.write(first * 4096, data.data(), bytes) == 0);
          } else {
            CHECK(client.read(first * 4096, data.data(), bytes) == 0);
            for (uint64_t k = 0; k < count; k++) {
              const uint8_t* page = data.data() + k * 4096;
              CHECK(is_page(page) || is_filled(page, 4096, 0));
            }
          }
        }
      });
    if (what == Meanwhile::dies) {
      await(ready);
      volume.servers[0]->set_mode(Server::Mode::dead);
    }
    if (what == Meanwhile::hangs) {
      await(ready);
      volume.servers[1]->set_mode(Server::Mode::hung);
    }
    if (what == Meanwhile::moves) move_slabs(volume);
    moved = true;
    for (auto& worker : workers) worker.join();
    over = true;
    flipper.join();
    if (what == Meanwhile::moves) {
      CHECK(volume.engine->fail_server(1, "test") == 0);
      std::vector<uint8_t> page(4096);
      for (uint64_t offset = 0; offset < shape.size; offset += 4096) {
        CHECK(clients[0]->read(offset, page.data(), 4096) == 0);
        CHECK(is_page(page.data()) || is_filled(page.data(), 4096, 0));
      }
    }
  }
  CHECK(sum(volume, &LaneStatistics::errors) == 0 && volume.count(Event::Type::page_lost) == 0);
}

// The backup has pages as they are: it is caught up from slots, read when the servers die, mends what is
// wrong at them, and fills new replicas, which are raw then until they are written.
void backed_up(Acknowledge acknowledge, bool dies_under_load) {
  const File file(dies_under_load ? "backup-dies" : "backup");
  Shape shape = compressed(1);
  shape.options.backup.path = file.name();
  shape.options.backup.buffers = kMinBackupBuffers;
  shape.options.acknowledge = acknowledge;
  shape.options.operation_timeout_ns = 500'000'000;
  shape.behaviour = kSlow;
  TestVolume volume(shape);
  Volume& slabs = volume.engine->volume();
  Client client(volume.attach(0));
  auto data = pages_of(256, mixed);
  CHECK(client.write(0, data.data(), 1 << 20) == 0);
  await([&] { return volume.engine->backup()->map().run(0, 256, BackupState::held) == 256; });
  for (uint64_t page = 0; page < 256; page += 17) corrupt(volume, page * 4096 + 9, 0);
  all_right(client, data);
  CHECK(sum(volume, &LaneStatistics::pages_repaired) == 16 && slabs.lengths().get(0) == kRaw);
  if (dies_under_load) {
    // While the second of these WRITEs is under way, or a later one.
    std::atomic<int> rounds{0};
    std::thread killer([&] {
      while (rounds == 0) std::this_thread::yield();
      volume.servers[0]->set_mode(Server::Mode::dead);
    });
    for (; rounds < effort(30) || !slabs.failed(0); rounds++) {
      data = pages_of(256, [&](uint64_t i) { return mixed(i) + static_cast<uint64_t>(rounds) * 10'000; });
      CHECK(client.write(0, data.data(), 1 << 20) == 0);
    }
    killer.join();
  } else {
    volume.servers[0]->set_mode(Server::Mode::dead);
  }
  all_right(client, data);
  CHECK(slabs.failed(0));
  Volume::Dropped dropped;
  CHECK(volume.drop(0, 0, dropped) == 0 && slabs.add_replica(0, volume.replica(0, 1)) == 0);
  // Written while it is being filled: packed, and only there and in the file.
  CHECK(client.write(0, data.data(), 64 * 4096) == 0);
  std::string why;
  CHECK(volume.engine->refill(0, 1, why) == 0);
  volume.wait_for(Event::Type::slab_refilled);
  all_right(client, data);
  CHECK(client.write(0, data.data(), 1 << 20) == 0);
  all_right(client, data);
  CHECK(volume.count(Event::Type::page_lost) == 0 && volume.count(Event::Type::backup_failed) == 0);
}

STRESS(engine_compress_load) {
  timed("under load", [] { under_load(kSlow, Meanwhile::nothing); });
  timed("bits flip, iWARP completions", [] { under_load(kIwarp, Meanwhile::flips); });
  timed("bits flip, the server dies", [] { under_load(kSlow, Meanwhile::dies); });
  side_by_side({
      {"a server hangs", [] { under_load(kSlow, Meanwhile::hangs); }},
      {"a server hangs, iWARP completions", [] { under_load(kIwarp, Meanwhile::hangs); }},
  });
  timed("slabs move", [] { under_load(kSlow, Meanwhile::moves); });
  timed("slabs move, iWARP completions", [] { under_load(kIwarp, Meanwhile::moves); });
  side_by_side({
      {"a backup", [] { backed_up(Acknowledge::all, false); }},
      {"a backup, the server dies under load", [] { backed_up(Acknowledge::backup, true); }},
  });
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_compress_load_stress
