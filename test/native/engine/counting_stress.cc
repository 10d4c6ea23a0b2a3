// Which copies count (docs/page-service.md): a WRITE is under way to two replicas while control makes one
// live, or gives the other up, and one of the servers fails. What was answered is there afterwards.
//
// Hung servers end by the operation timeout: 0.3 s each, side by side.
#include "workers.h"

namespace engine_counting_stress {

using namespace fixture;

Shape shape_of(uint32_t replicas) {
  Shape shape;
  shape.size = 3 << 20;
  shape.servers = 3;
  shape.lanes = 1;
  shape.replicas = replicas;
  shape.refill_lane = true;
  shape.behaviour = {.delay_ns = 20'000};
  shape.options.operation_timeout_ns = 300'000'000;
  return shape;
}

// A slab on server 0, and one write at a time.
class Case {
 public:
  explicit Case(uint32_t replicas = 1) : volume(shape_of(replicas)), slabs(volume.engine->volume()) {
    client_ = std::make_unique<Client>(volume.attach(0));
    write(0x11);
  }
  ~Case() { CHECK(volume.engine->close(kCloseTime) == 0); }
  void write(uint8_t byte) {
    const std::vector<uint8_t> page(512, byte);
    CHECK(client_->write(0, page.data(), 512) == kOk);
  }
  // Begins a WRITE, and waits until it is under way to `replicas`.
  void begin(uint8_t byte, uint64_t replicas) {
    const uint64_t before = posted();
    writer_ = std::thread([=, this] {
      write(byte);
      answered = true;
    });
    await([&] { return posted() == before + replicas; });
  }
  // The WRITE was answered, and is read back.
  void answered_with(uint8_t byte) {
    writer_.join();
    std::vector<uint8_t> page(4096);
    CHECK(client_->read(0, page.data(), 4096) == kOk);
    CHECK(page[0] == byte && page[511] == byte, "0x%02x", page[0]);
  }
  void add(uint32_t server) { CHECK(slabs.add_replica(0, volume.replica(0, server)) == 0); }
  // A refill's end, for which nothing was left to be copied.
  void promote(uint32_t server) { CHECK(slabs.promote_replica(0, server) == 0); }
  void hang(uint32_t server) { volume.servers[server]->set_mode(Server::Mode::hung); }
  const Replica* find(uint32_t server) {
    place_ = slabs.place(0);
    return place_.find(server);
  }
  int drop(uint32_t server) { return volume.drop(0, server, dropped); }

  TestVolume volume;
  Volume& slabs;
  Volume::Dropped dropped;
  std::atomic<bool> answered{false};

 private:
  uint64_t posted() { return volume.engine->lane(0).statistics().rdma_writes.get(); }
  SlabPlace place_;
  std::unique_ptr<Client> client_;
  std::thread writer_;
};

void fill(Case& with, uint32_t server) {
  with.add(server);
  std::string why;
  CHECK(with.volume.engine->refill(0, server, why) == 0);
  with.volume.wait_for(Event::Type::slab_refilled);
}

// A migration's end with a WRITE under way that began before: it stalls towards the new place, which fails.
// The old one has it, and stays.
void given_up_under_a_write() {
  Case with;
  with.add(1);
  with.hang(1);
  with.begin(0x22, 2);
  with.promote(1);
  CHECK(with.drop(0) == EBUSY);
  CHECK(with.slabs.failed(1) && with.find(0)->live && !with.find(0)->leaving);
  CHECK(with.drop(1) == 0 && with.dropped.live_left == 1);
  with.answered_with(0x22);
}

// One that began after the old place was retired is not answered because that has it: control decides first.
void written_while_leaving() {
  Case with;
  fill(with, 1);
  CHECK(with.slabs.retire_replica(0, 0) == 0);
  CHECK(with.slabs.retire_replica(0, 0) == ENOENT);
  with.volume.synchronize();
  with.hang(1);
  with.begin(0x22, 2);
  with.volume.wait_for(Event::Type::server_failed);
  // It starts anew and waits.
  await([&] { return with.volume.engine->lane(0).statistics().pages_waited_for.get() > 0 || with.answered; });
  CHECK(!with.answered);
  CHECK(with.slabs.drop_replica(0, 0, false, with.dropped) == EBUSY);
  CHECK(with.find(0)->live && !with.find(0)->leaving);
  CHECK(with.drop(1) == 0);
  with.answered_with(0x22);
}

// The same, and control hears of the new place's failure first.
void failure_makes_it_stay() {
  Case with;
  fill(with, 1);
  CHECK(with.slabs.retire_replica(0, 0) == 0);
  with.hang(1);
  with.begin(0x22, 2);
  with.volume.wait_for(Event::Type::server_failed);
  CHECK(with.slabs.drop_replica(0, 1, false, with.dropped) == 0);
  CHECK(with.dropped.was_live && with.dropped.live_left == 1);
  CHECK(with.find(0)->live && !with.find(0)->leaving);
  with.answered_with(0x22);
}

// A replica became live while a WRITE was under way: it counts, though it did not when the WRITE began.
void made_live_under_a_write() {
  Case with;
  with.hang(0);
  with.add(1);
  with.begin(0x22, 2);
  with.promote(1);
  with.answered_with(0x22);
  CHECK(with.slabs.failed(0));
}

// Who was dropped under a WRITE does not count: it was never retired, for its server failed.
void dropped_under_a_write() {
  Case with(2);
  with.volume.engine->volume().set_waits();
  with.hang(1);
  with.begin(0x22, 2);
  with.volume.servers[0]->set_mode(Server::Mode::dead);
  CHECK(with.slabs.fail(0));
  with.volume.wait_until(
      [](const Event& event) { return event.type == Event::Type::server_failed && event.server == 1; });
  CHECK(!with.answered);
  CHECK(with.drop(0) == 0 && with.dropped.live_left == 1);
  // The second one comes back with what it had.
  with.volume.servers[1]->resume();
  with.volume.connect(*with.volume.servers[1], 5);
  Replica back = with.volume.replica(0, 1);
  back.server = 5;
  CHECK(with.slabs.move_replica(0, 1, back) == 0);
  with.answered_with(0x22);
}

// The last usable one is neither retired nor dropped, also when control does not know yet that another one
// failed; and only who failed last has everything.
void last_ones() {
  Case with(2);
  CHECK(with.slabs.drop_replica(0, 0, false, with.dropped) == EBUSY);
  CHECK(with.slabs.retire_replica(0, 2) == ENOENT && with.slabs.retire_replica(99, 0) == EINVAL);
  CHECK(with.slabs.fail(1));
  CHECK(with.slabs.retire_replica(0, 0) == EBUSY);
  CHECK(with.slabs.fail(0));
  Replica back = with.volume.replica(0, 2);
  CHECK(with.slabs.move_replica(0, 1, back) == ESTALE);
  CHECK(with.slabs.move_replica(0, 0, back) == 0);
  CHECK(with.slabs.move_replica(0, 1, back) == EEXIST);
  CHECK(with.drop(1) == 0 && with.dropped.live_left == 1);
}

// What a process never reached it drops without asking who is left.
void absent() {
  Case with;
  CHECK(with.slabs.drop_replica(0, 0, false, with.dropped) == EBUSY);
  CHECK(with.slabs.drop_replica(0, 0, true, with.dropped) == 0);
  CHECK(with.dropped.was_live && with.dropped.live_left == 0);
}

STRESS(engine_counting) {
  side_by_side({
      {"given up under a WRITE", given_up_under_a_write},
      {"written while leaving", written_while_leaving},
      {"a failure makes it stay", failure_makes_it_stay},
      {"made live under a WRITE", made_live_under_a_write},
      {"dropped under a WRITE", dropped_under_a_write},
      {"the last ones", last_ones},
      {"absent", absent},
  });
  return 0;
}

}  // namespace engine_counting_stress
