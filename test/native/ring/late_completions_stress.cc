// Completions that come at the worst moment, from a device on which the test decides when: just before the
// queue is armed, after their connection is gone, long after everything else of it.
#include <arpa/inet.h>
#include <sched.h>
#include <sys/resource.h>

#include "held_poller.h"

namespace ring_late_completions_stress {

using namespace ring_test;

// A frame that arrives when the last look at the queue is over and it is not armed yet raises no event.
void just_before_arming() {
  Device device;
  std::atomic<bool> connected{false};
  device.before_arming = [&] {
    fixture::await([&] { return connected.load(); });
    device.arrive(0);
  };
  Poller poller(device, ring::Mode::event);
  poller.connect();
  connected = true;
  fixture::await([&] { return poller.rung(); });
  CHECK(has(poller.take(), ring::FrameType::data));
  poller->stop();
}

// The peer's notifications are used up when it has sent as many small messages as it may. So half of them
// give credit, however few bytes they were, and whether these have been released or not.
void small_messages() {
  Device device;
  Poller poller(device, ring::Mode::caller);
  poller.connect_at_rest();
  for (uint32_t unit = 0; unit < kDepth; ++unit) device.arrive(unit);
  CHECK(poller.turns().size() == kDepth);
  const std::vector<ibv_send_wr> sent = device.sent();
  CHECK(sent.size() == 1, "%zu requests", sent.size());
  CHECK(ntohl(sent[0].imm_data) == ring::encode_credit(0, kDepth));
}

// A message that finds no place is posted later, of which the sender is told: when the peer has let it notify
// again, and when the send queue has a place. There is room in the ring all the time, so nothing else tells.
void full_of_small_messages() {
  Device device;
  Poller poller(device, ring::Mode::caller);
  const uint32_t number = poller.connect_at_rest();
  std::vector<ibv_send_wr> sent;
  const auto post_until_full = [&] {
    for (ring::SendResult result = ring::SendResult::done; result == ring::SendResult::done;) {
      CHECK(poller->send(number, ring::FrameType::data, 0, 0, nullptr, 0) == ring::SendResult::done);
      result = poller->flush(number);
      CHECK(result == ring::SendResult::done || result == ring::SendResult::full);
    }
    for (const ibv_send_wr& each : device.sent()) sent.push_back(each);
    CHECK(!has(poller.turns(), ring::Event::writable));
  };
  post_until_full();
  CHECK(sent.size() == kDepth, "%zu requests", sent.size());
  device.notify(ring::encode_credit(0, kDepth));
  CHECK(has(poller.turns(), ring::Event::writable));

  post_until_full();
  CHECK(sent.size() > kDepth && sent.size() < 2 * kDepth, "%zu requests", sent.size());
  const auto signaled = std::find_if(sent.rbegin(), sent.rend(), [](const ibv_send_wr& each) {
    return (each.send_flags & IBV_SEND_SIGNALED) != 0;
  });
  CHECK(signaled != sent.rend());
  device.complete(signaled->wr_id);
  CHECK(has(poller.turns(), ring::Event::writable));
  CHECK(poller->flush(number) == ring::SendResult::done && device.sent().size() == 1);
}

// A completion of the connection before says nothing of the one that has its place now.
void of_the_one_before() {
  Device device;
  Poller poller(device, ring::Mode::caller);
  const auto send = [&](uint32_t number) {
    CHECK(poller->send(number, ring::FrameType::data, 0, 0, nullptr, 0) == ring::SendResult::done);
    CHECK(poller->flush(number) == ring::SendResult::done);
    const std::vector<ibv_send_wr> sent = device.sent();
    CHECK(sent.size() == 1);
    return sent[0].wr_id;
  };
  const uint32_t first = poller.connect();
  poller.turns();
  const uint64_t late = send(first);
  poller->detach(first);
  CHECK(has(poller.turns(), ring::Event::detached));
  poller->release(first);

  const uint32_t second = poller.connect();
  CHECK(ring::slot_of(first) == ring::slot_of(second) && first != second);
  poller.turns();
  const uint64_t own = send(second);
  device.complete(late);
  poller.turns();
  CHECK(!poller->drained(second));
  device.complete(own);
  poller.turns();
  CHECK(poller->drained(second));
}

// A READ that comes later than everything else of its connection: the memory that it fills is held until
// then, and the connection too. After Poller::kLeaveNs, 200 ms, it is given up; a run that took so long
// proves nothing, and is done again.
bool last_of_all() {
  Device device;
  Poller poller(device, ring::Mode::caller);
  const uint32_t number = poller.connect_at_rest();
  const int users = device.region_users();
  CHECK(poller->read(number, device.region(), 0, 4096, kKey, 64, 7) == ring::SendResult::done);
  CHECK(device.region_users() == users + 1);
  const std::vector<ibv_send_wr> sent = device.sent();
  CHECK(sent.size() == 1 && sent[0].opcode == IBV_WR_RDMA_READ);
  const auto begin = fixture::Clock::now();
  poller->detach(number);
  const std::vector<ring::Descriptor> before = poller.turns();
  const bool in_time = fixture::Clock::now() - begin < std::chrono::milliseconds(150);
  if (in_time) {
    CHECK(!has(before, ring::Event::detached));
    CHECK(device.region_users() == users + 1);
  }
  device.complete(sent[0].wr_id, IBV_WC_WR_FLUSH_ERR);
  const std::vector<ring::Descriptor> after = poller.turns();
  if (in_time) {
    CHECK(after.size() == 2);
    CHECK(after[0].type == static_cast<uint32_t>(ring::Event::read) && after[0].correlation == 7);
    CHECK(after[1].type == static_cast<uint32_t>(ring::Event::detached));
    CHECK(device.region_users() == users);
  }
  return in_time;
}

// A credit that a device refuses and has all the same completes after that.
void refused_credit() {
  Device device;
  Poller poller(device, ring::Mode::caller);
  poller.connect_at_rest();
  device.refuses = true;
  for (uint32_t unit = 0; unit < kDepth; ++unit) device.arrive(unit);
  CHECK(has(poller.turns(), ring::Event::broken));
  const std::vector<ibv_send_wr> sent = device.sent();
  CHECK(sent.size() == 1, "%zu requests", sent.size());
  device.complete(sent[0].wr_id, IBV_WC_WR_FLUSH_ERR);
  poller.turns();
}

// A READ likewise, and its memory is held until then.
void refused_read() {
  Device device;
  Poller poller(device, ring::Mode::caller);
  const uint32_t number = poller.connect_at_rest();
  const int users = device.region_users();
  device.refuses = true;
  CHECK(poller->read(number, device.region(), 0, 4096, kKey, 64, 7) == ring::SendResult::failed);
  const std::vector<ibv_send_wr> sent = device.sent();
  CHECK(sent.size() == 1 && device.region_users() == users + 1);
  device.complete(sent[0].wr_id, IBV_WC_WR_FLUSH_ERR);
  CHECK(has(poller.turns(), ring::Event::broken) && device.region_users() == users);
}

// A device that goes away: connections break, later ones too, and the thread neither sleeps through it nor
// wakes up endlessly.
void cannot_be_armed() {
  Device device;
  device.arm_error = ENODEV;
  Poller poller(device, ring::Mode::event);
  poller.connect();
  fixture::await([&] { return poller.rung(); });
  CHECK(has(poller.take(), ring::Event::broken));
  poller->stop();
}

void cannot_be_read() {
  Device device;
  Poller poller(device, ring::Mode::event);
  poller.connect();
  device.event_error = EIO;
  device.make_readable();
  fixture::await([&] { return poller.rung(); });
  CHECK(has(poller.take(), ring::Event::broken));
  poller->stop();
  CHECK(device.looks == 1);
}

double counter(Poller& poller, const char* name) {
  double counted[std::size(ring::kPollerCounters)];
  poller->counters(counted);
  for (size_t at = 0; at < std::size(counted); ++at)
    if (std::strcmp(ring::kPollerCounters[at], name) == 0) return counted[at];
  CHECK(false, "no counter %s", name);
}

// The event ends the guardian's sleep only if it is still there when the guardian looks at the channel. The
// application takes it at once, and computes; what completes behind it raises no other.
void taken_before_the_guardian_looks() {
  Device device;
  Poller poller(device, ring::Mode::guarded);
  poller.connect();
  double sleeps = 0;
  const auto fell_asleep = [&] {
    fixture::await([&] { return counter(poller, "sleeps") > sleeps; });
    sleeps = counter(poller, "sleeps");
  };
  const auto take_an_event = [&] {
    device.make_readable();
    poller->look_at_events();
  };
  for (uint32_t unit = 0; unit < 20; ++unit) {
    fell_asleep();  // it has taken over
    if (unit % 2 == 1) {
      take_an_event();
      poller->look_before_sleep();
      fell_asleep();  // it rests
    }
    take_an_event();
    device.arrive(unit);
    fixture::await([&] { return has(poller.take(), ring::FrameType::data); });
  }
  poller->stop();
}

// Looks of the guardian while the application is kept in one of its own say nothing of the queue that it
// leaves.
void kept_in_a_look() {
  Device device;
  Poller poller(device, ring::Mode::guarded);
  poller.connect();
  fixture::await([&] { return counter(poller, "sleeps") > 0; });
  const std::thread::id application = std::this_thread::get_id();
  device.before_polling = [&] {
    // For longer than the guardian watches where nothing happens.
    if (std::this_thread::get_id() == application)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  };
  device.make_readable();
  poller->look_at_events();
  device.arrive(0);
  fixture::await([&] { return has(poller.take(), ring::FrameType::data); });
  poller->stop();
}

long preemptions() {
  rusage used;
  CHECK(getrusage(RUSAGE_THREAD, &used) == 0);
  return used.ru_nivcsw;
}

// Without a sleep, which would be no preemption.
void compute_until_preempted() {
  const auto deadline = std::chrono::steady_clock::now() + fixture::kHang;
  for (const long before = preemptions(); preemptions() == before;)
    CHECK(std::chrono::steady_clock::now() < deadline, "never preempted");
}

// While one lives, this thread shares its core with another that never sleeps.
class SharedCore {
 public:
  SharedCore() {
    CHECK(sched_getaffinity(0, sizeof before_, &before_) == 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    // It inherits the core.
    spinner_ = std::thread([this] {
      while (!over_.load(std::memory_order_relaxed)) {
      }
    });
  }
  ~SharedCore() {
    over_ = true;
    spinner_.join();
    sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  cpu_set_t before_;
  std::atomic<bool> over_{false};
  std::thread spinner_;
};

// Requests leave in a hurry where the peer works at the same time: what it sends comes before the application
// sleeps. Where it never does, hurry is tried less and less.
void hurries() {
  Device device;
  Poller poller(device, ring::Mode::caller);
  poller.connect();
  const auto hurry = poller->event_ring().word(ring::EventRing::kHurry);
  uint32_t unit = 0;
  // Something comes, and `more` while the application works on it, which then sleeps. `preempted`: it loses
  // its core while it works.
  const auto turn = [&](bool more, bool preempted = false) {
    for (const ibv_send_wr& credit : device.sent()) device.complete(credit.wr_id);
    device.arrive(unit++);
    poller->look_at_events();
    CHECK(has(poller.take(), ring::FrameType::data));
    if (more) device.arrive(unit++);
    if (preempted) compute_until_preempted();
    bool found = false;
    for (int looks = 0; poller->look_before_sleep().again; ++looks) {
      CHECK(looks < 4, "it may not sleep");
      found = has(poller.take(), ring::FrameType::data) || found;
    }
    CHECK(found == more, "%s was found", found ? "more" : "nothing");
  };
  CHECK(hurry.load() == 0, "hurry at the beginning");
  std::string tried;
  for (int turns = 0; turns < 30; ++turns) {
    turn(false);
    tried += hurry.load() == 0 ? '-' : '+';
  }
  // After eight in vain one is left out, then three, then seven.
  CHECK(tried == "++++++++-+---+-------+--------", "tried %s", tried.c_str());
  while (hurry.load() == 0) turn(false);
  // This thread may be preempted, and then it is not known who sent.
  for (int known = 0, turns = 0; known < 5; ++turns) {
    CHECK(turns < 50, "no hurry, though more came in each turn");
    turn(true);
    known = hurry.load() != 0 ? known + 1 : 0;
  }
  // One that has only this core has sent in the place of this thread.
  const SharedCore shared;
  for (int turns = 0; hurry.load() != 0; ++turns) {
    CHECK(turns < 20, "hurry, though the peer has no core of its own");
    turn(true, true);
  }
}

// A peer's batch may be longer than what is described in one step: its rest is not what the peer has sent
// since.
void hurries_not_for_a_rest() {
  Device device;
  Poller poller(device, ring::Mode::caller);
  const uint32_t connection = poller.connect();
  ring::EventRing& events = poller->event_ring();
  uint32_t unit = 0;
  bool given_up = false;
  for (int turns = 0; turns < 20; ++turns) {
    constexpr uint32_t kBatch = 100;
    for (const ibv_send_wr& credit : device.sent()) device.complete(credit.wr_id);
    device.arrive(unit, kBatch);
    unit += kBatch;
    poller->look_at_events();
    uint32_t taken = static_cast<uint32_t>(poller.take().size());
    CHECK(taken > 0 && taken < kBatch, "%u described at once", taken);
    for (int looks = 0; poller->look_before_sleep().again; ++looks) {
      CHECK(looks < 8, "it may not sleep");
      taken += static_cast<uint32_t>(poller.take().size());
    }
    CHECK(taken == kBatch);
    events.slot_word(0, ring::EventRing::kReleased).store(unit);
    poller->return_credit(connection);
    given_up |= events.word(ring::EventRing::kHurry).load() == 0;
  }
  CHECK(given_up, "in a hurry, though the peer sends nothing meanwhile");
}

STRESS(ring_late_completions) {
  fixture::timed("hurries", hurries);
  fixture::timed("hurries not for a rest", hurries_not_for_a_rest);
  fixture::timed("kept in a look", kept_in_a_look);
  fixture::timed("taken before the guardian looks", taken_before_the_guardian_looks);
  fixture::timed("cannot be armed", cannot_be_armed);
  fixture::timed("cannot be read", cannot_be_read);
  fixture::timed("just before arming", just_before_arming);
  fixture::timed("small messages", small_messages);
  fixture::timed("full of small messages", full_of_small_messages);
  fixture::timed("of the one before", of_the_one_before);
  fixture::timed("last of all", [] { fixture::await(last_of_all); });
  fixture::timed("refused credit", refused_credit);
  fixture::timed("refused READ", refused_read);
  return 0;
}

}  // namespace ring_late_completions_stress
