#include "ring/polling/poller.h"

#include <unistd.h>

#include "base/clock.h"

namespace rdmakit::ring {

Poller::Poller(CqRef cq, ChannelRef channel, const PollerOptions& options, std::function<void()> doorbell)
    : cq_(std::move(cq)),
      channel_(std::move(channel)),
      verbs_(cq_.handle()->verbs),
      options_(options),
      event_ring_(options.max_connections, options.descriptor_count),
      doorbell_(std::move(doorbell)),
      slots_(options.max_connections),
      pending_slots_((options.max_connections + 63) / 64),
      patience_(options.spin_ns) {}

Poller::~Poller() {
  stop();
  if (wake_fd_ >= 0) close(wake_fd_);
}

// --- hot path ------------------------------------------------------------------------------------
// No allocation, no lock but the guardian's, no system call but the work itself.

// The thread's loop body, and one turn(). False when there was nothing to do.
bool Poller::step() {
  bool worked = poll_completions();
  if (any_pending_.load(std::memory_order_relaxed)) worked |= process_requests();
  if (!leaving_.empty()) worked |= settle_leaving();
  if (!backlog_.empty()) worked |= deliver_backlog();
  counters_.turns.add(1);
  if (!worked) counters_.empty_turns.add(1);
  return worked;
}

uint32_t Poller::turn() {
  const Hold hold(*this);
  pass();
  bool shows = false;
  if (running_) step(shows);
  return event_ring_.head();
}

// The application, or the doorbell, runs between completions and their consequences for the connections: a
// message is described in the step that finds it, and the work that it causes (credit, receives, requests) is
// done in the next, while the answer is on its way. False when there was neither.
bool Poller::poll_completions() {
  ibv_wc completions[kCompletions];
  const int count = ibv_poll_cq(cq_.get(), kCompletions, completions);
  more_completions_ = count == kCompletions;
  const bool settles = !touched_.empty();
  while (PolledConnection* connection = touched_.take()) settle(*connection);
  if (count < 0) [[unlikely]]
    break_all();
  if (count <= 0) return settles;
  counters_.completions.add(static_cast<uint64_t>(count));
  for (int i = 0; i < count; ++i) handle(completions[i]);
  return true;
}

void Poller::handle(const ibv_wc& completion) {
  const WorkId id = WorkId::decode(completion.wr_id);
  if (id.slot >= slots_.size()) return;
  PolledConnection* connection = slots_[id.slot].current.load(std::memory_order_acquire);
  if (connection == nullptr || connection->generation != id.generation) return;
  if (!connection->touched) {
    connection->touched = true;
    touched_.add(connection);
  }
  if (completion.status != IBV_WC_SUCCESS) [[unlikely]] {
    if (id.kind == Work::receive) connection->receiver.flushed();
    if (id.kind == Work::control) connection->control_completed(id);
    if (id.kind == Work::read) connection->reader.complete(id.low, completion.status);
    break_connection(*connection, kKindCompletion, completion.status);
    return;
  }
  switch (id.kind) {
    case Work::data:
      connection->sender.complete(id);
      return;
    case Work::control:
      connection->control_completed(id);
      return;
    case Work::read:
      connection->reader.complete(id.low, completion.status);
      return;
    case Work::receive: {
      uint32_t word = 0;
      Violation violation = connection->receiver.take(completion, id.low, word);
      if (violation == Violation::none) {
        if ((word & kCreditBit) != 0) {
          violation = connection->take_credit(word);
        } else if (word == kPing) {
          violation = connection->receiver.ping();
          connection->has_control = true;
        } else {
          violation = connection->receiver.publish(word);
        }
      }
      if (connection->receiver.has_frame()) to_backlog(*connection);
      if (violation != Violation::none)
        break_connection(*connection, kKindViolation, static_cast<uint32_t>(violation));
      return;
    }
  }
}

// Applies the results of a batch of completions to one connection. Receives are posted again only when
// something depends on it (claim 2 of wire.h), so that this does not delay a message on its way to its
// reader.
void Poller::settle(PolledConnection& connection) {
  connection.touched = false;
  if (connection.has_control) {
    if (!connection.broken && connection.receiver.repost() != 0)
      break_connection(connection, kKindCompletion, IBV_WC_GENERAL_ERR);
    const Violation violation = connection.settle_control();
    if (violation != Violation::none)
      break_connection(connection, kKindViolation, static_cast<uint32_t>(violation));
  }
  connection.tell_granted |= connection.sender.granted();
  answer(connection);
  if (connection.tell_granted != 0 || connection.reader.has_result()) to_backlog(connection);
}

void Poller::answer(PolledConnection& connection) {
  if (connection.broken || !connection.established.load(std::memory_order_acquire)) return;
  const uint32_t released =
      event_ring_.slot_word(connection.slot, EventRing::kReleased).load(std::memory_order_acquire);
  if (connection.receiver.answer(released, connection.sender.peer()) != 0) {
    break_connection(connection, kKindCompletion, IBV_WC_GENERAL_ERR);
    return;
  }
  event_ring_.slot_word(connection.slot, EventRing::kReported)
      .store(static_cast<uint32_t>(connection.receiver.reported()), std::memory_order_release);
}

// --- end of the hot path -------------------------------------------------------------------------

void Poller::break_connection(PolledConnection& connection, uint32_t kind, uint32_t detail) {
  if (connection.broken) return;
  connection.broken = true;
  verbs_->move_to_error(connection.qp.get());
  if (connection.leaving) return;  // as it was asked for
  connection.tell_broken = true;
  connection.broken_kind = kind;
  connection.broken_detail = detail;
  to_backlog(connection);
}

// The completion queue is broken: nothing will be heard of any connection.
void Poller::break_all() {
  for (Slot& slot : slots_)
    if (PolledConnection* connection = slot.current.load(std::memory_order_acquire); connection != nullptr)
      break_connection(*connection, kKindCompletion, IBV_WC_FATAL_ERR);
}

// The device is gone: its queue cannot be armed, or its channel cannot be read. Without this the thread would
// sleep through completions, or wake up endlessly for nothing.
void Poller::lose_channel() {
  channel_lost_ = true;
  break_all();
}

// Requests of the application.
bool Poller::process_requests() {
  // This also reads the value, so that the bits set before it are seen below.
  any_pending_.exchange(false, std::memory_order_acq_rel);
  for (size_t word = 0; word < pending_slots_.size(); ++word) {
    if (pending_slots_[word].load(std::memory_order_relaxed) == 0) continue;
    uint64_t bits = pending_slots_[word].exchange(0, std::memory_order_seq_cst);
    for (; bits != 0; bits &= bits - 1) {
      const size_t slot = word * 64 + static_cast<size_t>(__builtin_ctzll(bits));
      PolledConnection* connection = slots_[slot].current.load(std::memory_order_acquire);
      if (connection == nullptr) continue;
      const uint32_t pending = connection->pending.exchange(0, std::memory_order_acquire);
      if ((pending & PolledConnection::kPendingCredit) != 0) answer(*connection);
      if ((pending & PolledConnection::kPendingDetach) != 0 && !connection->leaving) {
        connection->leaving = true;
        break_connection(*connection, kKindCompletion, 0);
        connection->leave_deadline = now_ns() + kLeaveNs;
        leaving_.add(connection);
      }
    }
  }
  return true;
}

// A leaving connection is gone when all its receives and READs have come back and the queue was empty after
// that, so that its share of the queue is free; or after a time that no device needs.
bool Poller::settle_leaving() {
  bool worked = false;
  for (PolledConnection* end = leaving_.last(); !leaving_.empty();) {
    PolledConnection* connection = leaving_.take();
    const bool last = connection == end;
    const bool through =
        connection->receiver.outstanding() == 0 && !connection->reader.outstanding() && !more_completions_;
    if (through || now_ns() > connection->leave_deadline) {
      connection->left = true;
      to_backlog(*connection);
      worked = true;
    } else {
      leaving_.add(connection);
    }
    if (last) break;
  }
  return worked;
}

}  // namespace rdmakit::ring
