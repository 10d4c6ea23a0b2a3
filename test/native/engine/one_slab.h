// One slab, and one WRITE that is under way while servers hang, die and come back: for tests of one order of
// events.
#pragma once

#include "workers.h"

namespace fixture {

inline Shape one_slab(uint32_t replicas) {
  Shape shape;
  shape.size = 3 << 20;
  shape.servers = 3;
  shape.lanes = 1;
  shape.replicas = replicas;
  shape.roomy = true;
  shape.refill_lane = true;
  shape.behaviour = {.delay_ns = 20'000};
  shape.options.operation_timeout_ns = kNever;  // who hangs hangs until he dies
  return shape;
}

// The slab is on server 0 and those that follow. Its page 0 is 0x11.
class OneSlab {
 public:
  explicit OneSlab(uint32_t replicas = 1) : OneSlab(one_slab(replicas)) {}
  explicit OneSlab(const Shape& shape)
      : volume(shape), slabs(volume.engine->volume()), client(volume.attach(0)) {
    CHECK(write(0x11) == kOk);
  }
  ~OneSlab() { CHECK(volume.engine->close(kCloseTime) == 0); }

  uint32_t write(uint8_t byte, uint64_t page = 0) {
    const std::vector<uint8_t> bytes(512, byte);
    return client.write(page * 4096, bytes.data(), 512);
  }
  // Begins a WRITE, and waits until it is under way to `replicas`.
  void begin(uint8_t byte, uint64_t replicas, uint64_t page = 0) {
    const uint64_t before = posted();
    writer_ = std::thread([=, this] {
      outcome_ = write(byte, page);
      answered = true;
    });
    await([&] { return posted() == before + replicas; });
  }
  // Of what is under way so much is left, and the lane knows.
  void left(uint64_t operations) {
    await([&] { return volume.engine->lane(0).statistics().outstanding_operations.get() == operations; });
  }
  // How it ended.
  uint32_t end() {
    writer_.join();
    return outcome_;
  }
  uint32_t read(uint8_t& byte, uint64_t page = 0) {
    std::vector<uint8_t> bytes(4096);
    const uint32_t error = client.read(page * 4096, bytes.data(), 4096);
    byte = bytes[0];
    return error;
  }
  void reads(uint8_t byte, uint64_t page = 0) {
    uint8_t there = 0;
    const uint32_t error = read(there, page);
    CHECK(error == kOk && there == byte, "error %u, 0x%02x", error, there);
  }
  // What began was answered, and is read back.
  void answered_with(uint8_t byte) {
    CHECK(end() == kOk);
    reads(byte);
  }

  void add(uint32_t server) { CHECK(slabs.add_replica(0, volume.replica(0, server)) == 0); }
  // A refill's end, for which nothing was left to be copied.
  void promote(uint32_t server) { CHECK(slabs.promote_replica(0, server) == 0); }
  void fill(uint32_t server) {
    add(server);
    refill(server);
    filled(server);
  }
  void refill(uint32_t server) {
    std::string why;
    CHECK(volume.engine->refill(0, server, why) == 0);
  }
  void filled(uint32_t server) {
    volume.wait_until([=](const Event& event) {
      CHECK(event.type != Event::Type::refill_failed);
      return event.type == Event::Type::slab_refilled && event.server == server;
    });
  }
  void set(uint32_t server, Server::Mode mode) { volume.set_mode(server, mode); }
  void hang(uint32_t server) { set(server, Server::Mode::hung); }
  void die(uint32_t server) { set(server, Server::Mode::dead); }
  // The server's session is taken up again, and its replica moves to index `to`.
  int come_back(uint32_t server, uint32_t to) {
    volume.servers[server]->resume();
    volume.connect(*volume.servers[server], to);
    Replica back = volume.replica(0, server);
    back.server = static_cast<uint16_t>(to);
    return slabs.move_replica(0, server, back);
  }
  void wait_for_failure_of(uint32_t server) {
    volume.wait_until([=](const Event& event) {
      return event.type == Event::Type::server_failed && event.server == server;
    });
  }
  const Replica* find(uint32_t server) {
    place_ = slabs.place(0);
    return place_.find(server);
  }
  int drop(uint32_t server) { return volume.drop(0, server, dropped); }
  uint64_t posted() { return volume.engine->lane(0).statistics().rdma_writes.get(); }

  TestVolume volume;
  Volume& slabs;
  Client client;
  Volume::Dropped dropped;
  std::atomic<bool> answered{false};

 private:
  SlabPlace place_;
  std::thread writer_;
  uint32_t outcome_ = kOk;
};

}  // namespace fixture
