// A volume with a local backup, on memory devices: the only server dies under verified load, the backup is
// slow or fails, slabs are refilled from it.
//
//   engine_backup_stress [SEED]   the same failures at the same points, as far as threads allow
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>

#include "../fixture/damage.h"
#include "../fixture/workers.h"
#include "backed_up.h"

using namespace fixture;

namespace {

uint64_t seed = 0;

const int kOperationsOfAWorker = effort(120);
constexpr uint32_t kWorkers = 6;
constexpr Behaviour kIwarp{.delay_ns = 20'000, .jitter_ns = 100'000, .iwarp = true};

void when_done(const Workers& workers, uint64_t operations) {
  await([&] { return workers.done >= operations; });
}
// For each test its own.
uint64_t some_point(uint64_t test) {
  std::mt19937_64 random(seed + test);
  return kWorkers * static_cast<uint64_t>(kOperationsOfAWorker) * (1 + random() % 6) / 8;
}

uint64_t missing(TestVolume& volume) {
  return volume.engine->backup()->map().count_missing(volume.engine->volume().pages(), 0,
                                                      volume.shape.size / 4096);
}

void drop(TestVolume& volume, uint32_t slab, uint32_t server) {
  Volume::Dropped dropped;
  CHECK(volume.engine->volume().drop_replica(slab, server, false, dropped) == 0);
  CHECK(dropped.was_live && dropped.live_left == 0);
}

// Gives the slabs of server `from` a place at `to`, filled from the backup.
void restore(TestVolume& volume, uint32_t from, uint32_t to) {
  Volume& slabs = volume.engine->volume();
  for (uint32_t slab = 0; slab < slabs.slabs(); slab++) {
    if (slabs.place(slab * slabs.slab_size()).find(from) == nullptr) continue;
    drop(volume, slab, from);
    CHECK(slabs.add_replica(slab, volume.replica(slab, to)) == 0);
    std::string why;
    CHECK(volume.engine->refill(slab, to, why) == 0);
    volume.wait_until([=](const Event& event) {
      return event.type == Event::Type::slab_refilled && event.slab == slab && event.server == to;
    });
    CHECK(slabs.place(slab * slabs.slab_size()).find(to)->live);
  }
}

// 1. --ack backup: servers die in turn, each slab's only one; nothing fails, no byte is wrong, and the slabs
// are filled elsewhere from the file while everything is being written.
void only_server_dies(uint64_t test, Server::Mode how, Behaviour behaviour, uint32_t replicas) {
  const Path file("all" + std::to_string(test));
  Shape shape = backed_up(file, Acknowledge::backup, behaviour, replicas);
  shape.servers = 3;
  TestVolume volume(shape);
  {
    Workers workers(volume, kWorkers);
    std::atomic<bool> over{false};
    std::thread killer([&, point = some_point(test)] {
      when_done(workers, point);
      for (uint32_t server = 0; server < replicas; server++) volume.servers[server]->set_mode(how);
      for (uint32_t server = 0; server < replicas; server++)
        volume.wait_until([=](const Event& event) {
          return event.type == Event::Type::server_failed && event.server == server;
        });
      if (replicas == 1) restore(volume, 0, 2);
      over = true;
    });
    while (!over) workers.run(kOperationsOfAWorker, false, 300'000);
    killer.join();
    workers.run(kOperationsOfAWorker, false, 300'000);
    if (replicas == 1) {
      // What was filled from the file serves without it.
      volume.servers[1]->set_mode(how);
      workers.run(0, false, 300'000);
    }
  }
  CHECK(volume.count(Event::Type::backup_failed) == 0 && missing(volume) == 0);
  CHECK(volume.engine->volume().pages().count(PageState::lost) == 0);
  CHECK(volume.engine->backup()->statistics().bytes_read.get() > 0);
  CHECK(volume.engine->close(kCloseTime) == 0);
  CHECK(sum(volume, &LaneStatistics::errors) == 0);
}

// 2. Without waiting for the file: pages that it did not have are lost with the server, others are right.
void asynchronous(uint64_t test, Behaviour behaviour, uint32_t buffers) {
  const Path file("async" + std::to_string(test));
  Shape shape = backed_up(file, Acknowledge::all, behaviour);
  shape.options.backup.buffers = buffers;
  TestVolume volume(shape);
  {
    Workers workers(volume, kWorkers);
    std::thread killer([&, point = some_point(test)] {
      when_done(workers, point);
      volume.servers[0]->set_mode(Server::Mode::dead);
    });
    workers.run(kOperationsOfAWorker, true, 300'000);
    killer.join();
    workers.run(kOperationsOfAWorker, true, 300'000);
    std::printf("  %llu requests met lost pages\n", static_cast<unsigned long long>(workers.errors));
  }
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// 3. What had no room in the queue is caught up; then all servers may go.
void catches_up() {
  const Path file("late");
  Shape shape = backed_up(file, Acknowledge::all, kPlain);
  shape.options.backup.buffers = kMinBackupBuffers;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  std::vector<uint8_t> data(shape.size);
  fill_noise(data.data(), data.size(), seed);
  {
    const StandingFile standing;
    for (uint64_t at = 0; at < shape.size; at += 2 << 20)
      CHECK(client.write(at, data.data() + at, 2 << 20) == 0);
    // Again before the file has it, and a part of a page.
    for (int i = 0; i < 50; i++) CHECK(client.write(4096, data.data() + 4096, 4096) == 0);
    CHECK(client.write(5000, data.data() + 5000, 100) == 0);
    CHECK(volume.engine->backup()->missed() > 0);
  }
  caught_up(volume, shape.size / 4096);
  CHECK(volume.engine->refill_lane()->work().catch_up()->pages().get() > 0);
  for (const auto& server : volume.servers) server->set_mode(Server::Mode::dead);
  std::vector<uint8_t> got(shape.size);
  for (uint64_t at = 0; at < shape.size; at += 2 << 20) CHECK(client.read(at, got.data() + at, 2 << 20) == 0);
  CHECK(got == data);
  CHECK(client.read(100, got.data(), 5000) == 0 && std::memcmp(got.data(), data.data() + 100, 5000) == 0);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// 4. With no server at all it goes on in the file: whole pages, parts of pages, zeros.
void file_alone() {
  const Path file("alone");
  TestVolume volume(backed_up(file, Acknowledge::all, kPlain));
  for (const auto& server : volume.servers) server->set_mode(Server::Mode::dead);
  {
    Workers workers(volume, kWorkers);
    workers.run(kOperationsOfAWorker / 2, false, 300'000);
    CHECK(workers.errors == 0);
  }
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// 5. The file fails: reported once, and the servers go on; what only it had is lost.
void file_fails(Acknowledge acknowledge) {
  const Path file("full");
  Shape shape = backed_up(file, acknowledge, kPlain);
  shape.options.backup.sparse = true;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  std::vector<uint8_t> page(4096, 7);
  CHECK(client.write(0, page.data(), 4096) == 0);
  caught_up(volume, 1);
  rlimit limit{};
  CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small{1 << 20, limit.rlim_max};
  CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
  for (uint64_t at = 0; at < shape.size; at += 1 << 20) CHECK(client.write(at, page.data(), 4096) == 0);
  CHECK(volume.wait_for(Event::Type::backup_failed).reason[0] != '\0');
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  for (uint64_t at = 0; at < shape.size; at += 1 << 20) {
    CHECK(client.write(at + 100, page.data(), 100) == 0);
    CHECK(client.read(at, page.data(), 4096) == 0 && page[0] == 7);
  }
  CHECK(volume.count(Event::Type::backup_failed) == 1);
  volume.servers[0]->set_mode(Server::Mode::dead);
  CHECK(client.read(0, page.data(), 4096) == EIO);
  CHECK(client.write(0, page.data(), 4096) == EIO);
  CHECK(volume.engine->volume().add_replica(0, volume.replica(0, 1)) != 0);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// 6. With a map in a file the next process knows what the backup has; with another file it has nothing.
void next_process() {
  const Path file("again");
  const Path map("map");
  const Path pages("pages");
  Shape shape = backed_up(file, Acknowledge::backup, kPlain);
  shape.options.backup.map_file = map.name();
  shape.options.volume.page_map_file = pages.name();
  std::vector<uint8_t> page(4096, 9);
  {
    TestVolume volume(shape);
    Client client(volume.attach(0));
    for (uint64_t at = 0; at < shape.size; at += 1 << 20) CHECK(client.write(at, page.data(), 4096) == 0);
    int error = 0;
    std::string why;
    CHECK(TestVolume::Engine::open(
              volume.shape.options, [](const Event&) {}, error, why) == nullptr &&
          error == EBUSY);
  }
  {
    TestVolume volume(shape);
    for (const auto& server : volume.servers) server->set_mode(Server::Mode::dead);
    Client client(volume.attach(0));
    for (uint64_t at = 0; at < shape.size; at += 1 << 20) {
      page.assign(4096, 0);
      CHECK(client.read(at, page.data(), 4096) == 0 && page[4095] == 9);
    }
  }
  CHECK(unlink(file.name().c_str()) == 0);
  shape.refill_lane = false;  // nothing is caught up: these servers, unlike real ones, have lost it all
  {
    TestVolume volume(shape);
    for (const auto& server : volume.servers) server->set_mode(Server::Mode::dead);
    Client client(volume.attach(0));
    CHECK(client.read(0, page.data(), 4096) == EIO);
    CHECK(client.write(0, page.data(), 4096) == 0 && client.read(0, page.data(), 4096) == 0);
  }
}

// 10. Checksums: a page that is wrong at the servers is right in the file and the other way round, and a page
//     that is wrong in the file and that no server has is lost.
void checked() {
  const Path file("checked");
  TestVolume volume(backed_up(file, Acknowledge::backup, kPlain));
  Client client(volume.attach(0));
  std::vector<uint8_t> data(16 * 4096, 0x21);
  std::vector<uint8_t> got(data.size());
  const auto length = static_cast<uint32_t>(data.size());
  CHECK(client.write(0, data.data(), length) == 0);
  corrupt(volume, 3 * 4096, 0);
  CHECK(client.read(0, got.data(), length) == 0 && got == data);
  CHECK(volume.wait_for(Event::Type::page_repaired).page == 3);
  volume.servers[0]->set_mode(Server::Mode::dead);
  const int other = open(file.name().c_str(), O_RDWR | O_CLOEXEC);
  CHECK(pwrite(other, "\x20", 1, 5 * 4096 + 17) == 1);
  close(other);
  CHECK(client.read(0, got.data(), length) == EIO);
  CHECK(client.read(5 * 4096, got.data(), 4096) == EIO);
  CHECK(client.read(6 * 4096, got.data(), 4096) == 0 && got[0] == 0x21);
  const Event event = volume.wait_for(Event::Type::page_lost);
  CHECK(event.page == 5 && event.server == kBackupServer && volume.count(Event::Type::page_lost) == 1);
  // The slab gets a new place, filled with what is right.
  restore(volume, 0, 1);
  CHECK(client.write(5 * 4096, data.data(), 4096) == 0);
  CHECK(client.read(0, got.data(), length) == 0 && got == data);
  // Zeros take no room in the file, and nothing old comes from there.
  volume.servers[1]->set_mode(Server::Mode::dead);
  std::memset(data.data() + 4096, 0, 4096);
  CHECK(client.write(4096, data.data() + 4096, 4096) == 0);
  CHECK(client.read(0, got.data(), length) == 0 && got == data);
  CHECK(client.write(4096 + 100, data.data(), 10) == 0);
  std::memcpy(data.data() + 4096 + 100, data.data(), 10);
  CHECK(client.read(0, got.data(), length) == 0 && got == data);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// 11. What the catch-up finds wrong at the server that it asks comes from another one.
void catches_up_right() {
  const Path file("right");
  Shape shape = backed_up(file, Acknowledge::all, kPlain, 2);
  shape.options.backup.buffers = kMinBackupBuffers;
  shape.options.refill_rate = 4 << 20;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  std::vector<uint8_t> data(4 << 20, 0x42);
  uint64_t page = 1023;
  {
    const StandingFile standing;
    CHECK(client.write(0, data.data(), 4 << 20) == 0);
    while (page > 0 && volume.engine->backup()->map().get(page) != BackupState::stale) page--;
    CHECK(page > 0);
    const auto first = static_cast<uint32_t>(page * 4096 / shape.slab_size % shape.servers);
    corrupt(volume, page * 4096, first);
  }
  caught_up(volume, 1024);
  CHECK(volume.wait_for(Event::Type::page_repaired).page == page);
  for (const auto& server : volume.servers) server->set_mode(Server::Mode::dead);
  std::vector<uint8_t> got(data.size());
  CHECK(client.read(0, got.data(), 4 << 20) == 0 && got == data);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

}  // namespace

int main(int count, char** arguments) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  seed = count > 1 ? std::strtoull(arguments[1], nullptr, 0) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  timed("no server at all", file_alone);
  timed("what had no room is caught up", catches_up);
  timed("what is caught up is checked", catches_up_right);
  timed("the next process", next_process);
  timed("what is wrong", checked);
  timed("a file that fails", [] { file_fails(Acknowledge::all); });
  timed("a file that fails, --ack backup", [] { file_fails(Acknowledge::backup); });
  side_by_side({
      {"--ack backup, dies", [] { only_server_dies(0, Server::Mode::dead, kPlain, 1); }},
      {"--ack backup, hangs", [] { only_server_dies(1, Server::Mode::hung, kIwarp, 1); }},
      {"--ack backup, both die", [] { only_server_dies(2, Server::Mode::dead, kPlain, 2); }},
      {"asynchronous", [] { asynchronous(3, kPlain, 512); }},
      {"asynchronous, iWARP, a small queue", [] { asynchronous(4, kIwarp, kMinBackupBuffers); }},
  });
  std::printf("ok\n");
  return 0;
}
