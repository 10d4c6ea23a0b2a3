// The event ring between a poller and its consumer, without the rest: neither waits for ever, however small
// the event ring is and whichever is slow.
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

#include "../stress.h"
#include "base/unique_fd.h"
#include "ring/event_ring.h"

namespace ring_event_ring_stress {

using rdmakit::UniqueFd;
using rdmakit::ring::Descriptor;
using rdmakit::ring::EventRing;

// What wakes one thread, as the doorbell does the consumer and Poller::wake the poller.
class Bell {
 public:
  void ring() {
    const uint64_t one = 1;
    CHECK(write(event_.get(), &one, sizeof one) == sizeof one);
  }
  void wait(const char* who) {
    pollfd bell{event_.get(), POLLIN, 0};
    CHECK(poll(&bell, 1, fixture::kHangMs) == 1, "%s is not woken", who);
    uint64_t ignored;
    CHECK(read(event_.get(), &ignored, sizeof ignored) == sizeof ignored);
  }

 private:
  UniqueFd event_{eventfd(0, EFD_CLOEXEC)};
};

// `count` descriptors, once and in order. A side that can do nothing sleeps until the other one rings for it.
void exchange(uint32_t places, uint32_t count) {
  EventRing events(1, places);
  Bell consumer, poller;
  std::thread producer([&] {
    for (uint32_t made = 0; made < count; ++made) {
      Descriptor* descriptor;
      while ((descriptor = events.claim()) == nullptr) {
        if (events.publish()) consumer.ring();
        poller.wait("the poller");
      }
      *descriptor = {0, 0, 0, 0, made, 0, 0, 0};
      events.push();
      // Now and then some go together.
      if (made % 3 == 0 && events.publish()) consumer.ring();
    }
    if (events.publish()) consumer.ring();
  });
  uint32_t tail = 0;
  while (tail < count) {
    const uint32_t head = events.word(EventRing::kHead).load(std::memory_order_seq_cst);
    if (head == tail) {
      // As src/polling/poller.ts does: says that it sleeps, and looks once more.
      events.word(EventRing::kIdle).store(1, std::memory_order_seq_cst);
      if (events.word(EventRing::kHead).load(std::memory_order_seq_cst) != tail) {
        if (events.word(EventRing::kIdle).exchange(0, std::memory_order_seq_cst) != 0) continue;
      }
      consumer.wait("the consumer");
      continue;
    }
    for (; tail != head; ++tail) CHECK(events.at(tail)->correlation == tail);
    events.word(EventRing::kTail).store(tail, std::memory_order_seq_cst);
    if (events.word(EventRing::kFull).load(std::memory_order_seq_cst) != 0) poller.ring();
  }
  producer.join();
}

// Keeps the caller on the nth of the processors that it may use. On the same one two threads never do
// anything at the same moment.
void stay_on(int nth) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all) && nth-- == 0) CPU_SET(cpu, &one);
  }
  sched_setaffinity(0, sizeof one, &one);  // of no processor: it stays where it was
}

// Two threads that do one thing each at the same moment, repeatedly, and `between` while neither does.
template <typename First, typename Second>
void at_once(uint32_t rounds, First first, Second second, const std::function<void(uint32_t)>& between) {
  std::atomic<uint32_t> begun{0}, here{0}, done{0};
  const auto meet = [](std::atomic<uint32_t>& other, uint32_t round) {
    // The other thread may have no processor but this one.
    for (uint32_t spins = 0; other.load(std::memory_order_acquire) < round; ++spins) {
      if (spins > 1000) sched_yield();
    }
  };
  // A few instructions more or less each time, so that every interleaving has its turn.
  const auto stagger = [](uint32_t steps) {
    for (uint32_t i = 0; i < steps; ++i) asm volatile("" ::: "memory");
  };
  std::thread other([&] {
    stay_on(1);
    for (uint32_t round = 1; round <= rounds; ++round) {
      meet(begun, round);
      here.store(round, std::memory_order_release);
      // By more, for it begins first: as long as a word takes from one processor to the other.
      stagger((round * 2'654'435'761u >> 16) % (8u << round % 8));
      second(round);
      done.store(round, std::memory_order_release);
    }
  });
  std::thread one([&] {
    stay_on(0);
    for (uint32_t round = 1; round <= rounds; ++round) {
      begun.store(round, std::memory_order_release);
      meet(here, round);
      stagger(round % 64);
      first(round);
      meet(done, round);
      between(round);
    }
  });
  one.join();
  other.join();
}

// The poller finds no place just when the consumer makes one: it sees that, or the consumer sees that it is
// waited for.
void full_or_drained(uint32_t rounds) {
  EventRing events(1, 1);
  CHECK(events.claim() != nullptr);
  events.push();
  events.publish();
  Descriptor* claimed = nullptr;
  bool calls = false;
  at_once(
      rounds, [&](uint32_t) { claimed = events.claim(); },
      [&](uint32_t round) {
        events.word(EventRing::kTail).store(round, std::memory_order_seq_cst);
        calls = events.word(EventRing::kFull).load(std::memory_order_seq_cst) != 0;
      },
      [&](uint32_t round) {
        CHECK(claimed != nullptr || calls, "round %u: nobody goes on", round);
        if (claimed == nullptr) claimed = events.claim();
        CHECK(claimed != nullptr);
        events.push();
        events.publish();
      });
}

// The consumer goes to sleep just when the poller shows something: it sees that, or the doorbell rings.
void asleep_or_shown(uint32_t rounds) {
  EventRing events(1, 1);
  bool rings = false, sees = false;
  CHECK(events.claim() != nullptr);
  events.word(EventRing::kIdle).store(0);
  at_once(
      rounds,
      [&](uint32_t) {
        events.push();
        rings = events.publish();
      },
      [&](uint32_t round) {
        events.word(EventRing::kIdle).store(1, std::memory_order_seq_cst);
        sees = events.word(EventRing::kHead).load(std::memory_order_seq_cst) == round;
      },
      [&](uint32_t round) {
        CHECK(rings || sees, "round %u: nobody wakes the consumer", round);
        events.word(EventRing::kTail).store(round);
        CHECK(events.claim() != nullptr);
        events.word(EventRing::kIdle).store(0);
      });
}

STRESS(ring_event_ring) {
  const auto descriptors = static_cast<uint32_t>(fixture::effort(60'000));
  for (const uint32_t places : {1u, 2u, 16u, 256u}) {
    fixture::timed("exchange", [=] { exchange(places, descriptors); });
  }
  fixture::timed("full, or drained", [=] { full_or_drained(2 * descriptors); });
  fixture::timed("asleep, or shown", [=] { asleep_or_shown(2 * descriptors); });
  return 0;
}

}  // namespace ring_event_ring_stress
