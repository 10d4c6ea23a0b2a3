// Invariants of the ring: a process that violates one ends, with file, line and state.
#include "../death.h"
#include "held_device.h"

namespace ring_invariant_stress {

using namespace ring_test;
using fixture::dies;

constexpr ring::PeerRing kPeer{4096, kKey, {kLog2Capacity}, kDepth, true};

struct Incoming {
  Incoming() { CHECK(receiver.start() == 0); }
  Device device;
  ring::Receiver receiver{
      device.queue_pair(), ring::Version::three, device.region(), 0, 1, {kLog2Capacity}, kDepth};
};

void receiver() {
  Incoming with;
  const uint32_t receives = with.receiver.outstanding();
  const ibv_wc completion{};
  uint32_t word;
  dies([&] { with.receiver.take(completion, receives, word); }, "receive 21 of 21, 21 are posted");
  dies(
      [&] {
        for (uint32_t i = 0; i <= receives; ++i) with.receiver.flushed();
      },
      "has no receive posted");
  dies(
      [&] {
        with.receiver.flushed();
        with.receiver.take(completion, 0, word);
        with.receiver.repost();
      },
      "19 receives are posted, 1 are taken, of 21");
  ring::Descriptor descriptor;
  dies([&] { with.receiver.next(descriptor); }, "unit 0, and as many are published");
  dies([&] { with.receiver.answer(1, kPeer); }, "0 units are credited, 1 released, 0 read");
  dies([&] { with.receiver.control_completed(ring::Control::credit); }, "control 0, 0 credits");
  dies([&] { with.receiver.control_completed(ring::Control::pong); }, "control 1, 0 credits");
}

void sender() {
  Device device;
  ring::Sender sender(device.queue_pair(), ring::Version::three, 0, 1, {.depth = 16});
  sender.establish(device.region(), kPeer);
  dies([&] { sender.complete({ring::Work::data, 0, 1, 1, 1}); }, "1 units completed");
  CHECK(sender.drained());
  CHECK(sender.queue(ring::FrameType::data, 0, 0, nullptr, 0) == ring::SendResult::done);
  sender.signal();
  CHECK(sender.flush() == ring::SendResult::done && !sender.drained());
  dies(
      [&] {
        sender.complete({ring::Work::data, 0, 1, 0, 1});
        sender.drained();
      },
      "0 requests completed, of 1");
  sender.complete(ring::WorkId::decode(device.sent().at(0).wr_id));
  CHECK(sender.drained());
}

void event_ring() {
  ring::EventRing events(1, 4);
  for (int i = 0; i < 4; ++i) {
    CHECK(events.claim() != nullptr);
    events.push();
  }
  dies([&] { events.push(); }, "descriptor 4, 0 are taken, of 4 places");
  CHECK(events.claim() == nullptr);
  events.word(ring::EventRing::kTail).store(5);
  dies([&] { events.claim(); }, "4 were pushed, 5 are taken, of 4 places");
  events.word(ring::EventRing::kTail).store(4);
  CHECK(events.claim() != nullptr);
}

STRESS(ring_invariant) {
  fixture::timed("receiver", receiver);
  fixture::timed("sender", sender);
  fixture::timed("event ring", event_ring);
  return 0;
}

}  // namespace ring_invariant_stress
