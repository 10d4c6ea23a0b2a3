// The engine on a queue of the kernel's ublk driver, with verbs devices of memory behind it, which hang, die
// and complete early on demand. Wants ublk_drv and root, so the lab runs it: npm run lab -- device-stress.
// Prints "ok NAME" for each check that held, and ends at the first failure.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <atomic>
#include <csignal>
#include <random>

#include "../engine/fixture/nbd_fixture.h"
#include "kernel/ublk.h"

using namespace fixture;

namespace {

constexpr uint32_t kPageBytes = 4096;
constexpr uint32_t kLargest = 256 << 10;

// The contents of a page that was written as the `turn`th: including its own place, so that no page passes
// for another.
void fill(uint8_t* data, uint64_t offset, uint32_t length, uint32_t turn) {
  for (uint32_t at = 0; at < length; at += sizeof(uint64_t)) {
    const uint64_t word = (offset + at) * 0x9e3779b97f4a7c15 + turn;
    std::memcpy(data + at, &word, sizeof word);
  }
}

class Aligned {
 public:
  Aligned() : data_(static_cast<uint8_t*>(std::aligned_alloc(kPageBytes, kLargest))) {
    CHECK(data_ != nullptr);
  }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  ~Aligned() { std::free(data_); }
  uint8_t* get() const { return data_; }

 private:
  uint8_t* const data_;
};

// A disk of that volume, with a lane for each queue.
class Disk {
 public:
  explicit Disk(NbdVolume& volume) {
    UblkDevice wanted;
    wanted.size = volume.shape.size;
    wanted.queues = static_cast<uint16_t>(volume.shape.lanes);
    std::string why;
    uint16_t queues = 0;
    CHECK(ublk_add(wanted, index_, queues, why) == 0);
    int device = -1;
    CHECK(ublk_open(index_, device, why) == 0);
    std::vector<uint32_t> lanes;
    for (uint32_t lane = 0; lane < queues; lane++) lanes.push_back(lane);
    // The lanes may not be idle yet after the last one's.
    int error = EBUSY;
    for (int i = 0; i < 20'000 && error == EBUSY; i++) {
      error = volume.engine->attach_device(lanes, device, why);
      if (error == EBUSY) usleep(500);
    }
    CHECK(error == 0);
    close(device);
    CHECK(ublk_start(index_, why) == 0);
  }
  ~Disk() {
    std::string why;
    CHECK(ublk_stop(index_, why) == 0);
    CHECK(ublk_delete(index_, why) == 0);
  }
  int open() const {
    const int fd = ::open(("/dev/ublkb" + std::to_string(index_)).c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
  }

 private:
  uint32_t index_ = 0;
};

// Writes, discards and reads back a part of the disk of its own. `disturb` is called once, in the middle.
void churn(const Disk& disk, uint64_t begin, uint64_t bytes, uint32_t seed, uint32_t steps,
           const std::function<void()>& disturb = {}) {
  const int fd = disk.open();
  const Aligned buffer, expected;
  std::mt19937 random(seed);
  std::vector<uint32_t> turns(bytes / kPageBytes);  // 0: zeros
  const auto check = [&](uint64_t page, uint32_t pages) {
    for (uint32_t i = 0; i < pages; i++) {
      uint8_t* const want = expected.get() + i * kPageBytes;
      if (turns[page + i] == 0) {
        std::memset(want, 0, kPageBytes);
      } else {
        fill(want, begin + (page + i) * kPageBytes, kPageBytes, turns[page + i]);
      }
    }
    const auto length = static_cast<ssize_t>(pages) * kPageBytes;
    CHECK(pread(fd, buffer.get(), length, begin + page * kPageBytes) == length);
    CHECK(std::memcmp(buffer.get(), expected.get(), length) == 0);
  };
  for (uint32_t step = 1; step <= steps; step++) {
    if (step == steps / 2 && disturb) disturb();
    const uint32_t pages = 1 + random() % (random() % 4 == 0 ? kLargest / kPageBytes : 4);
    const uint64_t page = random() % (turns.size() - pages + 1);
    const uint64_t offset = begin + page * kPageBytes;
    switch (random() % 8) {
      case 0: {
        uint64_t range[] = {offset, uint64_t{pages} * kPageBytes};
        CHECK(ioctl(fd, BLKDISCARD, range) == 0);
        std::fill_n(turns.begin() + static_cast<long>(page), pages, 0);
        break;
      }
      case 1:
      case 2:
      case 3:
        fill(buffer.get(), offset, pages * kPageBytes, step);
        CHECK(pwrite(fd, buffer.get(), pages * kPageBytes, offset) == pages * kPageBytes);
        std::fill_n(turns.begin() + static_cast<long>(page), pages, step);
        break;
      default:
        check(page, pages);
    }
  }
  for (uint64_t page = 0; page < turns.size(); page += 8) check(page, 8);
  close(fd);
}

void churn_all(const Disk& disk, uint64_t size, uint32_t steps, const std::function<void()>& disturb = {}) {
  constexpr uint32_t kThreads = 6;
  const uint64_t each = size / kThreads / (8 * kPageBytes) * (8 * kPageBytes);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; i++)
    threads.emplace_back(
        [&, i] { churn(disk, i * each, each, i, steps, i == 0 ? disturb : std::function<void()>()); });
  for (std::thread& thread : threads) thread.join();
}

// Servers answer, or are known to be dead: what a busy machine takes to run them is no failure. Where one
// hangs, only time tells.
constexpr uint64_t kHangsFor = 5'000'000'000;

NbdShape shape_of(uint32_t replicas, uint64_t operation_timeout_ns = kNever) {
  NbdShape shape;
  shape.size = 12 << 20;
  shape.servers = 3;
  shape.replicas = replicas;
  shape.lanes = 2;
  shape.options.operation_timeout_ns = operation_timeout_ns;
  shape.behaviour.delay_ns = 20'000;
  shape.behaviour.jitter_ns = 200'000;
  return shape;
}

void run(const char* name, const NbdShape& shape, const std::function<void(NbdVolume&)>& disturb = {}) {
  NbdVolume volume(shape);
  {
    const Disk disk(volume);
    churn_all(disk, shape.size, static_cast<uint32_t>(effort(300)), [&] {
      if (disturb) disturb(volume);
    });
  }
  std::printf("ok %s\n", name);
}

// Answers overtake operations here: what is answered goes on with a spare buffer while the copies are under
// way, and waits where there is none.
void run_early_answers() {
  NbdShape shape = shape_of(2);
  shape.options.acknowledge = Acknowledge::one;
  shape.behaviour.jitter_ns = 3'000'000;
  run("early-answers", shape);
}

// No other server has the pages: the requests of those slabs fail, in time, and the others continue.
void run_failure(Server::Mode mode, const char* name) {
  const NbdShape shape = shape_of(1, mode == Server::Mode::hung ? kHangsFor : kNever);
  NbdVolume volume(shape);
  const Disk disk(volume);
  const int fd = disk.open();
  const Aligned buffer;
  const auto write_each = [&] {
    uint32_t failed = 0;
    for (uint64_t offset = 0; offset < shape.size; offset += shape.slab_size) {
      fill(buffer.get(), offset, kLargest, 1);
      if (pwrite(fd, buffer.get(), kLargest, static_cast<off_t>(offset)) == kLargest) continue;
      CHECK(errno == EIO);
      failed++;
    }
    return failed;
  };
  CHECK(write_each() == 0);
  volume.servers[1]->set_mode(mode);
  CHECK(write_each() == shape.size / shape.slab_size / shape.servers);
  for (uint64_t offset = 0; offset < shape.size; offset += shape.slab_size) {
    const bool lost = offset / shape.slab_size % shape.servers == 1;
    CHECK((pread(fd, buffer.get(), kLargest, static_cast<off_t>(offset)) == kLargest) == !lost);
  }
  close(fd);
  std::printf("ok %s\n", name);
}

// The lane serves a client of NBD first, as when a process takes a volume over, then disks, one after
// another.
void run_after_a_socket() {
  NbdVolume volume(shape_of(1));
  {
    SocketClient client(volume.attach(0));
    std::vector<uint8_t> data(1 << 20, 0x5a);
    CHECK(client.write(0, data.data(), 1 << 20) == kOk);
    CHECK(client.read(0, data.data(), 1 << 20) == kOk && data[4'711] == 0x5a);
  }
  for (int i = 0; i < 3; i++) {
    const Disk disk(volume);
    const int fd = disk.open();
    uint64_t all[] = {0, volume.shape.size};
    CHECK(ioctl(fd, BLKDISCARD, all) == 0);
    close(fd);
    churn_all(disk, volume.shape.size, 200);
  }
  std::printf("ok after-a-socket\n");
}

// Lanes rest when all is answered, as where a successor is to have the queues, and go on: what comes
// meanwhile waits.
void run_rest() {
  constexpr uint32_t kTurns = 100;
  const NbdShape shape = shape_of(2);
  NbdVolume volume(shape);
  const Disk disk(volume);
  std::atomic<uint32_t> turns{0};
  const auto rest = [&] {
    for (uint32_t turn = 1; turn <= kTurns; turn++) {
      for (uint32_t lane = 0; lane < shape.lanes; lane++) CHECK(volume.engine->yield_lane(lane) == 0);
      volume.wait_for_count(Event::Type::lane_yielded, size_t{turn} * shape.lanes);
      turns++;
      for (uint32_t lane = 0; lane < shape.lanes; lane++) CHECK(volume.engine->resume_lane(lane) == 0);
    }
  };
  std::thread resting(rest);
  for (bool once = false; !once || turns < kTurns; once = true) churn_all(disk, shape.size, 100);
  resting.join();
  // A resting lane is not served until it continues.
  for (uint32_t lane = 0; lane < shape.lanes; lane++) CHECK(volume.engine->yield_lane(lane) == 0);
  volume.wait_for_count(Event::Type::lane_yielded, size_t{kTurns + 1} * shape.lanes);
  std::atomic<bool> answered{false};
  std::thread reading([&] {
    const int fd = disk.open();
    const Aligned buffer;
    CHECK(pread(fd, buffer.get(), kLargest, 0) == kLargest);
    answered = true;
    close(fd);
  });
  usleep(200'000);
  CHECK(!answered);
  for (uint32_t lane = 0; lane < shape.lanes; lane++) CHECK(volume.engine->resume_lane(lane) == 0);
  reading.join();
  std::printf("ok rest\n");
}

}  // namespace

int main() {
  // A dump would wait for the threads that wait for this process's disk, and nobody serves that any more.
  std::signal(SIGABRT, [](int) { _exit(128 + SIGABRT); });
  setvbuf(stdout, nullptr, _IOLBF, 0);
  run("one-replica", shape_of(1));
  NbdShape iwarp = shape_of(2);
  iwarp.behaviour.iwarp = true;
  run("iwarp", iwarp);
  NbdShape compressed = shape_of(2);
  compressed.options.volume.compression = Compression::always;
  run("compressed", compressed);
  run("death", shape_of(2), [](NbdVolume& volume) { volume.servers[1]->set_mode(Server::Mode::dead); });
  run("hang", shape_of(2, kHangsFor),
      [](NbdVolume& volume) { volume.servers[1]->set_mode(Server::Mode::hung); });
  run_early_answers();
  run_failure(Server::Mode::dead, "failure");
  run_failure(Server::Mode::hung, "hung-failure");
  run_after_a_socket();
  run_rest();
  return 0;
}
