// One end of a ring connection for a native benchmark: the verbs objects, the poller, and a walk over its
// event ring, as JavaScript has them.
#pragma once

#include <sched.h>

#include <semaphore>

// Another checkout (--against) may have it in its old place.
#if __has_include("ring/polling/poller.h")
#include "ring/polling/poller.h"
#else
#include "ring/poller.h"
#endif
#include "verbs-endpoint.h"

namespace bench {

namespace ring = rdmakit::ring;

// The parameters that the two ends exchange when they connect, and the connecting end's request.
struct RingPlan {
  uint64_t address;
  uint32_t key, log2_capacity, receive_depth, write_with_immediate;
  uint32_t test, size, warmup, iterations, mode;
};

inline constexpr ring::FrameFormat kFormat{ring::Version::three};

struct RingShape {
  ring::Mode mode = ring::Mode::caller;
  uint32_t log2_capacity = 20;
  uint32_t receive_depth = 128;
  uint32_t inline_data = 256;
  bool immediate = true;
  ring::SenderOptions send;
};

// A verbs object that outlives the poller, so that its users need not be counted.
struct Borrowed : rdmakit::Handle {
  Borrowed(rdmakit::HandleKind kind, void* object, rdmakit::Provider& provider, uint32_t inline_data = 0)
      : Handle{rdmakit::kHandleAbi, kind,           object,        provider.data_path_verbs(), 0,
               inline_data,         [](Handle*) {}, [](Handle*) {}} {}
};

class RingEnd {
 public:
  RingEnd(rdmakit::Provider& provider, Id id, const RingShape& shape)
      : shape_(shape),
        queue_(provider, id->context(), static_cast<int>(entries(shape)), rdmakit::Progress::manual, true),
        capabilities_(provider.capabilities(id->context())),
        endpoint_(queue_, std::move(id), std::max(shape.send.depth, shape.receive_depth) + kReserved,
                  shape.inline_data),
        ring_(queue_,
              (size_t{1} << shape.log2_capacity) + ring::Receiver::ring_words(shape.receive_depth) * 8),
        cq_(rdmakit::HandleKind::completion_queue, queue_.cq, provider),
        channel_(rdmakit::HandleKind::completion_channel, queue_.channel, provider),
        qp_(rdmakit::HandleKind::queue_pair, endpoint_.qp, provider, endpoint_.inline_data),
        ring_handle_(rdmakit::HandleKind::memory_region, ring_.mr, provider),
        poller_(rdmakit::CqRef(&cq_), rdmakit::ChannelRef(&channel_), options(shape),
                [this] { bell_.release(); }) {
    must(poller_.start(), "poller");
    ring::ConnectionOptions connection;
    connection.qp = rdmakit::QpRef(&qp_);
    connection.ring = rdmakit::MrRef(&ring_handle_);
    connection.windows.log2_capacity = shape.log2_capacity;
    connection.receive_depth = shape.receive_depth;
    connection.send = shape.send;
    must(poller_.attach(connection, number_), "attach");
  }
  ~RingEnd() { poller_.stop(); }

  // The parameters of this end for the peer.
  RingPlan describe() const {
    RingPlan plan{};
    plan.address = reinterpret_cast<uint64_t>(ring_.data);
    plan.key = ring_.mr->rkey;
    plan.log2_capacity = shape_.log2_capacity;
    plan.receive_depth = shape_.receive_depth;
    plan.write_with_immediate =
        shape_.immediate && (capabilities_ & rdmakit::kCapabilityWriteWithImmediate) != 0;
    return plan;
  }
  void establish(const RingPlan& peer) {
    staging_ =
        std::make_unique<Memory>(queue_, (size_t{1} << peer.log2_capacity) + size_t{shape_.send.depth} * 8);
    staging_handle_ =
        std::make_unique<Borrowed>(rdmakit::HandleKind::memory_region, staging_->mr, queue_.provider);
    const ring::PeerRing ring{peer.address,
                              peer.key,
                              {peer.log2_capacity},
                              peer.receive_depth,
                              peer.write_with_immediate != 0 && describe().write_with_immediate != 0};
    must(poller_.establish(number_, rdmakit::MrRef(staging_handle_.get()), ring), "establish");
  }
  Endpoint& endpoint() { return endpoint_; }

  // ---- Hot path begins: no allocation, no system call of ours but the sleep of a mode that sleeps ----

  // False: there is no room now.
  bool send(ring::FrameType type, const void* data, uint32_t length) {
    const ring::SendResult result = poller_.send(number_, type, 0, 0, data, length);
    if (result != ring::SendResult::done && result != ring::SendResult::full)
      fail("the ring takes no message");
    return result == ring::SendResult::done;
  }
  void flush() { poller_.flush(number_); }

  // Takes what has arrived: the messages, whose bytes are gone when this returns.
  uint32_t take() {
    ring::EventRing& events = poller_.event_ring();
    const uint32_t head = poller_.turned_by_application()
                              ? poller_.turn()
                              : events.word(ring::EventRing::kHead).load(std::memory_order_acquire);
    if (head == tail_) return 0;
    uint32_t messages = 0;
    uint32_t released = events.slot_word(slot(), ring::EventRing::kReleased).load(std::memory_order_relaxed);
    for (; tail_ != head; ++tail_) {
      const ring::Descriptor& descriptor = *events.at(tail_);
      switch (descriptor.type) {
        case static_cast<uint32_t>(ring::FrameType::data):
          ++messages;
          break;
        case static_cast<uint32_t>(ring::FrameType::close):
          closed_ = true;
          break;
        case static_cast<uint32_t>(ring::Event::broken):
          if (!closed_) fail("the connection broke, status " + std::to_string(descriptor.length));
          continue;
        case static_cast<uint32_t>(ring::Event::writable):
          flush();
          continue;
      }
      released = descriptor.end;
    }
    // A thread that turns the poller itself needs no ordering.
    events.word(ring::EventRing::kTail)
        .store(tail_,
               poller_.turned_by_application() ? std::memory_order_relaxed : std::memory_order_seq_cst);
    if (events.word(ring::EventRing::kFull).load(std::memory_order_seq_cst) != 0) poller_.wake();
    events.slot_word(slot(), ring::EventRing::kReleased).store(released, std::memory_order_release);
    const uint32_t reported =
        events.slot_word(slot(), ring::EventRing::kReported).load(std::memory_order_relaxed);
    if (released - reported >= 1u << (shape_.log2_capacity - kFormat.unit_log2() - 1))
      poller_.return_credit(number_);
    return messages;
  }

  // Until something is there to take, or the mode is one that polls.
  void wait() {
    if (poller_.turned_by_application()) return;
    if (shape_.mode == ring::Mode::poll) {
      sched_yield();
      return;
    }
    ring::EventRing& events = poller_.event_ring();
    events.word(ring::EventRing::kIdle).store(1, std::memory_order_seq_cst);
    if (events.word(ring::EventRing::kHead).load(std::memory_order_seq_cst) != tail_ &&
        events.word(ring::EventRing::kIdle).exchange(0, std::memory_order_seq_cst) != 0)
      return;
    bell_.acquire();
  }

  // ---- Hot path ends ----

  bool closed() const { return closed_; }

 private:
  static constexpr uint32_t kReserved = ring::kReceivesForControl;
  static uint32_t entries(const RingShape& shape) {
    return shape.send.depth + shape.receive_depth + 2 * kReserved;
  }
  static ring::PollerOptions options(const RingShape& shape) {
    ring::PollerOptions options;
    options.mode = shape.mode;
    options.max_connections = 64;
    return options;
  }
  uint32_t slot() const { return ring::slot_of(number_); }

  const RingShape shape_;
  Queue queue_;
  const uint32_t capabilities_;
  Endpoint endpoint_;
  Memory ring_;
  std::unique_ptr<Memory> staging_;
  Borrowed cq_, channel_, qp_, ring_handle_;
  std::unique_ptr<Borrowed> staging_handle_;
  std::counting_semaphore<> bell_{0};
  uint32_t number_ = 0;
  uint32_t tail_ = 0;
  bool closed_ = false;
  ring::Poller poller_;
};

}  // namespace bench
