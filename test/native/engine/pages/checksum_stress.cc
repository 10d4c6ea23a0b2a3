// Pages whose bytes change at a server: the right ones come from another replica and go back to where they
// were wrong; without another replica the page is lost, and that is said once.
#include "../fixture/damage.h"
#include "../fixture/workers.h"

namespace engine_checksum_stress {

using namespace fixture;

Shape two_replicas() {
  Shape shape;
  shape.size = 8 << 20;
  shape.servers = 3;
  shape.lanes = 2;
  shape.replicas = 2;
  shape.refill_lane = true;
  return shape;
}

uint8_t byte_at(TestVolume& volume, uint64_t offset, uint32_t server) {
  uint8_t byte;
  volume.servers[server]->copy(address_of(volume, offset, server), &byte, 1, false);
  return byte;
}

// 1. One wrong bit in one replica: a single page, and one in the middle of a long READ.
void repaired() {
  TestVolume volume(two_replicas());
  Client client(volume.attach(0));
  std::vector<uint8_t> data(1 << 20);
  fill_noise(data.data(), data.size(), 1);
  CHECK(client.write(0, data.data(), 1 << 20) == 0);
  std::vector<uint8_t> got(1 << 20);
  for (const uint64_t wrong : {uint64_t{17}, uint64_t{123 * 4096 + 4095}}) {
    corrupt(volume, wrong, 0);  // the first replica of slab 0 is the one that is read
    CHECK(byte_at(volume, wrong, 0) != data[wrong]);
    CHECK(client.read(0, got.data(), 1 << 20) == 0 && got == data);
    CHECK(byte_at(volume, wrong, 0) == data[wrong]);
  }
  const Event event = volume.wait_until(
      [](const Event& each) { return each.type == Event::Type::page_repaired && each.page == 123; });
  CHECK(event.server == 0 && event.slab == 0);
  CHECK(volume.count(Event::Type::page_repaired) == 2 && volume.count(Event::Type::page_lost) == 0);
  CHECK(sum(volume, &LaneStatistics::pages_wrong) == 2 && sum(volume, &LaneStatistics::pages_repaired) == 2);
  // A page that was written in part is not known any more, until it is written as a whole.
  CHECK(client.write(100, data.data(), 100) == 0);
  corrupt(volume, 17, 0);
  CHECK(client.read(0, got.data(), 4096) == 0 && got[17] != data[17]);
  CHECK(client.write(0, data.data(), 4096) == 0);
  corrupt(volume, 17, 0);
  CHECK(client.read(0, got.data(), 4096) == 0 && got[17] == data[17]);
}

// 2. Wrong everywhere: EIO, reported once, until it is rewritten. Its neighbours are not affected.
void lost(uint32_t replicas) {
  Shape shape = two_replicas();
  shape.replicas = replicas;
  shape.refill_lane = replicas > 1;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  std::vector<uint8_t> data(1 << 20, 0x5b);
  CHECK(client.write(0, data.data(), 1 << 20) == 0);
  for (uint32_t server = 0; server < replicas; server++) corrupt(volume, 8192 + 5, server);
  std::vector<uint8_t> got(1 << 20);
  CHECK(client.read(0, got.data(), 1 << 20) == EIO);
  CHECK(client.read(8192, got.data(), 4096) == EIO);
  CHECK(client.read(12288, got.data(), 4096) == 0 && got[0] == 0x5b);
  CHECK(volume.wait_for(Event::Type::page_lost).page == 2);
  CHECK(volume.count(Event::Type::page_lost) == 1);
  CHECK(volume.engine->volume().pages().get(2) == PageState::lost);
  CHECK(client.write(8192, data.data(), 4096) == 0);
  CHECK(client.read(0, got.data(), 1 << 20) == 0 && got == data);
}

// 3. Switched off: no check.
void off() {
  Shape shape = two_replicas();
  shape.options.volume.checksums = false;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  std::vector<uint8_t> page(4096, 1);
  CHECK(client.write(0, page.data(), 4096) == 0);
  corrupt(volume, 0, 0);
  CHECK(client.read(0, page.data(), 4096) == 0 && page[0] != 1);
}

// 4. A refill does not spread what is wrong.
void refill() {
  TestVolume volume(two_replicas());
  Volume& slabs = volume.engine->volume();
  Client client(volume.attach(0));
  std::vector<uint8_t> data(1 << 20, 0x3c);
  CHECK(client.write(0, data.data(), 1 << 20) == 0);
  corrupt(volume, 4096, 0);
  corrupt(volume, 50 * 4096, 0);
  corrupt(volume, 50 * 4096, 1);
  // The source is server 0 or 1: the target is the third.
  CHECK(slabs.add_replica(0, volume.replica(0, 2)) == 0);
  std::string why;
  CHECK(volume.engine->refill(0, 2, why) == 0);
  volume.wait_for(Event::Type::slab_refilled);
  CHECK(byte_at(volume, 4096, 2) == 0x3c && byte_at(volume, 4096, 0) == 0x3c);
  CHECK(volume.wait_for(Event::Type::page_repaired).page == 1);
  CHECK(volume.wait_for(Event::Type::page_lost).page == 50);
  std::vector<uint8_t> got(4096);
  CHECK(client.read(50 * 4096, got.data(), 4096) == EIO);
  CHECK(client.read(51 * 4096, got.data(), 4096) == 0 && got[0] == 0x3c);
}

// 5. Bits flip at one server all the time, under verified load, and once that server dies.
void under_load(Behaviour behaviour, bool dies) {
  Shape shape = two_replicas();
  shape.behaviour = behaviour;
  shape.options.operation_timeout_ns = 500'000'000;
  TestVolume volume(shape);
  std::atomic<bool> over{false};
  const auto repaired = [&] { return sum(volume, &LaneStatistics::pages_repaired); };
  const auto happened = [&] { return repaired() >= 3 && (!dies || volume.engine->volume().failed(0)); };
  {
    std::vector<std::unique_ptr<Client>> clients;
    for (uint32_t i = 0; i < shape.lanes; i++) clients.push_back(std::make_unique<Client>(volume.attach(i)));
    std::thread flipper([&] {
      std::mt19937_64 random(3);
      while (!over) {
        const uint64_t offset = random() % (shape.size / 4096) * 4096;
        const auto slab = static_cast<uint32_t>(offset / shape.slab_size);
        if (slab % 3 == 0) corrupt(volume, offset + random() % 4096, 0);
        usleep(500);
      }
    });
    std::vector<std::thread> readers;
    for (uint32_t i = 0; i < 4; i++)
      readers.emplace_back([&, i] {
        std::mt19937_64 random(i);
        const uint64_t pages = shape.size / 4096 / 4;
        std::vector<uint8_t> page(4096);
        std::vector<uint8_t> value(pages, 0);
        Client& client = *clients[i % shape.lanes];
        for (int n = 0; n < effort(1000) || !happened(); n++) {
          const uint64_t at = random() % pages;
          const uint64_t offset = (i * pages + at) * 4096;
          if (random() % 2 == 0) {
            value[at] = static_cast<uint8_t>(1 + random() % 255);
            std::fill(page.begin(), page.end(), value[at]);
            CHECK(client.write(offset, page.data(), 4096) == 0);
          } else {
            CHECK(client.read(offset, page.data(), 4096) == 0);
            CHECK(is_filled(page.data(), page.size(), value[at]));
          }
        }
      });
    if (dies) {
      await([&] { return repaired() >= 3; });
      volume.servers[0]->set_mode(Server::Mode::dead);
    }
    for (auto& reader : readers) reader.join();
    over = true;
    flipper.join();
  }
  CHECK(sum(volume, &LaneStatistics::errors) == 0);
  CHECK(volume.count(Event::Type::page_lost) == 0);
}

STRESS(engine_checksum) {
  timed("repaired from a replica", repaired);
  timed("wrong in each replica", [] {
    lost(1);
    lost(2);
  });
  timed("switched off", off);
  timed("a refill", refill);
  timed("bits flip", [] { under_load({.delay_ns = 20'000, .jitter_ns = 50'000}, false); });
  timed("bits flip, iWARP completions",
        [] { under_load({.delay_ns = 20'000, .jitter_ns = 50'000, .iwarp = true}, false); });
  timed("bits flip, and the server dies",
        [] { under_load({.delay_ns = 20'000, .jitter_ns = 50'000}, true); });
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_checksum_stress
