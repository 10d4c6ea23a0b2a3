// A ring transport and its peer. The input is a script of the peer, which writes to the ring where and when
// it likes and notifies of what it likes, of a device that completes what was posted, and of the application
// that sends, receives and gives the ring back. Poller, sender, receiver and reader are the real ones. Each
// frame that is described lies in the ring, behind the one before; after a violation none is; what is posted
// fits the queues and the peer's ring; and in the end all of it comes back and the connection detaches.
#include <algorithm>
#include <array>

#include "ring_fuzz_world.h"

using namespace fuzz;

namespace {

constexpr uint32_t kDescriptors = 16;  // so that the event ring is full now and then

class Script {
 public:
  Script(Input& input, bool immediate, ring::Version version, const ring::Windows& windows)
      : input_(input), immediate_(immediate), format_(version), windows_(windows), device_(windows) {
    ring::PollerOptions options;
    options.mode = ring::Mode::caller;
    options.max_connections = 2;
    options.descriptor_count = kDescriptors;
    poller_ = std::make_unique<ring::Poller>(device_.queue(), device_.channel(), options, [] {});
    CHECK(poller_->start() == 0);
    ring::ConnectionOptions connection;
    connection.qp = device_.queue_pair();
    connection.ring = device_.ring();
    connection.version = version;
    connection.windows = windows;
    connection.receive_depth = kReceiveDepth;
    connection.send.depth = kSendDepth;
    CHECK(poller_->attach(connection, number_) == 0);
  }

  void run() {
    if ((input_.byte() & 1) == 0) establish();
    for (int steps = 0; steps < 256 && !input_.empty(); ++steps) step();
    poller_->detach(number_);
    for (int turns = 0; !detached_; ++turns) {
      CHECK(turns < 64);
      poller_->turn();
      consume(kDescriptors);
    }
    poller_->release(number_);
    CHECK(poller_->send(number_, ring::FrameType::data, 0, 0, nullptr, 0) == ring::SendResult::closed);
  }

 private:
  void step() {
    const uint8_t what = input_.byte();
    switch (what % 16) {
      case 0: {  // any bytes anywhere in the ring
        const uint64_t at = input_.two() % windows_.bytes();
        const auto bytes = input_.take(input_.byte());
        std::copy_n(bytes.begin(), std::min<size_t>(bytes.size(), windows_.bytes() - at),
                    device_.ring_bytes() + at);
        return;
      }
      case 1: {
        const uint32_t length = input_.byte() * 16u % ring::max_payload(ring::kMinLog2Capacity);
        const uint32_t type = input_.byte() % 9 + 1;
        return type < 9 ? frame(length, type, 0) : grow(input_.byte());
      }
      case 2: {
        const uint32_t length = input_.four();
        const uint16_t type = input_.two();
        return frame(length, type, input_.byte());
      }
      case 3:
        return notify(input_.four());
      case 4:
        device_.arrive(input_.two(), false, input_.byte() % 9);
        return;
      case 5:  // all that it was sent, or a part of it
        return credit(static_cast<uint32_t>(format_.grains(device_.heard().units)) - input_.byte() % 8,
                      device_.heard().notifications - input_.byte() % 4);
      case 6:
        return credit(input_.two(), input_.byte());
      case 7:
        return notify(what < 128 ? ring::kPing : last_credit_);
      case 8:
        return device_.complete(IBV_WC_SUCCESS);
      case 9:
        return device_.complete(static_cast<ibv_wc_status>(input_.byte() % (IBV_WC_GENERAL_ERR + 1)));
      case 10:
      case 11:
        poller_->turn();
        return consume(what / 16u);
      case 12:
        return release(what / 16u);
      case 13:
        return send(input_.byte() % 8 + 1, input_.two() % windows_.bytes());
      case 14:
        if (poller_->ping(number_) == ring::SendResult::done) CHECK(established_);
        return;
      default:
        poller_->read(number_, device_.staging(), input_.byte(), input_.four(), 1, input_.two(), 7);
    }
  }

  void establish() {
    const ring::PeerRing peer{kPeerAddress, kPeerKey, windows_, kReceiveDepth, immediate_};
    CHECK(poller_->establish(number_, device_.staging(), peer) == 0);
    established_ = true;
  }

  // --- the peer

  // At the place where a good one would write next, and published as one would: all or `cut` units less.
  void frame(uint32_t length, uint32_t type, uint8_t cut) {
    uint8_t* const at = device_.ring_bytes() + writes_in_.place(next_);
    const auto kind = static_cast<ring::FrameType>(type);
    format_.write(at, {kind, length, next_, cut});
    if ((cut & 0x80) != 0) at[input_.byte() % 16] ^= cut;
    const uint32_t units = std::min(format_.units_of(kind, length), writes_in_.to_end(next_));
    if (units <= cut % 4u) return;
    next_ += units;
    notify(units - cut % 4u);
  }
  // Leaves the window for one that there is, or a wrong one.
  void grow(uint8_t window) {
    format_.write(device_.ring_bytes() + writes_in_.place(next_), {ring::FrameType::grow, 0, 0, window});
    ++next_;
    notify(1);
    if (window < windows_.count) writes_in_ = ring::Window(windows_, window, format_.unit_log2());
  }
  void credit(uint32_t grains, uint32_t notifications) {
    last_credit_ = ring::encode_credit(grains, notifications);
    notify(last_credit_);
  }
  void notify(uint32_t word) { device_.arrive(word, immediate_); }

  // --- the application

  void send(uint32_t type, uint32_t length) {
    static const std::array<uint8_t, kThree.bytes()> payload{};
    const auto result =
        poller_->send(number_, static_cast<ring::FrameType>(type), 1, 2, payload.data(), length);
    if (length > ring::max_payload(windows_.log2_capacity)) CHECK(result != ring::SendResult::done);
    if (result == ring::SendResult::done) CHECK(established_);
    poller_->flush(number_);
  }
  void consume(uint32_t most) {
    ring::EventRing& events = poller_->event_ring();
    const uint32_t head = events.head();
    CHECK(head - tail_ <= kDescriptors);
    for (; tail_ != head && most > 0; ++tail_, --most) take(*events.at(tail_));
    events.word(ring::EventRing::kTail).store(tail_, std::memory_order_seq_cst);
    if (events.word(ring::EventRing::kFull).load(std::memory_order_seq_cst) != 0) poller_->wake();
  }
  void take(const ring::Descriptor& descriptor) {
    CHECK(descriptor.connection == number_ && !detached_);
    if (descriptor.type >= static_cast<uint32_t>(ring::Event::writable)) return event(descriptor);
    CHECK(!violated_ && descriptor.type >= 1 &&
          descriptor.type <= static_cast<uint32_t>(ring::FrameType::grow));
    const auto kind = static_cast<ring::FrameType>(descriptor.type);
    const uint32_t units = format_.units_of(kind, descriptor.length);
    CHECK(descriptor.offset == reads_in_.place(taken_) + format_.header(kind));
    CHECK(units <= last_.capacity / 2 && units <= reads_in_.to_end(taken_));
    if (kind == ring::FrameType::pad) CHECK(units == reads_in_.to_end(taken_));
    taken_ += units;
    CHECK(descriptor.end == taken_ && taken_ - released_ <= reads_in_.capacity);
    if (kind == ring::FrameType::grow) {
      CHECK(descriptor.immediate > reads_in_.index && descriptor.immediate < windows_.count);
      reads_in_ = ring::Window(windows_, descriptor.immediate, format_.unit_log2());
    }
    ends_.push_back(taken_);
  }
  void event(const ring::Descriptor& descriptor) {
    switch (static_cast<ring::Event>(descriptor.type)) {
      case ring::Event::broken:
        CHECK(!broken_ && descriptor.offset <= 1);
        broken_ = true;
        violated_ = descriptor.offset == 1;
        if (violated_) CHECK(descriptor.length <= static_cast<uint32_t>(ring::Violation::grow));
        return;
      case ring::Event::detached:
        detached_ = true;
        return;
      case ring::Event::writable:
        CHECK(established_ && descriptor.offset != 0 && descriptor.offset <= 3);
        return;
      case ring::Event::read:
        CHECK(established_ && descriptor.correlation == 7);
        return;
    }
    CHECK(!"an event that there is");
  }
  // The oldest `count` frames are not needed any more.
  void release(uint32_t count) {
    for (; count > 0 && !ends_.empty(); --count, ends_.pop_front()) released_ = ends_.front();
    ring::EventRing& events = poller_->event_ring();
    const uint32_t slot = ring::slot_of(number_);
    events.slot_word(slot, ring::EventRing::kReleased).store(released_, std::memory_order_release);
    const uint32_t reported =
        events.slot_word(slot, ring::EventRing::kReported).load(std::memory_order_acquire);
    if (released_ - reported >= reads_in_.capacity / 2) poller_->return_credit(number_);
  }

  Input& input_;
  const bool immediate_;
  const ring::FrameFormat format_;
  const ring::Windows windows_;
  const ring::Window last_{windows_, windows_.count - 1, format_.unit_log2()};
  ring::Window writes_in_{windows_, 0, format_.unit_log2()};  // the peer
  ring::Window reads_in_ = writes_in_;                        // the application
  Device device_;
  std::unique_ptr<ring::Poller> poller_;
  uint32_t number_ = 0;
  uint32_t next_ = 0;  // units: of the peer's
  uint32_t last_credit_ = ring::kCreditBit;
  uint32_t tail_ = 0;
  uint32_t taken_ = 0;     // units described
  uint32_t released_ = 0;  // … and given back
  std::deque<uint32_t> ends_;
  bool established_ = false, broken_ = false, violated_ = false, detached_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const uint8_t shape = input.byte();
  constexpr ring::Version kVersions[] = {ring::Version::two, ring::Version::three, ring::Version::four,
                                         ring::Version::four};
  const uint8_t which = shape >> 1 & 3;
  Script(input, (shape & 1) == 0, kVersions[which], which == 3 ? kThree : kOne).run();
  return 0;
}
