// Orders of events of a local backup that chance seldom brings about, one by one. Each was found by a
// mutation that nothing else caught (test/mutation/README.md).
#include <sys/resource.h>

#include <random>

#include "../fixture/bare_queue.h"
#include "backed_up.h"

using namespace fixture;

namespace {

void all_die(TestVolume& volume) {
  for (const auto& server : volume.servers) server->set_mode(Server::Mode::dead);
}

int write(Client& client, uint64_t page, uint8_t byte) {
  const std::vector<uint8_t> bytes(4096, byte);
  return client.write(page * 4096, bytes.data(), 4096);
}

// A file that takes nothing, while one exists. No other file may be written meanwhile.
class FullFile {
 public:
  FullFile() {
    CHECK(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit none{0, before_.rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
  }
  ~FullFile() { CHECK(setrlimit(RLIMIT_FSIZE, &before_) == 0); }

 private:
  rlimit before_{};
};

// A WRITE that only the file could have, and that it cannot take, failed.
void fails_under_a_write() {
  const Path file("under");
  TestVolume volume(backed_up(file, Acknowledge::all, kPlain));
  Client client(volume.attach(0));
  CHECK(write(client, 0, 0x11) == 0);
  caught_up(volume, 1);
  all_die(volume);
  CHECK(write(client, 0, 0x22) == 0);
  {
    const FullFile full;
    CHECK(write(client, 0, 0x33) == EIO);
  }
  volume.wait_for(Event::Type::backup_failed);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// A file goes on after a write that stopped short where that stopped.
void stops_short() {
  const Path file("short");
  TestVolume volume(backed_up(file, Acknowledge::all, kPlain));
  Client client(volume.attach(0));
  std::vector<uint8_t> data(64 * 4096);
  fill_noise(data.data(), data.size(), 1);
  {
    const StandingFile standing;
    CHECK(write(client, 2000, 0x11) == 0);
    // It stands there with one page, and what comes now is written together.
    await([&] { return volume.engine->backup()->statistics().writes.get() == 1; });
    CHECK(client.write(0, data.data(), static_cast<uint32_t>(data.size())) == 0);
    file_takes = 3 * 4096;
  }
  caught_up(volume, 64);
  CHECK(file_takes == 0);
  all_die(volume);
  std::vector<uint8_t> got(data.size());
  CHECK(client.read(0, got.data(), static_cast<uint32_t>(got.size())) == 0 && got == data);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// A map's statements about one file are not true of another one, which is not empty either.
void another_file() {
  const Path one("one");
  const Path other("other");
  const Path map("map");
  const Path pages("pages");
  Shape shape = backed_up(one, Acknowledge::backup, kPlain);
  shape.refill_lane = false;
  const auto run = [&shape](const std::function<void(TestVolume&, Client&)>& work) {
    TestVolume volume(shape);
    Client client(volume.attach(0));
    work(volume, client);
    CHECK(volume.engine->close(kCloseTime) == 0);
  };
  shape.options.backup.path = other.name();
  run([](TestVolume&, Client& client) { CHECK(write(client, 0, 0x11) == 0); });
  shape.options.backup.path = one.name();
  shape.options.backup.map_file = map.name();
  shape.options.volume.page_map_file = pages.name();
  run([](TestVolume&, Client& client) { CHECK(write(client, 0, 0x22) == 0); });
  shape.options.backup.path = other.name();
  run([](TestVolume& volume, Client& client) {
    all_die(volume);
    std::vector<uint8_t> got(4096);
    CHECK(client.read(0, got.data(), 4096) == EIO);
  });
}

// A backup without lanes, whose file is memory.
class BareBackup {
 public:
  explicit BareBackup(const char* name, uint64_t timeout_ns = BackupOptions().timeout_ns)
      : path_(name, "/dev/shm"), backup(options(path_, timeout_ns)) {
    std::vector<std::string> warnings;
    std::string why;
    CHECK(backup.open(
              BareQueue::kSlab, [] {}, warnings, why) == 0,
          "%s", why.c_str());
  }
  ~BareBackup() { CHECK(backup.stop(memory_device::now() + kCloseTime)); }

 private:
  static BackupOptions options(const Path& path, uint64_t timeout_ns) {
    BackupOptions options;
    options.path = path.name();
    options.timeout_ns = timeout_ns;
    options.buffers = kMinBackupBuffers;
    return options;
  }
  const Path path_;

 public:
  Backup backup;
};

// A page that a WRITE holds while the catch-up passes over it is brought afterwards.
void passed_over_a_claim() {
  constexpr uint64_t kPage5 = 5 * 4096;
  BareBackup with("claim");
  BareQueue lane(1, 1, &with.backup);
  BackupCatchUp catch_up(lane.volume, lane.arena, *lane.queue, 0, lane.statistics, lane);
  lane.catch_up = &catch_up;
  const BackupMap& map = with.backup.map();
  // A part of a page that the file does not have misses it.
  CHECK(lane.volume.pages().claim(5, 1, PageState::unset) == 1);
  BackupPort* const writer = with.backup.open_port();
  std::vector<uint8_t> bytes(512);
  Operation write;
  write.index = 0;
  write.offset = kPage5;
  write.length = 512;
  write.memory = bytes.data();
  writer->begin(write);
  writer->offer(write);
  CHECK(with.backup.missed() == 1 && map.get(5) == BackupState::stale);
  // Whoever waits until the file has all must not miss it.
  CHECK(map.count_missing(lane.volume.pages(), 0, 32) == 1);

  uint64_t now = 1;
  const auto pass = [&] {
    now += 1'000'000'000;
    catch_up.step(now);
    lane.queue->flush(now);
    lane.run_out();
    lane.queue->poll_backup();
  };
  pass();
  pass();
  CHECK(map.get(5) == BackupState::stale && catch_up.pages().get() == 0);
  CHECK(lane.volume.settle(5, 1, lane.volume.generation(kPage5), PageState::written));
  {
    // While it is queued it can be claimed, and was answered long ago.
    const StandingFile standing;
    pass();
    CHECK(catch_up.pages().get() == 1);
    pass();
    CHECK(map.bringing());
  }
  await([&] { return map.get(5) == BackupState::held; });
  lane.queue->poll_backup();  // then it has nothing left to do
  pass();
  pass();
  CHECK(catch_up.pages().get() == 1 && !catch_up.busy() && !map.bringing());
}

// A request to the file just before its thread announces its sleep is served. Other ports prolong the time
// between its check of one and that announcement.
void asked_before_it_sleeps() {
  struct Listener final : BackupListener {
    void backup_over(uint16_t, bool succeeded) override {
      CHECK(succeeded);
      over++;
    }
    void backup_abandoned(uint16_t) override { CHECK(false); }
    int over = 0;
  };
  BareBackup with("asleep");
  BackupPort* const port = with.backup.open_port();
  port->on_wake([] {});
  for (uint32_t i = 0; i < kMaxLanes; i++) CHECK(with.backup.open_port() != nullptr);
  alignas(4096) static std::array<uint8_t, 4096> page;
  Operation read;
  read.index = 0;
  read.length = 4096;
  read.memory = page.data();
  Listener listener;
  std::mt19937_64 random(1);
  const int times = chances(40'000);
  for (int i = 1; i <= times; i++) {
    port->begin(read);
    port->read(read);
    port->flush();
    for (const auto deadline = Clock::now() + kHang; listener.over < i;) {
      port->poll(listener, &read);
      CHECK(Clock::now() < deadline, "READ %d", i);
    }
    for (volatile uint64_t left = random() % 1024; left > 0;) left = left - 1;
  }
}

// What a lane queued before it ended is in the file, also when that comes just after the thread has looked.
// Other ports prolong the time from its look at one to its look at the end.
void ends_after_its_last_look() {
  std::vector<uint8_t> bytes(4096, 0x11);
  Operation write;
  write.index = 0;
  write.length = 4096;
  write.memory = bytes.data();
  std::mt19937_64 random(1);
  const int times = chances(2'000);
  for (int i = 0; i < times; i++) {
    BareBackup with("end");
    BackupPort* const port = with.backup.open_port();
    for (int more = 0; more < 8; more++) CHECK(with.backup.open_port() != nullptr);
    for (const uint64_t page : {0, 1}) {
      write.offset = page * 4096;
      port->begin(write);
      port->offer(write);
      if (page == 1) break;
      port->flush();
      for (const auto deadline = Clock::now() + kHang; port->queued() > 0;)
        CHECK(Clock::now() < deadline, "round %d", i);
      for (volatile uint64_t left = random() % 256; left > 0;) left = left - 1;
    }
    CHECK(with.backup.stop(memory_device::now() + kCloseTime));
    CHECK(with.backup.map().get(1) == BackupState::held, "round %d", i);
  }
}

// A lane whose process stood still, and that runs before the thread of the file after it: that the file's
// call took longer than it may says nothing then. Again and again, each time in a call of its own.
void stood_still_in_a_call() {
  constexpr uint64_t kTimeout = 30'000'000;
  struct Listener final : BackupListener {
    void backup_over(uint16_t, bool succeeded) override {
      CHECK(succeeded);
      over++;
    }
    void backup_abandoned(uint16_t) override { CHECK(false); }
    int over = 0;
  };
  BareBackup with("still", kTimeout);
  BackupPort* const port = with.backup.open_port();
  port->on_wake([] {});
  std::vector<uint8_t> bytes(4096, 0x11);
  Operation write;
  write.index = 0;
  write.length = 4096;
  write.memory = bytes.data();
  Listener listener;
  file_stands_in = 0;
  for (int i = 1; i <= 6; i++) {
    {
      const StandingFile standing;
      write.offset = static_cast<uint64_t>(i) * 4096;
      port->begin(write);
      port->offer(write);
      CHECK(port->keep(write) == BackupPort::Kept::later);
      port->flush();
      // What is waited for is time itself: the timeout, and more than a step of the coarse clock.
      await([&] { return file_stands_in >= i; });
      usleep(2 * kTimeout / 1'000);
      port->poll(listener, &write);
      CHECK(with.backup.working() && listener.over == i - 1);
    }
    // Then the thread of the file gets a processor, too.
    await([&] { return port->queued() == 0; });
    await([&] {
      port->poll(listener, &write);
      return listener.over == i;
    });
    CHECK(with.backup.working());
  }
}

constexpr uint64_t kHangTime = 500'000'000;  // a file that hangs for longer has failed

Shape hanging(const Path& file, uint32_t servers, bool refill_lane) {
  Shape shape = backed_up(file, Acknowledge::all, kPlain);
  shape.servers = servers;
  shape.lanes = 1;
  shape.refill_lane = refill_lane;
  shape.options.backup.buffers = kMinBackupBuffers;
  shape.options.backup.timeout_ns = kHangTime;
  return shape;
}

void declare_failed(TestVolume& volume, uint32_t server) {
  CHECK(volume.engine->fail_server(server, "heartbeat lost") == 0);
}

// The only server fails while the file hangs, with nothing under way at either: what then waits for pages
// that are in the queue, or for room in it, fails in time. No other lane looks.
void hangs_with_nothing_under_way() {
  const Path file("hangs", "/dev/shm");
  TestVolume volume(hanging(file, 1, false));
  Client client(volume.attach(0));
  std::vector<uint8_t> data(kMinBackupBuffers * 4096, 0x11);  // all that the queue has room for
  {
    const StandingFile standing;
    CHECK(client.write(0, data.data(), static_cast<uint32_t>(data.size())) == 0);
    declare_failed(volume, 0);
    std::vector<std::thread> waiters;
    waiters.emplace_back([&] { CHECK(client.read(0, data.data(), 4096) == EIO); });
    waiters.emplace_back([&] { CHECK(write(client, 1, 0x22) == EIO); });
    waiters.emplace_back([&] { CHECK(write(client, kMinBackupBuffers, 0x33) == EIO); });
    for (std::thread& waiter : waiters) waiter.join();
    CHECK(volume.wait_for(Event::Type::backup_failed).reason[0] != '\0');
  }
  CHECK(volume.engine->close(kCloseTime) == 0 && volume.count(Event::Type::backup_failed) == 1);
}

// A call takes longer than it may, and nobody waits for the file: what has no room is brought later.
void slow_with_nobody_waiting() {
  const Path file("slow", "/dev/shm");
  TestVolume volume(hanging(file, 1, true));
  Client client(volume.attach(0));
  const Backup& backup = *volume.engine->backup();
  constexpr uint64_t kPages = kMinBackupBuffers + 16;
  {
    const StandingFile standing;
    for (uint64_t page = 0; page < kPages; page++) CHECK(write(client, page, 0x11) == 0);
    await([&] { return backup.overdue_since() != 0; });
    // What is waited for is time itself: for all looks at the call.
    for (const auto end = Clock::now() + std::chrono::seconds(1); Clock::now() < end;)
      CHECK(write(client, 0, 0x22) == 0);
  }
  caught_up(volume, kPages);
  CHECK(volume.engine->close(kCloseTime) == 0 && volume.count(Event::Type::backup_failed) == 0);
}

// A refill from a file that hangs ends, and others go on, while all of its READs are still in the file.
void hangs_under_a_refill() {
  constexpr uint32_t kSlabOfFile = 0, kOther = 1, kNew = 2;
  const Path file("refill", "/dev/shm");
  TestVolume volume(hanging(file, 3, true));
  Volume& slabs = volume.engine->volume();
  const auto slab_bytes = static_cast<uint32_t>(volume.shape.slab_size);
  Client client(volume.attach(0));
  std::vector<uint8_t> data(slab_bytes), got(slab_bytes);
  fill_noise(data.data(), data.size(), 1);
  for (const uint32_t slab : {kSlabOfFile, kOther})
    CHECK(client.write(slab * slab_bytes, data.data(), slab_bytes) == 0);
  caught_up(volume, 2 * slab_bytes / 4096);
  declare_failed(volume, 0);
  Volume::Dropped dropped;
  CHECK(volume.drop(kSlabOfFile, 0, dropped) == 0 && dropped.live_left == 0);
  const auto refill = [&](uint32_t slab, Event::Type how) {
    CHECK(slabs.add_replica(slab, volume.replica(slab, kNew)) == 0);
    std::string why;
    CHECK(volume.engine->refill(slab, kNew, why) == 0, "%s", why.c_str());
    volume.wait_until([=](const Event& event) { return event.type == how && event.slab == slab; });
  };
  {
    const StandingFile standing;
    file_stands_in = 0;  // READs of the file wait behind this page
    CHECK(write(client, 4 * slab_bytes / 4096, 0x44) == 0);
    await([] { return file_stands_in == 1; });
    refill(kSlabOfFile, Event::Type::refill_failed);
    volume.wait_for(Event::Type::backup_failed);
    refill(kOther, Event::Type::slab_refilled);
  }
  declare_failed(volume, 1);
  CHECK(client.read(kOther * slab_bytes, got.data(), slab_bytes) == 0 && got == data);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

}  // namespace

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  timed("a file that fails under a WRITE", fails_under_a_write);
  timed("a write that stops short", stops_short);
  timed("another file", another_file);
  timed("passed over a claim", passed_over_a_claim);
  timed("asked before it sleeps", asked_before_it_sleeps);
  timed("ends after its last look", ends_after_its_last_look);
  timed("stood still in a call", stood_still_in_a_call);
  timed("hangs with nothing under way", hangs_with_nothing_under_way);
  timed("slow with nobody waiting", slow_with_nobody_waiting);
  timed("hangs under a refill", hangs_under_a_refill);
  std::printf("ok\n");
  return 0;
}
