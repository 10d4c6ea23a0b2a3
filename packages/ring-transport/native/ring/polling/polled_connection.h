// One connection as its poller sees it.
#pragma once

#include <atomic>
#include <cstdint>

#include "rdmakit/handle.h"
#include "ring/receiving/reader.h"
#include "ring/receiving/receiver.h"
#include "ring/sending/sender.h"

namespace rdmakit::ring {

struct PolledConnection {
  PolledConnection(const QpRef& qp_ref, const MrRef& ring, uint32_t slot_index, uint32_t generation_count,
                   Version version_of_frames, const Windows& windows, uint32_t receive_depth,
                   const SenderOptions& send)
      : slot(slot_index),
        generation(generation_count),
        version(version_of_frames),
        qp(qp_ref),
        sender(qp_ref, version_of_frames, slot_index, generation_count, send),
        receiver(qp_ref, version_of_frames, ring, slot_index, generation_count, windows, receive_depth),
        reader(qp_ref, slot_index, generation_count) {}

  uint32_t number() const { return connection_number(slot, generation); }

  // --- hot path, by the poller ---
  // Takes a credit; the last in a batch includes the others, and one without an increase is a pong.
  Violation take_credit(uint32_t word) {
    receiver.counters.credits.add(1);
    has_control = true;
    if (word != credit_word) {
      credit_word = word;
      has_credit = true;
      return Violation::none;
    }
    if (has_pong) return Violation::credit;  // there is never more than one ping to answer
    has_pong = true;
    return Violation::none;
  }
  // Makes use of what take_credit took.
  Violation settle_control() {
    Violation violation = Violation::none;
    if (has_credit) violation = sender.credit(credit_word);
    if (has_pong && violation == Violation::none) violation = sender.pong();
    has_control = has_credit = has_pong = false;
    return violation;
  }
  void control_completed(const WorkId& id) {
    const auto control = static_cast<Control>(id.low);
    control == Control::ping ? sender.ping_completed() : receiver.control_completed(control);
  }

  const uint32_t slot;
  const uint32_t generation;
  const Version version;
  const QpRef qp;
  Sender sender;
  Receiver receiver;
  Reader reader;

  // Set by the application's thread: its requests to the poller, and that `sender` is established.
  static constexpr uint32_t kPendingCredit = 1;
  static constexpr uint32_t kPendingDetach = 2;
  std::atomic<uint32_t> pending{0};
  std::atomic<bool> established{false};

  // The rest is the poller's.
  bool touched = false;      // in this batch of completions
  bool in_backlog = false;   // something is to be told
  bool has_control = false;  // what a receive brought depends on its being posted again
  bool has_credit = false;
  bool has_pong = false;
  uint32_t credit_word = kCreditBit;  // the last one; a pong is the same again
  bool broken = false;                // nothing more is posted
  bool violated = false;              // nothing more is read
  bool leaving = false;               // it was asked to go
  bool left = false;                  // all its completions have been seen
  uint32_t tell_granted = 0;          // Sender::kGrant…
  bool tell_broken = false;
  uint32_t broken_kind = 0;
  uint32_t broken_detail = 0;
  uint64_t leave_deadline = 0;
  PolledConnection* next_touched = nullptr;
  PolledConnection* next_backlog = nullptr;
  PolledConnection* next_leaving = nullptr;
};

// First in, first out, without memory of its own.
template <PolledConnection* PolledConnection::*Next>
class ConnectionList {
 public:
  bool empty() const { return first_ == nullptr; }
  void add(PolledConnection* connection) {
    connection->*Next = nullptr;
    *(first_ == nullptr ? &first_ : &(last_->*Next)) = connection;
    last_ = connection;
  }
  PolledConnection* take() {
    PolledConnection* connection = first_;
    if (connection != nullptr) first_ = connection->*Next;
    return connection;
  }
  PolledConnection* last() const { return first_ == nullptr ? nullptr : last_; }

 private:
  PolledConnection* first_ = nullptr;
  PolledConnection* last_ = nullptr;
};

}  // namespace rdmakit::ring
