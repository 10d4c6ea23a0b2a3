// Compressed pages: fewer bytes on the wire and the right ones back, whatever is beside them, of a server
// that sends others too, and of a process that ends.
#include "../fixture/damage.h"
#include "../fixture/one_slab.h"
#include "compressed_pages.h"

namespace engine_compress_stress {

using namespace fixture;

bool same_slot(TestVolume& volume, uint64_t page, uint32_t one, uint32_t other) {
  uint8_t slots[2][4096];
  volume.servers[one]->copy(address_of(volume, page * 4096, one), slots[0], 4096, false);
  volume.servers[other]->copy(address_of(volume, page * 4096, other), slots[1], 4096, false);
  const uint16_t length = volume.engine->volume().lengths().get(page);
  return std::memcmp(slots[0], slots[1], length == kRaw ? 4096 : length) == 0;
}

// Compressible and incompressible data, and both, in long and in short requests; zeros; parts of pages.
void round_trip(Behaviour behaviour, uint32_t replicas) {
  Shape shape = compressed(replicas);
  shape.behaviour = behaviour;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  constexpr uint64_t kPages = 256;
  const auto packed = pages_of(kPages, [](uint64_t i) { return 2 * i; });
  const auto raw = pages_of(kPages, [](uint64_t i) { return 2 * i + 1; });
  auto both = pages_of(kPages, mixed);
  std::fill_n(both.begin() + 100 * 4096, 3 * 4096, 0);
  uint64_t before = 0;
  const auto sent = [&] {
    const uint64_t all = bytes_of(volume, &ServerStatistics::bytes_written) / replicas;
    return all - std::exchange(before, all);
  };
  CHECK(client.write(0, packed.data(), kPages * 4096) == 0);
  CHECK(sent() < kPages * 4096 / 3 && sum(volume, &LaneStatistics::pages_packed) == kPages);
  all_right(client, packed);
  CHECK(bytes_of(volume, &ServerStatistics::bytes_read) < 2 * kPages * 4096 / 3);
  const uint64_t writes = sum(volume, &LaneStatistics::rdma_writes);
  CHECK(client.write(0, raw.data(), kPages * 4096) == 0);
  CHECK(sent() == kPages * 4096);
  // Eight pages together and more: a socket gives at least 32 KiB at once, and more only to a lane that comes
  // late.
  CHECK(sum(volume, &LaneStatistics::rdma_writes) - writes < (kPages / 8 + 16) * replicas);
  all_right(client, raw);
  for (int i = 0; i < 2; i++) {
    CHECK(client.write(0, both.data(), kPages * 4096) == 0);
    all_right(client, both);
  }
  for (uint64_t page = 0; page < kPages; page += 3)
    CHECK(client.write(page * 4096, packed.data() + page * 4096, 4096) == 0);
  for (uint64_t page = 0; page < kPages; page += 3)
    std::copy_n(packed.begin() + static_cast<long>(page * 4096), 4096,
                both.begin() + static_cast<long>(page * 4096));
  all_right(client, both);
  CHECK(client.write(512, both.data(), 512) == EINVAL && client.read(0, both.data(), 100) == EINVAL);
  CHECK(client.write_zeroes(4096, 100) == EINVAL && client.trim(0, 8192) == 0);
  CHECK(sum(volume, &LaneStatistics::pages_wrong) == 0 && volume.count(Event::Type::page_lost) == 0);
}

// Wrong bytes of a packed page are found, whether they unpack or not; those behind it do not count.
void repaired() {
  TestVolume volume(compressed(2));
  Client client(volume.attach(0));
  const auto data = pages_of(256, mixed);
  CHECK(client.write(0, data.data(), 1 << 20) == 0);
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
  CHECK(client.read(page * 4096, got.data(), 4096) == EIO);
  CHECK(volume.wait_for(Event::Type::page_lost).page == page && volume.count(Event::Type::page_lost) == 1);
  CHECK(client.write(page * 4096, data.data() + page * 4096, 4096) == 0);
  all_right(client, data);
}

// A server's data are no LZ4, or are, but of something else, or have any length: EIO, and nothing is written
// beyond.
void hostile() {
  Shape shape = compressed(1);
  TestVolume volume(shape);
  Client client(volume.attach(0));
  const auto data = pages_of(256, [](uint64_t i) { return 2 * i; });
  std::vector<uint8_t> got(1 << 20), slots(1 << 20);
  std::mt19937_64 random(7);
  for (int round = 0; round < std::max(4, effort(12)); round++) {
    CHECK(client.write(0, data.data(), 1 << 20) == 0);
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
    if (round % 2 == 0) CHECK(client.read(0, got.data(), 1 << 20) == EIO);
    for (uint64_t page = 0; page < 256; page++) {
      const int error = client.read(page * 4096, got.data(), 4096);
      const bool same = error == 0 && std::memcmp(got.data(), data.data() + page * 4096, 4096) == 0;
      CHECK(error == EIO || (same && !damaged));
    }
  }
}

// A refill copies slots, and not the wrong ones; what it filled is read when it is all that is left.
void refilled() {
  TestVolume volume(compressed(2));
  Client client(volume.attach(0));
  const auto data = pages_of(256, mixed);
  CHECK(client.write(0, data.data(), 1 << 20) == 0);
  for (uint64_t page = 1; page < 256; page += 20) corrupt(volume, page * 4096 + 3, 0);
  CHECK(volume.engine->volume().add_replica(0, volume.replica(0, 2)) == 0);
  std::string why;
  CHECK(volume.engine->refill(0, 2, why) == 0);
  volume.wait_for(Event::Type::slab_refilled);
  for (uint64_t page = 0; page < 256; page++) CHECK(same_slot(volume, page, 0, 2));
  CHECK(volume.engine->fail_server(0, "test") == 0 && volume.engine->fail_server(1, "test") == 0);
  all_right(client, data);
}

// The lengths outlive the process; one that does not compress reads what another one has compressed.
void files() {
  const File lengths("lengths"), sums("sums"), map("map");
  Shape shape = compressed(1);
  shape.options.volume.length_file = lengths.name();
  shape.options.volume.checksum_file = sums.name();
  shape.options.volume.page_map_file = map.name();
  const auto data = pages_of(256, mixed);
  std::vector<std::vector<uint8_t>> memory;
  {
    TestVolume volume(shape);
    Client client(volume.attach(0));
    CHECK(client.write(0, data.data(), 1 << 20) == 0);
    memory.resize(1, std::vector<uint8_t>(1 << 20));
    volume.servers[0]->copy(address_of(volume, 0, 0), memory[0].data(), 1 << 20, false);
  }
  shape.options.volume.compression = Compression::off;
  TestVolume volume(shape);
  volume.servers[0]->copy(address_of(volume, 0, 0), memory[0].data(), 1 << 20, true);
  Client client(volume.attach(0));
  all_right(client, data);
  CHECK(client.write(0, data.data(), 1 << 20) == 0);
  CHECK(bytes_of(volume, &ServerStatistics::bytes_written) == 1 << 20);
  all_right(client, data);
  CHECK(sum(volume, &LaneStatistics::pages_packed) == 0 && volume.engine->volume().minimum_block() == 4096);
  // Not without what tells a torn page from a whole one, nor with a file of something else.
  int error = 0;
  std::string why;
  shape.options.volume.size = shape.size;
  shape.options.volume.checksums = false;
  const auto refused = [&] {
    return TestVolume::Engine::open(
               shape.options, [](const Event&) {}, error, why) == nullptr &&
           error == EINVAL;
  };
  CHECK(refused() && why.find("checksums") != std::string::npos);
  shape.options.volume.checksums = true;
  shape.options.volume.checksum_file = shape.options.volume.page_map_file = "";
  shape.options.volume.length_file = sums.name();
  volume.engine->close(0);
  CHECK(refused());
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
    CHECK(client.write(0, data.data(), 4 << 20) == 0);
    all_right(client, data);
    CHECK(client.trim(0, 4 << 20) == 0);
    all_right(client, std::vector<uint8_t>(1 << 20));
  }
}

// A page whose WRITE failed is what it was before, packed or not, when its server is back.
void failed(uint64_t old_kind, uint64_t new_kind) {
  Shape shape = one_slab(1);
  shape.options.volume.compression = Compression::always;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  const auto before = pages_of(16, [=](uint64_t i) { return 2 * i + old_kind; });
  const auto after = pages_of(16, [=](uint64_t i) { return 100 + 2 * i + new_kind; });
  CHECK(client.write(0, before.data(), 16 * 4096) == 0);
  volume.servers[0]->set_mode(Server::Mode::dead);
  CHECK(client.write(0, after.data(), 16 * 4096) == EIO);
  volume.servers[0]->resume();
  volume.connect(*volume.servers[0], 5);
  Replica back = volume.replica(0, 0);
  back.server = 5;
  CHECK(volume.engine->volume().move_replica(0, 0, back) == 0);
  all_right(client, before);
  CHECK(volume.count(Event::Type::page_lost) == 0);
}

// Data that unpack to less than a page are invalid, even if no checksum shows it: their file was lost.
void too_short() {
  TestVolume volume(compressed(1));
  Client client(volume.attach(0));
  Volume& slabs = volume.engine->volume();
  std::vector<uint8_t> page(4096, 0x42);
  fill_noise(page.data(), 100, 1);
  CHECK(client.write(0, page.data(), 4096) == 0);
  const uint16_t packed = slabs.lengths().get(0);
  CHECK(packed > 17 && packed < 17 + 255);
  std::vector<uint8_t> slot(packed, 0x5a);  // one run of literals
  slot[0] = 0xf0;
  slot[1] = static_cast<uint8_t>(packed - 17);
  volume.servers[0]->copy(address_of(volume, 0, 0), slot.data(), packed, true);
  slabs.checksums().forget(0, 1);
  CHECK(client.read(0, page.data(), 4096) == EIO);
  CHECK(volume.wait_for(Event::Type::page_lost).page == 0);
}

// A damaged file of lengths leads to no access beyond a page.
void too_long() {
  TestVolume volume(compressed(1));
  Client client(volume.attach(0));
  Volume& slabs = volume.engine->volume();
  const auto data = pages_of(2, [](uint64_t i) { return 2 * i; });
  CHECK(client.write(0, data.data(), 2 * 4096) == 0 && slabs.lengths().get(0) != kRaw);
  slabs.lengths().set(0, 1, kPage + 900);
  std::vector<uint8_t> got(4096);
  CHECK(client.read(0, got.data(), 4096) == EIO && slabs.lengths().get(0) == kRaw);
  CHECK(client.read(4096, got.data(), 4096) == 0 && std::memcmp(got.data(), &data[4096], 4096) == 0);
}

STRESS(engine_compress) {
  timed("there and back", [] { round_trip({}, 1); });
  timed("there and back, 2 replicas", [] { round_trip(kSlow, 2); });
  timed("there and back, 3 replicas, iWARP", [] { round_trip(kIwarp, 3); });
  timed("repaired", repaired);
  timed("hostile servers", hostile);
  side_by_side({
      {"a WRITE that fails, of packed pages", [] { failed(0, 0); }},
      {"a WRITE that fails, packed over raw", [] { failed(1, 0); }},
      {"a WRITE that fails, raw over packed", [] { failed(0, 1); }},
      {"a WRITE that fails, of raw pages", [] { failed(1, 1); }},
  });
  timed("too short", too_short);
  timed("too long", too_long);
  timed("refilled", refilled);
  timed("files", files);
  timed("thin", thin);
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_compress_stress
