// Describes arrivals and events on the event ring.
#include "ring/polling/poller.h"

namespace rdmakit::ring {

// --- hot path ------------------------------------------------------------------------------------
// No allocation, no lock, no system call but the doorbell's.

void Poller::to_backlog(PolledConnection& connection) {
  if (connection.in_backlog) return;
  connection.in_backlog = true;
  backlog_.add(&connection);
}

// Describes arrivals, a turn for each connection. When the event ring is full they stay in the rings:
// completions and credit of all connections continue, only the frames wait.
bool Poller::deliver_backlog() {
  for (PolledConnection* end = backlog_.last(); !backlog_.empty();) {
    PolledConnection* connection = backlog_.take();
    connection->in_backlog = false;
    const bool last = connection == end;
    if (!deliver(*connection)) to_backlog(*connection);
    if (last) break;
  }
  const bool some = event_ring_.unpublished();
  if (turned_by_guardian_) {
    rings_ |= event_ring_.reveal();
  } else if (turned_by_application()) {
    event_ring_.show();
  } else if (event_ring_.publish()) {
    counters_.doorbells.add(1);
    doorbell_();
  }
  return some;
}

// True when nothing is left to report of this connection. It may be gone then.
bool Poller::deliver(PolledConnection& connection) {
  if (connection.tell_granted != 0) {
    if (!tell(connection, Event::writable, connection.tell_granted)) return false;
    connection.tell_granted = 0;
  }
  while (connection.reader.has_result()) {
    Descriptor* descriptor = event_ring_.claim();
    if (descriptor == nullptr) return false;
    connection.reader.next(*descriptor);
    descriptor->connection = connection.number();
    event_ring_.push();
  }
  for (int left = kFramesInTurn; !connection.violated && connection.receiver.has_frame(); --left) {
    if (left == 0) return false;
    Descriptor* descriptor = event_ring_.claim();
    if (descriptor == nullptr) {
      counters_.board_full.add(1);
      return false;
    }
    const Violation violation = connection.receiver.next(*descriptor);
    if (violation != Violation::none) [[unlikely]] {
      connection.violated = true;
      break_connection(connection, kKindViolation, static_cast<uint32_t>(violation));
      break;
    }
    descriptor->connection = connection.number();
    event_ring_.push();
  }
  if (connection.tell_broken) {
    if (!tell(connection, Event::broken, connection.broken_kind, connection.broken_detail)) return false;
    connection.tell_broken = false;
  }
  if (connection.left) {
    if (connection.touched) return false;
    // From here on the application may destroy it.
    std::atomic<PolledConnection*>& current = slots_[connection.slot].current;
    Descriptor* descriptor = event_ring_.claim();
    if (descriptor == nullptr) return false;
    *descriptor = {connection.number(), 0, 0, static_cast<uint32_t>(Event::detached), 0, 0, 0, 0};
    current.store(nullptr, std::memory_order_release);
    event_ring_.push();
  }
  return true;
}
// --- end of the hot path -------------------------------------------------------------------------

bool Poller::tell(PolledConnection& connection, Event event, uint32_t kind, uint32_t detail) {
  Descriptor* descriptor = event_ring_.claim();
  if (descriptor == nullptr) return false;
  *descriptor = {connection.number(), kind, detail, static_cast<uint32_t>(event), 0, 0, 0, 0};
  event_ring_.push();
  return true;
}

}  // namespace rdmakit::ring
