// Which copies count (docs/page-service.md): a WRITE is under way to two replicas while control makes one
// live, or gives the other up, and one of the servers fails. What was answered is there afterwards.
#include <csignal>

#include "fixture/one_slab.h"

namespace engine_counting_stress {

using namespace fixture;

// A migration's end with a WRITE under way that began before: it stalls towards the new place, which fails.
// The old one has it, and stays.
void given_up_under_a_write() {
  OneSlab with;
  with.add(1);
  with.hang(1);
  with.begin(0x22, 2);
  with.promote(1);
  CHECK(with.slabs.retire_replica(0, 0) == 0);
  with.die(1);
  with.volume.synchronize();
  CHECK(with.slabs.drop_replica(0, 0, false, with.dropped) == EBUSY);
  CHECK(with.slabs.failed(1) && with.find(0)->live && !with.find(0)->leaving);
  CHECK(with.drop(1) == 0 && with.dropped.live_left == 1);
  with.answered_with(0x22);
}

// One that began after the old place was retired is not answered because that has it: control decides first.
void written_while_leaving() {
  OneSlab with;
  with.fill(1);
  CHECK(with.slabs.retire_replica(0, 0) == 0);
  CHECK(with.slabs.retire_replica(0, 0) == ENOENT);
  with.volume.synchronize();
  with.hang(1);
  with.begin(0x22, 2);
  with.die(1);
  with.volume.wait_for(Event::Type::server_failed);
  // It restarts and waits: none of its operations is outstanding, and it is not answered.
  with.volume.synchronize();
  CHECK(!with.answered && with.volume.engine->lane(0).statistics().in_flight.get() == 1);
  CHECK(with.slabs.drop_replica(0, 0, false, with.dropped) == EBUSY);
  CHECK(with.find(0)->live && !with.find(0)->leaving);
  CHECK(with.drop(1) == 0);
  with.answered_with(0x22);
}

// The same, and control hears of the new place's failure first.
void failure_makes_it_stay() {
  OneSlab with;
  with.fill(1);
  CHECK(with.slabs.retire_replica(0, 0) == 0);
  with.hang(1);
  with.begin(0x22, 2);
  with.die(1);
  with.volume.wait_for(Event::Type::server_failed);
  CHECK(with.slabs.drop_replica(0, 1, false, with.dropped) == 0);
  CHECK(with.dropped.was_live && with.dropped.live_left == 1);
  CHECK(with.find(0)->live && !with.find(0)->leaving);
  with.answered_with(0x22);
}

// The end of a migration whose two servers fail: the old place failed last, or stayed, and has everything. It
// is not dropped because it was retired, whatever control has heard by then.
void old_place_failed_too(bool other_dropped_first) {
  OneSlab with;
  with.slabs.set_waits();
  with.fill(1);
  CHECK(with.slabs.retire_replica(0, 0) == 0);
  with.volume.synchronize();
  CHECK(with.slabs.fail(1) && with.slabs.fail(0));
  if (other_dropped_first) {
    CHECK(with.drop(1) == 0 && with.dropped.live_left == 1);
    CHECK(with.find(0)->live && !with.find(0)->leaving);
  }
  CHECK(with.slabs.drop_retired(0, 0, with.dropped) == EBUSY);
  CHECK(with.find(0)->live && !with.find(0)->leaving);
  if (!other_dropped_first) CHECK(with.drop(1) == 0 && with.dropped.live_left == 1);
  CHECK(with.come_back(0, 5) == 0);
  with.reads(0x11);
}

// Where another one is usable it goes, and failed or not.
void retired_and_failed() {
  OneSlab with;
  with.fill(1);
  CHECK(with.slabs.drop_retired(0, 0, with.dropped) == EBUSY && with.slabs.retire_replica(0, 0) == 0);
  CHECK(with.slabs.fail(0));
  CHECK(with.slabs.drop_retired(0, 0, with.dropped) == 0 && with.dropped.live_left == 1);
  CHECK(with.slabs.drop_retired(0, 0, with.dropped) == ENOENT);
  with.reads(0x11);
}

// A replica became live while a WRITE was under way: it counts, though it did not when the WRITE began.
void made_live_under_a_write() {
  OneSlab with;
  with.hang(0);
  with.add(1);
  with.begin(0x22, 2);
  with.promote(1);
  with.die(0);
  with.answered_with(0x22);
  CHECK(with.slabs.failed(0));
}

// A replica that was dropped under a WRITE does not count: it was never retired, because its server failed.
void dropped_under_a_write() {
  OneSlab with(2);
  with.volume.engine->volume().set_waits();
  with.hang(1);
  with.begin(0x22, 2);
  with.left(1);
  CHECK(with.slabs.fail(0));
  with.die(1);
  with.wait_for_failure_of(1);
  with.volume.synchronize();  // so it is decided
  CHECK(!with.answered && with.volume.engine->lane(0).statistics().in_flight.get() == 1);
  CHECK(with.drop(0) == 0 && with.dropped.live_left == 1);
  CHECK(with.come_back(1, 5) == 0);
  with.answered_with(0x22);
}

// The last usable one is neither retired nor dropped, also when control does not know yet that another one
// failed; and only who failed last has everything.
void last_ones() {
  OneSlab with(2);
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

// The server that failed first has missed WRITEs answered after that. If the one that had those is dropped
// before control has heard of the first failure, no server has them.
void outlived() {
  OneSlab with(2);
  with.slabs.set_waits();
  with.hang(1);
  with.begin(0x22, 2);
  with.die(1);
  CHECK(with.end() == 0);
  CHECK(with.slabs.fail(0));
  CHECK(with.drop(0) == 0 && with.dropped.was_live && with.dropped.live_left == 0);
  CHECK(with.come_back(1, 5) == ENOENT);
  uint8_t byte;
  CHECK(with.read(byte) == EIO);
  CHECK(with.drop(1) == 0 && !with.dropped.was_live);
}

// The thread that such a signal interrupts stands still until the test lets it go on.
std::atomic<uint32_t> stands{0};
std::atomic<uint32_t> goes_on{0};
void stand_still(int) {
  for (const uint32_t stand = ++stands; goes_on < stand;) sched_yield();
}

// Servers fail one after another, each after `earlier`, and in the middle of that control looks: one that has
// no number yet has everything, and `earlier` may have missed what that one has.
void look_while_they_fail() {
  constexpr uint32_t kEarlier = 0;
  constexpr uint32_t kServers = 1000;
  Volume volume;
  VolumeOptions options;
  options.slab_size = kMinSlab;
  options.size = kServers * options.slab_size;
  std::string why;
  CHECK(volume.open(options, why) == 0, "%s", why.c_str());
  for (uint32_t slab = 0; slab < kServers; slab++) {
    const std::array<Replica, 2> place{Replica{1 << 20, 1, kEarlier},
                                       Replica{2 << 20, 1, static_cast<uint16_t>(slab + 1)}};
    CHECK(volume.map_slab(slab, place) == 0);
  }
  CHECK(volume.fail(kEarlier));
  std::atomic<bool> all_failed{false};
  std::thread failing([&] {
    for (uint32_t server = 1; server <= kServers; server++) CHECK(volume.fail(server));
    all_failed = true;
  });
  uint32_t slab = 0;
  while (!all_failed) {
    while (!volume.failed(slab + 1) && !all_failed) sched_yield();
    const uint32_t stand = stands + 1;
    CHECK(pthread_kill(failing.native_handle(), SIGUSR2) == 0);
    while (stands != stand && !all_failed) sched_yield();
    for (; slab < kServers && volume.failed(slab + 1); slab++) {
      const Replica back{3 << 20, 1, kMaxServers - 1};
      CHECK(volume.move_replica(slab, kEarlier, back) == ESTALE, "slab %u", slab);
      Volume::Dropped dropped;
      CHECK(volume.drop_replica(slab, kEarlier, false, dropped) == 0);
      CHECK(dropped.was_live && dropped.live_left == 1, "slab %u", slab);
    }
    goes_on = stand;
  }
  failing.join();
}

void looked_at_while_they_fail() {
  struct sigaction standing {};
  standing.sa_handler = stand_still;
  CHECK(sigaction(SIGUSR2, &standing, nullptr) == 0);
  for (int i = effort(20); i > 0; i--) look_while_they_fail();
}

// A server that a process never reached is dropped without asking which are left.
void absent() {
  OneSlab with;
  CHECK(with.slabs.drop_replica(0, 0, false, with.dropped) == EBUSY);
  CHECK(with.slabs.drop_replica(0, 0, true, with.dropped) == 0);
  CHECK(with.dropped.was_live && with.dropped.live_left == 0);
}

STRESS(engine_counting) {
  side_by_side({
      {"given up under a WRITE", given_up_under_a_write},
      {"written while leaving", written_while_leaving},
      {"a failure makes it stay", failure_makes_it_stay},
      {"both of a move fail", [] { old_place_failed_too(false); }},
      {"both of a move fail, one is dropped", [] { old_place_failed_too(true); }},
      {"retired and failed", retired_and_failed},
      {"made live under a WRITE", made_live_under_a_write},
      {"dropped under a WRITE", dropped_under_a_write},
      {"the last ones", last_ones},
      {"outlived", outlived},
      {"looked at while they fail", looked_at_while_they_fail},
      {"absent", absent},
  });
  return 0;
}

}  // namespace engine_counting_stress
