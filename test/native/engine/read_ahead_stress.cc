// Read-ahead returns what was written last, whichever client writes, and whatever fails; and random reads
// cost nothing.
#include <random>

#include "fixture/damage.h"
#include "fixture/nbd_fixture.h"

namespace engine_read_ahead_stress {

using namespace fixture;

constexpr uint32_t kStep = 32 << 10;
constexpr uint64_t kNear = 20'000;    // ns
constexpr uint64_t kFar = 2'000'000;  // what is read ahead is under way when the client asks for it

NbdShape shape_of(uint32_t replicas, uint64_t delay) {
  NbdShape shape;
  shape.size = 4 << 20;
  shape.servers = 2;
  shape.replicas = replicas;
  shape.behaviour = {.delay_ns = delay, .jitter_ns = delay / 4};
  shape.options.operation_timeout_ns = 400'000'000;
  return shape;
}

std::vector<uint8_t> pattern(uint64_t bytes) {
  std::vector<uint8_t> data(bytes);
  fill_noise(data.data(), bytes, 7);
  return data;
}

void fill(SocketClient& client, const std::vector<uint8_t>& data) {
  for (size_t at = 0; at < data.size(); at += 1 << 20)
    CHECK(client.write(at, data.data() + at, 1 << 20) == kOk);
}

// Reads `data` in order; the number of READs that failed.
int walk(SocketClient& client, const std::vector<uint8_t>& data, uint32_t step = kStep, uint64_t from = 0) {
  std::vector<uint8_t> got(step);
  int failed = 0;
  for (uint64_t at = from; at < data.size(); at += step) {
    const auto length = static_cast<uint32_t>(std::min<uint64_t>(step, data.size() - at));
    if (client.read(at, got.data(), length) != kOk) {
      failed++;
    } else {
      CHECK(std::memcmp(got.data(), data.data() + at, length) == 0);
    }
  }
  return failed;
}

// 1. Nearly all of what is read in order is there before it is asked for, in fewer RDMA READs.
void in_order(uint64_t delay, uint32_t step) {
  NbdVolume volume(shape_of(1, delay));
  SocketClient client(volume.attach(0));
  const auto data = pattern(volume.shape.size);
  fill(client, data);
  CHECK(walk(client, data, step) == 0);
  const uint64_t served = sum(volume, &LaneStatistics::bytes_from_read_ahead);
  const uint64_t reads = sum(volume, &LaneStatistics::rdma_reads);
  CHECK(served >= data.size() * 9 / 10);
  CHECK(sum(volume, &LaneStatistics::pages_read_ahead) <= data.size() / kPage);
  CHECK(reads <= data.size() / kOutputChunk + 8);
  // A sleep for each completion would be one for each of these too.
  std::printf("in order, %u bytes each: %llu RDMA READs for %llu\n", step,
              static_cast<unsigned long long>(reads), static_cast<unsigned long long>(data.size() / step));
}

// 2. Nothing is read ahead of a client that jumps, nor with 0 bytes of it.
void at_random() {
  NbdShape shape = shape_of(1, 0);
  shape.size = 32 << 20;
  NbdVolume volume(shape);
  SocketClient client(volume.attach(0));
  fill(client, pattern(shape.size));
  std::mt19937_64 random(1);
  std::vector<uint8_t> page(4096);
  const auto reads = static_cast<uint64_t>(effort(3000));
  for (uint64_t i = 0; i < reads; i++)
    CHECK(client.read(random() % (shape.size / 4096) * 4096, page.data(), 4096) == kOk);
  // Four streams, each with a window of 64 KiB to meet by chance: of 32 MiB, for one READ in 128.
  const uint64_t ahead = sum(volume, &LaneStatistics::pages_read_ahead);
  std::printf("%llu READs at random, %llu pages ahead of them\n", static_cast<unsigned long long>(reads),
              static_cast<unsigned long long>(ahead));
  CHECK(ahead < reads / 3);
  shape.size = 1 << 20;
  shape.options.read_ahead = 0;
  NbdVolume off(shape);
  SocketClient other(off.attach(0));
  const auto data = pattern(shape.size);
  fill(other, data);
  CHECK(walk(other, data) == 0 && sum(off, &LaneStatistics::pages_read_ahead) == 0);
}

// 3. Half pages with one owner each, which writes them, alone or with the other half, and trims them, through
//    all lanes, while others read in order: a read while nothing is written returns what was written last.
class Race {
 public:
  explicit Race(const NbdShape& shape) : volume_(shape), units_(kUnits) {
    for (uint32_t i = 0; i < shape.lanes; i++)
      clients_.push_back(std::make_unique<SocketClient>(volume_.attach(i)));
  }

  void run() {
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < kWriters; i++) threads.emplace_back([this, i] { write(i); });
    std::vector<std::thread> readers;
    for (uint32_t i = 0; i < 3; i++) readers.emplace_back([this, i] { read(i); });
    for (auto& thread : threads) thread.join();
    over_ = true;
    for (auto& reader : readers) reader.join();
    CHECK(sum(volume_, &LaneStatistics::errors) == 0);
    std::printf("a race: %llu pages read ahead, %llu KiB of it used, %llu halves compared\n",
                static_cast<unsigned long long>(sum(volume_, &LaneStatistics::pages_read_ahead)),
                static_cast<unsigned long long>(sum(volume_, &LaneStatistics::bytes_from_read_ahead) >> 10),
                static_cast<unsigned long long>(checked_.load()));
  }

 private:
  static constexpr uint64_t kUnit = 2048;
  static constexpr uint64_t kUnits = (2 << 20) / kUnit;
  static constexpr uint32_t kWriters = 2;
  const uint64_t writes_ = static_cast<uint64_t>(effort(2400));
  struct Unit {
    std::atomic<uint64_t> begun{0};
    std::atomic<uint64_t> ended{0};
    std::atomic<uint64_t> value{0};  // of its 8-byte words
  };

  // Of what was read ahead, and in all.
  bool enough() const {
    return checked_ > 1000 && sum(volume_, &LaneStatistics::bytes_from_read_ahead) > 1 << 20;
  }

  void write(uint32_t writer) {
    std::mt19937_64 random(writer);
    std::vector<uint64_t> words(16 * kPage / 8);
    for (uint64_t n = 1; n <= writes_ || !enough(); n++) {
      const uint64_t pages = 1 + random() % 8;
      uint64_t first = random() % (kUnits / 2 - pages) * 2;
      uint64_t count = 2 * pages;
      const uint64_t kind = random() % 8;
      const bool packs = volume_.shape.options.volume.compression != Compression::off;
      if (kind == 0 && !packs) count = 1, first += random() % 2;
      // Each writer has every second span of 16 pages.
      if (first / 32 % kWriters != writer || (first + count - 1) / 32 != first / 32) continue;
      const uint64_t value = kind == 1 ? 0 : n << 8 | writer;
      for (uint64_t i = first; i < first + count; i++) units_[i].begun++;
      SocketClient& client = *clients_[random() % clients_.size()];
      const auto bytes = static_cast<uint32_t>(count * kUnit);
      if (kind == 1) {
        CHECK(client.call(random() % 2 == 0 ? kCmdTrim : kCmdWriteZeroes, first * kUnit, bytes) == kOk);
      } else {
        std::fill_n(words.begin(), bytes / 8, value);
        CHECK(client.write(first * kUnit, reinterpret_cast<uint8_t*>(words.data()), bytes) == kOk);
      }
      for (uint64_t i = first; i < first + count; i++) {
        units_[i].value = value;
        units_[i].ended++;
      }
      if (random() % 4 == 0) usleep(static_cast<useconds_t>(random() % 300));
    }
  }

  void read(uint32_t reader) {
    SocketClient& client = *clients_[reader % clients_.size()];
    std::vector<uint64_t> words(kStep / 8);
    std::vector<uint64_t> before(kStep / kUnit);
    for (uint64_t at = reader * 7 * kPage; !over_; at += kStep) {
      if (at + kStep > kUnits * kUnit) at = 0;
      const uint64_t first = at / kUnit;
      // Those that are not being written now, with their contents.
      for (uint64_t i = 0; i < before.size(); i++) {
        const Unit& unit = units_[first + i];
        const uint64_t ended = unit.ended;
        before[i] = unit.begun == ended ? ended : UINT64_MAX;
      }
      CHECK(client.read(at, reinterpret_cast<uint8_t*>(words.data()), kStep) == kOk);
      for (uint64_t i = 0; i < before.size(); i++) {
        const Unit& unit = units_[first + i];
        const uint64_t value = unit.value;
        if (unit.begun != before[i]) continue;
        // Eight bytes are as they should be, and all others as those eight before them.
        const uint64_t* const half = &words[i * kUnit / 8];
        CHECK(half[0] == value && std::memcmp(half, half + 1, kUnit - 8) == 0);
        checked_++;
      }
    }
  }

  NbdVolume volume_;
  std::vector<std::unique_ptr<SocketClient>> clients_;
  std::vector<Unit> units_;
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> checked_{0};
};

void race(uint64_t delay, bool iwarp, bool checksums, bool packs = false) {
  NbdShape shape = shape_of(1, delay);
  if (packs) shape.options.volume.compression = Compression::always;
  if (packs) shape.options.minimum_block = 4096;
  shape.lanes = 3;
  shape.behaviour.iwarp = iwarp;
  shape.options.volume.checksums = checksums;
  Race(shape).run();
}

// 4. A server dies, or hangs, while READs wait for its read-ahead: another one has the pages, or none has.
void server_fails(Server::Mode mode, uint32_t replicas) {
  NbdVolume volume(shape_of(replicas, kFar));
  SocketClient client(volume.attach(0));
  const auto data = pattern(volume.shape.size);
  fill(client, data);
  std::vector<uint8_t> got(kStep);
  for (uint64_t at = 0; at < 8 * kStep; at += kStep) CHECK(client.read(at, got.data(), kStep) == kOk);
  volume.servers[0]->set_mode(mode);
  const int failed = walk(client, data, kStep, 8 * kStep);
  // Slab i of 1 MiB has its first replica at server i % 2, and READs go there.
  CHECK(replicas == 2 ? failed == 0 : failed > 0 && failed <= static_cast<int>(data.size() / kStep / 2));
  CHECK(volume.wait_for(Event::Type::server_failed).server == 0);
  CHECK(replicas == 2 || sum(volume, &LaneStatistics::errors) == static_cast<uint64_t>(failed));
}

// 5. No READ waits for it, and yet it has its deadline.
void unawaited() {
  NbdVolume volume(shape_of(1, kNear));
  SocketClient client(volume.attach(0));
  fill(client, pattern(volume.shape.size));
  std::vector<uint8_t> got(kStep);
  CHECK(client.read(0, got.data(), kStep) == kOk);
  volume.servers[0]->set_mode(Server::Mode::hung);
  // The pages for this READ are outstanding from before, or from now on; no READ waits for the rest.
  std::thread reader([&] { client.read(kStep, got.data(), kStep); });
  CHECK(volume.wait_for(Event::Type::server_failed).server == 0);
  reader.join();
}

// 6. An epoch does not wait for a client to ask for what is under way.
void epoch() {
  NbdVolume volume(shape_of(1, kFar));
  SocketClient client(volume.attach(0));
  fill(client, pattern(volume.shape.size));
  std::vector<uint8_t> got(kStep);
  for (uint64_t at = 0; at < 40 * kStep; at += kStep) {
    CHECK(client.read(at, got.data(), kStep) == kOk);
    volume.synchronize();
  }
  CHECK(sum(volume, &LaneStatistics::bytes_from_read_ahead) > 0);
}

// 7. Clients that go, and one that goes on elsewhere, while pages are under way: no chunk stays behind.
void goodbye() {
  NbdShape shape = shape_of(1, kFar / 4);
  shape.size = 8 << 20;
  NbdVolume volume(shape);
  const auto data = pattern(shape.size);
  {
    SocketClient client(volume.attach(0));
    fill(client, data);
  }
  std::vector<uint8_t> got(kStep);
  for (int i = 0; i < 60; i++) {
    SocketClient client(volume.attach(0));
    for (uint64_t n = 0; n < 4; n++) CHECK(client.read((i + n) % 64 * kStep, got.data(), kStep) == kOk);
  }
  {
    SocketClient client(volume.attach(0));
    for (uint64_t at = 0; at < 6 * kStep; at += kStep) CHECK(client.read(at, got.data(), kStep) == kOk);
    CHECK(volume.engine->yield_lane(0) == 0);
    const Event yielded = volume.wait_for(Event::Type::lane_yielded);
    CHECK(yielded.descriptor >= 0);
    close(yielded.descriptor);
  }
  SocketClient client(volume.attach(0));
  // Each READ of 1 MiB needs 16 chunks, so eight of them need all there are.
  std::vector<std::thread> readers;
  for (uint64_t i = 0; i < 8; i++)
    readers.emplace_back([&, i] {
      std::vector<uint8_t> all(1 << 20);
      for (int n = 0; n < 4; n++) {
        CHECK(client.read(i << 20, all.data(), 1 << 20) == kOk);
        CHECK(std::memcmp(all.data(), data.data() + (i << 20), all.size()) == 0);
      }
    });
  for (auto& reader : readers) reader.join();
}

// 8. Bytes that are wrong at a server are not passed on for having been read ahead.
void wrong_bytes() {
  NbdShape shape = shape_of(2, kNear);
  NbdVolume volume(shape);
  SocketClient client(volume.attach(0));
  const auto data = pattern(shape.size);
  fill(client, data);
  for (uint64_t page = 20; page < 200; page += 30) corrupt(volume, page * kPage + 9, 0);
  CHECK(walk(client, data) == 0);
  CHECK(sum(volume, &LaneStatistics::pages_repaired) == 6);
}

// 9. Several clients of one lane's connection read in order at once, and one jumps about.
void streams() {
  NbdShape shape = shape_of(1, kNear);
  shape.size = 16 << 20;
  NbdVolume volume(shape);
  SocketClient client(volume.attach(0));
  const auto data = pattern(shape.size);
  fill(client, data);
  std::vector<std::thread> readers;
  for (uint32_t i = 0; i < 6; i++)
    readers.emplace_back([&, i] {
      std::mt19937_64 random(i);
      std::vector<uint8_t> got(kStep);
      for (uint64_t n = 0; n < 128; n++) {
        const uint64_t at = i == 5 ? random() % (shape.size - kStep) : (i * 3 << 20) + n * 8192;
        const uint32_t length = i == 5 ? 1 + static_cast<uint32_t>(random() % kStep) : 8192;
        CHECK(client.read(at, got.data(), length) == kOk);
        CHECK(std::memcmp(got.data(), data.data() + at, length) == 0);
      }
    });
  for (auto& reader : readers) reader.join();
  std::printf("six streams, of which four are followed: %llu KiB of %llu KiB served\n",
              static_cast<unsigned long long>(sum(volume, &LaneStatistics::bytes_from_read_ahead) >> 10),
              5ull * 128 * 8);
}

STRESS(engine_read_ahead) {
  timed("in order", [] {
    for (const uint64_t delay : {uint64_t{0}, kNear, kFar}) {
      for (const uint32_t step : {4096u, kStep, 65536u}) in_order(delay, step);
    }
  });
  timed("at random, and off", at_random);
  for (const bool checksums : {true, false}) {
    timed("a race", [=] { race(kNear, false, checksums); });
    timed("a race, iWARP completions", [=] { race(kNear, true, checksums); });
  }
  timed("a race without delay", [] { race(0, false, false); });
  timed("a race, packed", [] { race(kNear, false, true, true); });
  side_by_side({
      {"a server dies, 2 replicas", [] { server_fails(Server::Mode::dead, 2); }},
      {"a server dies", [] { server_fails(Server::Mode::dead, 1); }},
      {"a server hangs, 2 replicas", [] { server_fails(Server::Mode::hung, 2); }},
      {"a server hangs", [] { server_fails(Server::Mode::hung, 1); }},
      {"a deadline that nobody waits for", unawaited},
      {"epochs", epoch},
      {"goodbyes", goodbye},
      {"wrong bytes", wrong_bytes},
      {"streams", streams},
  });
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_read_ahead_stress
