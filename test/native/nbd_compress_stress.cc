// Compressed pages: fewer bytes on the wire and the right ones back, whatever is beside them, while lanes
// race for the same pages, bits flip at the servers, and servers die.
#include <unistd.h>

#include "engine/compression_meter.h"
#include "nbd_damage.h"
#include "nbd_workers.h"

using namespace fixture;

namespace {

constexpr Behaviour kSlow{.delay_ns = 20'000, .jitter_ns = 50'000};
constexpr Behaviour kIwarp{.delay_ns = 20'000, .jitter_ns = 50'000, .iwarp = true};

Shape compressed(uint32_t replicas, Compression mode = Compression::always) {
  Shape shape;
  shape.size = 8 << 20;
  shape.servers = 3;
  shape.lanes = 2;
  shape.replicas = replicas;
  shape.refill_lane = true;
  shape.roomy = true;
  shape.options.volume.compression = mode;
  return shape;
}

// A page of a kind that LZ4 packs to some 800 bytes, or (odd kinds) not at all, of which each 8 bytes depend
// on the number: half of one page and half of another are no page.
void fill_page(uint8_t* page, uint64_t number) {
  std::mt19937_64 random(number);
  for (uint64_t at = 0; at < 4096; at += 8) {
    const uint64_t word = number % 2 == 1 || at % 64 == 0 ? random() : number;
    std::memcpy(page + at, &word, 8);
  }
  std::memcpy(page, &number, 8);
}
bool is_page(const uint8_t* page) {
  uint64_t number;
  std::memcpy(&number, page, 8);
  uint8_t expected[4096];
  fill_page(expected, number);
  return std::memcmp(page, expected, 4096) == 0;
}
std::vector<uint8_t> pages_of(uint64_t count, const std::function<uint64_t(uint64_t)>& number) {
  std::vector<uint8_t> data(count * 4096);
  for (uint64_t i = 0; i < count; i++) fill_page(data.data() + i * 4096, number(i));
  return data;
}
// Runs of both kinds and single ones.
uint64_t mixed(uint64_t i) { return 1000 + 2 * i + (i % 11 < 5 || i % 7 == 3 ? 1 : 0); }

bool same_slot(TestVolume& volume, uint64_t page, uint32_t one, uint32_t other) {
  uint8_t slots[2][4096];
  volume.servers[one]->copy(address_of(volume, page * 4096, one), slots[0], 4096, false);
  volume.servers[other]->copy(address_of(volume, page * 4096, other), slots[1], 4096, false);
  const uint16_t length = volume.engine->volume().lengths().get(page);
  return std::memcmp(slots[0], slots[1], length == kRaw ? 4096 : length) == 0;
}
uint64_t bytes_of(const TestVolume& volume, Counter ServerStatistics::*counter) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < volume.shape.lanes; i++)
    for (uint32_t server = 0; server < volume.shape.servers; server++)
      total += (volume.engine->lane(i).statistics(server).*counter).get();
  return total;
}
void all_right(Client& client, const std::vector<uint8_t>& data) {
  std::vector<uint8_t> got(data.size());
  CHECK(client.read(0, got.data(), static_cast<uint32_t>(got.size())) == kOk && got == data);
  for (uint64_t page = 0; page < data.size() / 4096; page++) {
    CHECK(client.read(page * 4096, got.data(), 4096) == kOk);
    CHECK(std::memcmp(got.data(), data.data() + page * 4096, 4096) == 0);
  }
}

// 1. What is compressible, what is not, and both, in long and in short requests; zeros; parts of pages.
void round_trip(Behaviour behaviour, uint32_t replicas) {
  Shape shape = compressed(replicas);
  shape.behaviour = behaviour;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  constexpr uint64_t kPages = 512;
  const auto packed = pages_of(kPages, [](uint64_t i) { return 2 * i; });
  const auto raw = pages_of(kPages, [](uint64_t i) { return 2 * i + 1; });
  auto both = pages_of(kPages, mixed);
  std::fill_n(both.begin() + 100 * 4096, 3 * 4096, 0);
  uint64_t before = 0;
  const auto sent = [&] {
    const uint64_t all = bytes_of(volume, &ServerStatistics::bytes_written) / replicas;
    return all - std::exchange(before, all);
  };
  CHECK(client.write(0, packed.data(), kPages * 4096) == kOk);
  CHECK(sent() < kPages * 4096 / 3 && sum(volume, &LaneStatistics::pages_packed) == kPages);
  all_right(client, packed);
  CHECK(bytes_of(volume, &ServerStatistics::bytes_read) < 2 * kPages * 4096 / 3);
  const uint64_t writes = sum(volume, &LaneStatistics::rdma_writes);
  CHECK(client.write(0, raw.data(), kPages * 4096) == kOk);
  CHECK(sent() == kPages * 4096 && sum(volume, &LaneStatistics::rdma_writes) - writes < 40 * replicas);
  all_right(client, raw);
  for (int i = 0; i < 2; i++) {
    CHECK(client.write(0, both.data(), kPages * 4096) == kOk);
    all_right(client, both);
  }
  for (uint64_t page = 0; page < kPages; page += 3)
    CHECK(client.write(page * 4096, packed.data() + page * 4096, 4096) == kOk);
  for (uint64_t page = 0; page < kPages; page += 3)
    std::copy_n(packed.begin() + static_cast<long>(page * 4096), 4096,
                both.begin() + static_cast<long>(page * 4096));
  all_right(client, both);
  CHECK(client.write(512, both.data(), 512) == kEinval && client.read(0, both.data(), 100) == kEinval);
  CHECK(client.call(kCmdWriteZeroes, 4096, 100) == kEinval && client.call(kCmdTrim, 0, 8192) == kOk);
  CHECK(sum(volume, &LaneStatistics::pages_wrong) == 0 && volume.count(Event::Type::page_lost) == 0);
  std::printf("there and back, %u replicas\n", replicas);
}

// 2. Wrong bytes of a packed page are found, whether they unpack or not; those behind it are nobody's.
void repaired() {
  TestVolume volume(compressed(2));
  Client client(volume.attach(0));
  const auto data = pages_of(256, mixed);
  CHECK(client.write(0, data.data(), 1 << 20) == kOk);
  PageLengths& lengths = volume.engine->volume().lengths();
  uint64_t repaired = 0;
  for (uint64_t page = 0; page < 256; page += 5) {
    const uint16_t length = lengths.get(page) == kRaw ? 4096 : lengths.get(page);
    corrupt(volume, page * 4096 + page * 37 % length, 0);
    if (length < 4096) corrupt(volume, page * 4096 + length, 0);
    repaired++;
  }
  all_right(client, data);
  CHECK(sum(volume, &LaneStatistics::pages_repaired) == repaired);
  for (uint64_t page = 0; page < 256; page++) CHECK(same_slot(volume, page, 0, 1));
  // A length that is not that of the page, as if it had been read while it was written.
  uint64_t page = 0;
  while (lengths.get(page) == kRaw) page++;
  for (const uint32_t server : {0u, 1u}) corrupt(volume, page * 4096 + 5, server);
  std::vector<uint8_t> got(4096);
  CHECK(client.read(page * 4096, got.data(), 4096) == kEio);
  CHECK(volume.wait_for(Event::Type::page_lost).page == page && volume.count(Event::Type::page_lost) == 1);
  CHECK(client.write(page * 4096, data.data() + page * 4096, 4096) == kOk);
  all_right(client, data);
  std::printf("repaired: %llu\n", static_cast<unsigned long long>(repaired));
}

// What a server sends is no LZ4, or is, but of something else, or has any length: EIO, and nothing is written
// beyond.
void hostile() {
  Shape shape = compressed(1);
  TestVolume volume(shape);
  Client client(volume.attach(0));
  const auto data = pages_of(256, [](uint64_t i) { return 2 * i; });
  std::vector<uint8_t> got(1 << 20), slots(1 << 20);
  std::mt19937_64 random(7);
  for (int round = 0; round < 20; round++) {
    CHECK(client.write(0, data.data(), 1 << 20) == kOk);
    volume.servers[0]->copy(address_of(volume, 0, 0), slots.data(), 1 << 20, false);
    for (uint64_t page = 0; page < 256; page++) {
      uint8_t* const slot = slots.data() + page * 4096;
      if (round % 4 == 0)
        for (uint64_t i = 0; i < 4096; i++) slot[i] = static_cast<uint8_t>(random());
      if (round % 4 == 1) std::fill_n(slot, 4096, page % 2 == 0 ? 0xff : 0x0f);
      if (round % 4 == 2) std::copy_n(slots.data() + (page + 1) % 256 * 4096, 4096, slot);
      if (round % 4 == 3) slot[random() % 256] ^= static_cast<uint8_t>(1 + random() % 255);
    }
    volume.servers[0]->copy(address_of(volume, 0, 0), slots.data(), 1 << 20, true);
    const bool damaged = round % 4 != 3;
    if (round % 2 == 0) CHECK(client.read(0, got.data(), 1 << 20) == kEio);
    for (uint64_t page = 0; page < 256; page++) {
      const uint32_t error = client.read(page * 4096, got.data(), 4096);
      const bool same = error == kOk && std::memcmp(got.data(), data.data() + page * 4096, 4096) == 0;
      CHECK(error == kEio || (same && !damaged));
    }
  }
  std::printf("hostile servers\n");
}

// 3. A refill copies slots, and not the wrong ones; what it filled is read when it is all that is left.
void refilled() {
  TestVolume volume(compressed(2));
  Client client(volume.attach(0));
  const auto data = pages_of(256, mixed);
  CHECK(client.write(0, data.data(), 1 << 20) == kOk);
  for (uint64_t page = 1; page < 256; page += 20) corrupt(volume, page * 4096 + 3, 0);
  CHECK(volume.engine->volume().add_replica(0, volume.replica(0, 2)) == 0);
  std::string why;
  CHECK(volume.engine->refill(0, 2, why) == 0);
  volume.wait_for(Event::Type::slab_refilled);
  for (uint64_t page = 0; page < 256; page++) CHECK(same_slot(volume, page, 0, 2));
  CHECK(volume.engine->fail_server(0, "test") == 0 && volume.engine->fail_server(1, "test") == 0);
  all_right(client, data);
  std::printf("refilled\n");
}

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
    CHECK(slabs.drop_replica(slab, slab % 3, dropped) == 0 && dropped.live_left == 2);
  }
}

// 4. Lanes write and read the same pages at the same time, and meanwhile something else goes on: each page
// that is read is one that was written.
enum class Meanwhile { nothing, flips, dies, hangs, moves };
void under_load(Behaviour behaviour, Meanwhile what) {
  const bool flips = what == Meanwhile::flips || what == Meanwhile::dies;
  Shape shape = compressed(what == Meanwhile::nothing ? 1 : 2);
  shape.behaviour = behaviour;
  shape.lanes = 3;
  shape.options.operation_timeout_ns = 500'000'000;
  TestVolume volume(shape);
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
        for (int n = 0; n < 600; n++) {
          const uint64_t count = random() % 3 == 0 ? 1 + random() % 16 : 1;
          // Few enough that they meet; half of the load in one spot.
          const uint64_t pages = random() % 2 == 0 ? 24 : shape.size / 4096;
          const uint64_t first = random() % (pages - count + 1);
          const auto bytes = static_cast<uint32_t>(count * 4096);
          if (random() % 2 == 0) {
            for (uint64_t k = 0; k < count; k++) fill_page(data.data() + k * 4096, 1 + random() % 1'000'000);
            CHECK(client.write(first * 4096, data.data(), bytes) == kOk);
          } else {
            CHECK(client.read(first * 4096, data.data(), bytes) == kOk);
            for (uint64_t k = 0; k < count; k++) {
              const uint8_t* page = data.data() + k * 4096;
              CHECK(is_page(page) || std::all_of(page, page + 4096, [](uint8_t byte) { return byte == 0; }));
            }
          }
        }
      });
    if (what == Meanwhile::dies) {
      while (sum(volume, &LaneStatistics::pages_repaired) < 3) usleep(500);
      volume.servers[0]->set_mode(Server::Mode::dead);
    }
    if (what == Meanwhile::hangs) {
      while (sum(volume, &LaneStatistics::pages_packed) < 500) usleep(500);
      volume.servers[1]->set_mode(Server::Mode::hung);
    }
    if (what == Meanwhile::moves) move_slabs(volume);
    for (auto& worker : workers) worker.join();
    over = true;
    flipper.join();
    if (what == Meanwhile::moves) {
      CHECK(volume.engine->fail_server(1, "test") == 0);
      std::vector<uint8_t> page(4096);
      for (uint64_t offset = 0; offset < shape.size; offset += 4096) {
        CHECK(clients[0]->read(offset, page.data(), 4096) == kOk);
        CHECK(is_page(page.data()) || std::count(page.begin(), page.end(), 0) == 4096);
      }
    }
  }
  CHECK(sum(volume, &LaneStatistics::errors) == 0 && volume.count(Event::Type::page_lost) == 0);
  constexpr const char* kWhat[] = {"", ", bits flip", ", bits flip, the server dies", ", a server hangs",
                                   ", slabs move"};
  std::printf("under load%s: %llu packed, %llu wrong\n", kWhat[static_cast<int>(what)],
              static_cast<unsigned long long>(sum(volume, &LaneStatistics::pages_packed)),
              static_cast<unsigned long long>(sum(volume, &LaneStatistics::pages_wrong)));
}

class Files {
 public:
  explicit Files(const char* what)
      : name_("/var/tmp/nbd_compress." + std::to_string(getpid()) + "." + what) {}
  ~Files() { unlink(name_.c_str()); }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

// 5. The backup has pages as they are: it is caught up from slots, read when the servers die, mends what is
// wrong at them, and fills new replicas, which are raw then until they are written.
void backed_up(Acknowledge acknowledge, bool dies_under_load) {
  const Files file("backup");
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
  const auto caught_up = [&] {
    for (int i = 0; volume.engine->backup()->map().run(0, 256, BackupState::held) < 256; i++) {
      CHECK(i < 20'000);
      usleep(1'000);
    }
  };
  CHECK(client.write(0, data.data(), 1 << 20) == kOk);
  caught_up();
  for (uint64_t page = 0; page < 256; page += 17) corrupt(volume, page * 4096 + 9, 0);
  all_right(client, data);
  CHECK(sum(volume, &LaneStatistics::pages_repaired) == 16 && slabs.lengths().get(0) == kRaw);
  if (dies_under_load) {
    std::thread killer([&] {
      usleep(3'000);
      volume.servers[0]->set_mode(Server::Mode::dead);
    });
    for (int round = 0; round < 60; round++) {
      data = pages_of(256, [round](uint64_t i) { return mixed(i) + static_cast<uint64_t>(round) * 10'000; });
      CHECK(client.write(0, data.data(), 1 << 20) == kOk);
    }
    killer.join();
    CHECK(client.write(0, data.data(), 1 << 20) == kOk);
  } else {
    volume.servers[0]->set_mode(Server::Mode::dead);
  }
  all_right(client, data);
  CHECK(slabs.failed(0));
  Volume::Dropped dropped;
  CHECK(slabs.drop_replica(0, 0, dropped) == 0 && slabs.add_replica(0, volume.replica(0, 1)) == 0);
  // Written while it is being filled: packed, and only there and in the file.
  CHECK(client.write(0, data.data(), 64 * 4096) == kOk);
  std::string why;
  CHECK(volume.engine->refill(0, 1, why) == 0);
  volume.wait_for(Event::Type::slab_refilled);
  all_right(client, data);
  CHECK(client.write(0, data.data(), 1 << 20) == kOk);
  all_right(client, data);
  CHECK(volume.count(Event::Type::page_lost) == 0 && volume.count(Event::Type::backup_failed) == 0);
  std::printf("a backup%s\n", dies_under_load ? ", the server dies under load" : "");
}

// 6. The lengths outlive the process; one that does not compress reads what another one has compressed.
void files() {
  const Files lengths("lengths"), sums("sums"), map("map");
  Shape shape = compressed(1);
  shape.options.volume.length_file = lengths.name();
  shape.options.volume.checksum_file = sums.name();
  shape.options.volume.page_map_file = map.name();
  const auto data = pages_of(256, mixed);
  std::vector<std::vector<uint8_t>> memory;
  {
    TestVolume volume(shape);
    Client client(volume.attach(0));
    CHECK(client.write(0, data.data(), 1 << 20) == kOk);
    memory.resize(1, std::vector<uint8_t>(1 << 20));
    volume.servers[0]->copy(address_of(volume, 0, 0), memory[0].data(), 1 << 20, false);
  }
  shape.options.volume.compression = Compression::off;
  TestVolume volume(shape);
  volume.servers[0]->copy(address_of(volume, 0, 0), memory[0].data(), 1 << 20, true);
  Client client(volume.attach(0));
  all_right(client, data);
  CHECK(client.write(0, data.data(), 1 << 20) == kOk);
  CHECK(bytes_of(volume, &ServerStatistics::bytes_written) == 1 << 20);
  all_right(client, data);
  CHECK(sum(volume, &LaneStatistics::pages_packed) == 0 &&
        volume.engine->volume().exported().minimum_block == 4096);
  // Not without what tells a torn page from a whole one, nor with a file of something else.
  int error = 0;
  std::string why;
  shape.options.volume.size = shape.size;
  shape.options.volume.checksums = false;
  const auto refused = [&] {
    return Engine::open(
               shape.options, [](const Event&) {}, error, why) == nullptr &&
           error == EINVAL;
  };
  CHECK(refused() && why.find("checksums") != std::string::npos);
  shape.options.volume.checksums = true;
  shape.options.volume.checksum_file = shape.options.volume.page_map_file = "";
  shape.options.volume.length_file = sums.name();
  volume.engine->close(0);
  CHECK(refused());
  std::printf("files\n");
}

// 7. Nothing to be gained: off within 64 pages, and each RDMA WRITE is a long one again.
void no_gain() {
  TestVolume volume(compressed(1, Compression::measured));
  Client client(volume.attach(0));
  const LaneStatistics& statistics = volume.engine->lane(0).statistics();
  CHECK(statistics.compressing.get() == 1);
  const auto data = pages_of(256, [](uint64_t i) { return 2 * i + 1; });
  for (int i = 0; i < 4; i++) CHECK(client.write(0, data.data(), 1 << 20) == kOk);
  CHECK(statistics.compressing.get() == 0 && statistics.bytes_spared.get() == 0);
  all_right(client, data);
  std::printf("random data\n");
}

// A thin volume: slabs get a place with the first page, packed or not.
void thin() {
  Shape shape = compressed(1);
  shape.thin = true;
  TestVolume volume(shape);
  for (uint32_t id = 0; id < volume.engine->volume().slabs(); id++) {
    const Replica place = volume.replica(id, id % shape.servers);
    CHECK(volume.engine->add_spare(id, {&place, 1}) == 0);
  }
  Client client(volume.attach(0));
  for (int round = 0; round < 2; round++) {
    const auto data = pages_of(1024, [round](uint64_t i) { return mixed(i) + 5000 * (round + 1u); });
    CHECK(client.write(0, data.data(), 4 << 20) == kOk);
    all_right(client, data);
    CHECK(client.call(kCmdTrim, 0, 4 << 20) == kOk);
    all_right(client, std::vector<uint8_t>(1 << 20));
  }
  std::printf("thin\n");
}

// 8. A slow wire: after the trial it is on, and stays so.
void slow_wire() {
  Shape shape = compressed(1, Compression::measured);
  shape.behaviour.ns_per_byte = 100;  // slower than any processor is busy
  TestVolume volume(shape);
  Client client(volume.attach(0));
  const auto data = pages_of(256, [](uint64_t i) { return 2 * i; });
  constexpr uint32_t kTrial =
      CompressionMeter::kTurns * (CompressionMeter::kSettle + CompressionMeter::kMeasure);
  uint64_t pages = 0;
  const auto write = [&](uint64_t count) {
    const uint64_t packed = sum(volume, &LaneStatistics::pages_packed);
    for (const uint64_t end = pages + count; pages < end; pages += 256)
      CHECK(client.write(0, data.data(), 1 << 20) == kOk);
    return sum(volume, &LaneStatistics::pages_packed) - packed;
  };
  const uint64_t tried = write(kTrial);
  CHECK(tried > kTrial / 3 && tried < kTrial / 3 * 2);
  CHECK(write(2048) == 2048 && volume.engine->lane(0).statistics().compressing.get() == 1);
  all_right(client, data);
  std::printf("a slow wire\n");
}

// 9. The meter, with a clock of its own: a lane on which a page takes so long (ns) with and without
// compression, and so many bytes go. Returns after how many pages of `count` it is on.
struct Simulated {
  CompressionMeter meter{Compression::measured};
  uint64_t now = 1'000'000;
  uint64_t compressed = 0;
  void write(uint32_t pages, uint64_t with, uint64_t without, uint32_t gone) {
    for (uint32_t i = 0; i < pages; i++) {
      const bool compresses = meter.compresses();
      compressed += compresses;
      meter.posted();
      meter.wrote(1, compresses ? gone : 0);
      now += compresses ? with : without;
      meter.turn(now, false);
      now += 5'000;  // the client thinks
      meter.turn(now, false);
    }
  }
};
void meter() {
  constexpr uint32_t kTrial =
      CompressionMeter::kTurns * (CompressionMeter::kSettle + CompressionMeter::kMeasure);
  Simulated pays;
  pays.write(kTrial, 3'000, 4'000, 2'500);
  CHECK(pays.meter.compresses() && pays.compressed == kTrial / 2);
  pays.write(CompressionMeter::kStay, 3'000, 4'000, 2'500);
  CHECK(pays.compressed == kTrial / 2 + CompressionMeter::kStay);
  pays.write(kTrial, 4'100, 4'000, 2'500);  // not any more
  CHECK(!pays.meter.compresses());
  pays.compressed = 0;
  pays.write(CompressionMeter::kStay - 1, 4'100, 4'000, 2'500);
  CHECK(pays.compressed == 0);
  pays.write(kTrial + 1, 3'000, 4'000, 2'500);  // again
  CHECK(pays.meter.compresses());
  pays.write(CompressionMeter::kGlance, 3'000, 4'000, 511);  // the data change
  CHECK(!pays.meter.compresses());
  pays.compressed = 0;
  pays.write(CompressionMeter::kShortRest, 3'000, 4'000, 2'500);
  CHECK(pays.compressed == 0 && pays.meter.compresses());
  Simulated hardly;
  hardly.write(kTrial, 3'800, 4'000, 2'500);
  CHECK(!hardly.meter.compresses());
  CompressionMeter always(Compression::always), off(Compression::off);
  for (int i = 0; i < 1000; i++) {
    always.wrote(1, 0);
    off.wrote(1, 0);
  }
  CHECK(always.compresses() && !off.compresses());
  std::printf("the meter\n");
}

}  // namespace

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  meter();
  round_trip({}, 1);
  round_trip(kSlow, 2);
  round_trip(kIwarp, 3);
  repaired();
  hostile();
  refilled();
  under_load(kSlow, Meanwhile::nothing);
  under_load(kIwarp, Meanwhile::flips);
  under_load(kSlow, Meanwhile::dies);
  under_load(kSlow, Meanwhile::hangs);
  under_load(kIwarp, Meanwhile::hangs);
  under_load(kSlow, Meanwhile::moves);
  under_load(kIwarp, Meanwhile::moves);
  backed_up(Acknowledge::all, false);
  backed_up(Acknowledge::backup, true);
  files();
  thin();
  no_gain();
  slow_wire();
  std::printf("ok\n");
  return 0;
}
