// Orders of events that chance seldom brings about, one by one. Each was found by a mutation that nothing
// else caught (test/mutation/README.md).
//
// A hung server ends by the operation timeout: 0.3 s, beside the others.
#include "../fixture/one_slab.h"

namespace engine_aimed_stress {

using namespace fixture;

// On iWARP a WRITE is answered when it is in the server's memory, and not when it has left.
void answered_when_placed() {
  Shape shape = one_slab(1);
  shape.behaviour = {.delay_ns = 20'000'000, .iwarp = true};
  OneSlab with(shape);
  for (uint8_t round = 0x20; round < 0x24; round++) {
    CHECK(with.write(round) == 0);
    uint8_t there = 0;
    with.volume.servers[0]->copy(with.volume.replica(0, 0).address, &there, 1, false);
    CHECK(there == round);
  }
}

// A READ of a page that a WRITE has claimed waits for it, though one replica could answer.
void read_waits_for_a_claim() {
  Shape shape = one_slab(2);
  shape.options.operation_timeout_ns = 300'000'000;
  OneSlab with(shape);
  with.hang(1);
  with.begin(0x22, 2);
  with.reads(0x22);
  CHECK(with.slabs.failed(1));  // before that the WRITE was not over
  CHECK(with.end() == 0);
}

// A page whose first WRITE failed is zeros, as it was.
void first_write_fails() {
  OneSlab with;
  with.die(0);
  CHECK(with.write(0x22, 3) == EIO);
  with.reads(0, 3);
}

// A page whose WRITE failed is what it was before, when its server is back: its checksum, which only a WRITE
// of the whole page has, too.
void second_write_fails() {
  OneSlab with;
  with.die(0);
  const std::vector<uint8_t> page(4096, 0x22);
  CHECK(with.client.write(0, page.data(), 4096) == EIO);
  CHECK(with.come_back(0, 5) == 0);
  with.reads(0x11);
}

// With --ack one: a WRITE was answered by a server that fails before another has it. The page is lost, and
// never old.
void acknowledged_and_lost() {
  Shape shape = one_slab(2);
  shape.options.acknowledge = Acknowledge::one;
  OneSlab with(shape);
  with.slabs.set_waits();
  with.hang(1);
  CHECK(with.write(0x22) == 0);
  CHECK(with.slabs.fail(0));
  with.die(1);
  with.wait_for_failure_of(1);
  CHECK(with.drop(0) == 0);
  CHECK(with.come_back(1, 5) == 0);
  uint8_t byte;
  CHECK(with.read(byte) == EIO);
  CHECK(with.write(0x33) == EIO);  // a part of it: the rest is lost
}

// A refill waits for a page that is being written.
void refill_waits_for_a_claim() {
  OneSlab with;
  CHECK(with.write(0x44, 8) == 0);
  CHECK(with.client.trim(0, 8 * 4096) == 0);
  with.hang(0);
  with.begin(0x22, 1, 8);
  with.add(1);
  with.refill(1);
  const RefillStatistics& refill = with.volume.engine->refill_lane()->work().refill().statistics();
  await([&] { return refill.pages_done.get() >= 8; });
  with.set(0, Server::Mode::healthy);
  CHECK(with.end() == 0);
  with.filled(1);
  with.die(0);
  with.reads(0x22, 8);
}

// A replica is live when the last of its pages is there.
void live_when_filled() {
  OneSlab with;
  with.add(1);
  with.hang(1);
  with.refill(1);
  const LaneStatistics& lane = with.volume.engine->refill_lane()->statistics();
  await([&] { return lane.rdma_writes.get() == 1; });
  CHECK(!with.find(1)->live);
  with.set(1, Server::Mode::healthy);
  with.filled(1);
  with.die(0);
  with.reads(0x11);
}

// A slab is placed where no server has failed.
void spare_place_of_a_failed_server() {
  Shape shape = one_slab(1);
  shape.thin = true;
  TestVolume volume(shape);
  Volume& slabs = volume.engine->volume();
  const std::array<Replica, 2> first{volume.replica(0, 1), volume.replica(0, 0)};
  const Replica second = volume.replica(0, 1);
  CHECK(slabs.add_spare(1, first) == 0);
  CHECK(slabs.fail(0));
  CHECK(!slabs.place_spare(0) && !slabs.place(0).mapped());
  CHECK(slabs.add_spare(2, {&second, 1}) == 0);
  CHECK(slabs.place_spare(0) && slabs.place(0).find(1) != nullptr);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// A slab keeps its place while a WRITE has a page of it, though none is written.
void vacated_with_a_claim() {
  Shape shape = one_slab(1);
  shape.thin = true;
  TestVolume volume(shape);
  Volume& slabs = volume.engine->volume();
  const Replica place = volume.replica(0, 0);
  CHECK(slabs.add_spare(1, {&place, 1}) == 0 && slabs.place_spare(0));
  CHECK(slabs.pages().claim(5, 1, PageState::unset) == 1 && slabs.hold(0));
  CHECK(slabs.vacate(0) == EBUSY && slabs.place(0).mapped() && slabs.hold(0));
  slabs.settle(5, 1, slabs.generation(0), PageState::unset);
  CHECK(slabs.vacate(0) == 0 && !slabs.place(0).mapped() && !slabs.hold(0));
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// A WRITE to a place that the slab no longer has is lost, and does not get to the new place.
void replaced_under_a_write() {
  TestVolume volume(one_slab(1));
  Volume& slabs = volume.engine->volume();
  const uint32_t generation = slabs.generation(0);
  CHECK(slabs.pages().claim(5, 1, PageState::unset) == 1);
  const Replica to = volume.replica(0, 1);
  CHECK(slabs.replace_slab(0, to.server, to.remote_key, to.address, true) == EBUSY);
  CHECK(!slabs.settle(5, 1, generation, PageState::written));
  CHECK(slabs.pages().get(5) == PageState::lost);
  CHECK(slabs.replace_slab(0, to.server, to.remote_key, to.address, true) == 0);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// A completion just before the queue is armed raises no event, and the lane finds it all the same.
void completed_before_armed() {
  Shape shape = one_slab(1);
  shape.behaviour = {};
  shape.options.wait_mode = WaitMode::event;
  shape.options.operation_timeout_ns = kNever;
  OneSlab with(shape);
  with.hang(0);
  with.volume.queue(0).completes_before_armed = with.volume.servers[0].get();
  with.begin(0x22, 1);
  with.answered_with(0x22);
  CHECK(with.volume.queue(0).completes_before_armed == nullptr);
}

STRESS(engine_aimed) {
  side_by_side({
      {"completed before it was armed", completed_before_armed},
      {"a spare place of a failed server", spare_place_of_a_failed_server},
      {"vacated with a claim", vacated_with_a_claim},
      {"replaced under a WRITE", replaced_under_a_write},
      {"answered when placed", answered_when_placed},
      {"a READ waits for a claim", read_waits_for_a_claim},
      {"a first WRITE fails", first_write_fails},
      {"a second WRITE fails", second_write_fails},
      {"acknowledged and lost", acknowledged_and_lost},
      {"a refill waits for a claim", refill_waits_for_a_claim},
      {"live when filled", live_when_filled},
  });
  return 0;
}

}  // namespace engine_aimed_stress
