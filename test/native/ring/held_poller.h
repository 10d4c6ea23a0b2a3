// A poller on a held device, and its consumer.
#pragma once

#include <algorithm>

#include "held_device.h"

namespace ring_test {

constexpr uint64_t kPeerAddress = 4096;  // of the peer's ring
constexpr uint32_t kSendDepth = 16;

// A poller with one place for a connection, so that the next one gets the same place, and its consumer.
class Poller {
 public:
  Poller(Device& device, ring::Mode mode, uint64_t spin_ns = ring::PollerOptions{}.spin_ns)
      : device_(device),
        poller_(device.queue(), device.channel(), options(mode, spin_ns), [this] { rung_.store(true); }) {
    CHECK(poller_.start() == 0);
  }
  ring::Poller* operator->() { return &poller_; }

  uint32_t connect(ring::Version version = ring::Version::three, bool immediate = true) {
    uint32_t number = 0;
    ring::ConnectionOptions options;
    options.qp = device_.queue_pair();
    options.ring = device_.region();
    options.version = version;
    options.windows.log2_capacity = kLog2Capacity;
    options.receive_depth = kDepth;
    options.send.depth = kSendDepth;
    CHECK(poller_.attach(options, number) == 0);
    const ring::PeerRing peer{kPeerAddress, kKey, {kLog2Capacity}, kDepth, immediate};
    CHECK(poller_.establish(number, device_.region(), peer) == 0);
    return number;
  }
  // Mode `caller`: a connection of which nothing is under way, and nothing that it posted is left.
  uint32_t connect_at_rest() {
    const uint32_t number = connect();
    turns();
    device_.sent();
    return number;
  }
  // Everything that is on the event ring, of one type after the other.
  std::vector<ring::Descriptor> take() {
    ring::EventRing& events = poller_.event_ring();
    const uint32_t head = events.word(ring::EventRing::kHead).load();
    std::vector<ring::Descriptor> taken;
    for (; tail_ != head; ++tail_) taken.push_back(*events.at(tail_));
    events.word(ring::EventRing::kTail).store(tail_);
    return taken;
  }
  // Mode `caller`: what some turns, with nothing else going on, put on the event ring.
  std::vector<ring::Descriptor> turns() {
    std::vector<ring::Descriptor> all;
    for (int i = 0; i < 4; ++i) {
      poller_.turn();
      for (const ring::Descriptor& each : take()) all.push_back(each);
    }
    return all;
  }
  bool rung() const { return rung_.load(); }

 private:
  static ring::PollerOptions options(ring::Mode mode, uint64_t spin_ns) {
    ring::PollerOptions options;
    options.mode = mode;
    options.spin_ns = spin_ns;
    options.max_connections = 1;
    options.descriptor_count = 64;
    return options;
  }
  Device& device_;
  std::atomic<bool> rung_{false};
  uint32_t tail_ = 0;
  ring::Poller poller_;
};

template <typename Type>
inline bool has(const std::vector<ring::Descriptor>& all, Type type) {
  return std::any_of(all.begin(), all.end(),
                     [&](const ring::Descriptor& each) { return each.type == static_cast<uint32_t>(type); });
}

}  // namespace ring_test
