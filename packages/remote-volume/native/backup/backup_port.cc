#include "backup/backup_port.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backup/backup.h"
#include "rdmakit/invariant.h"

namespace rdmakit::volume {

namespace {

// The part of a WRITE that lies in one page.
struct Piece {
  uint64_t page;
  uint32_t begin;  // in the page
  uint32_t length;
  bool whole() const { return length == kPage; }
};

Piece piece_at(uint64_t offset, uint64_t end) {
  const auto begin = static_cast<uint32_t>(offset % kPage);
  return {offset / kPage, begin, static_cast<uint32_t>(std::min<uint64_t>(end - offset, kPage - begin))};
}

bool in_queue(BackupState state) {
  return state == BackupState::queued || state == BackupState::queued_stale;
}

}  // namespace

BackupPort::BackupPort(Backup& backup, uint8_t* memory, uint32_t buffers)
    : backup_(backup), memory_(memory), buffers_(buffers), tickets_(kOperations) {
  free_.reserve(buffers);
  for (uint32_t i = buffers; i > 0; i--) free_.push_back(static_cast<uint16_t>(i - 1));
  waiting_.reserve(kOperations);
}

// ---- hot path begins: no allocation, no log, no lock, no system call but to wake a sleeping thread ----

bool BackupPort::working() const { return backup_.working(); }
const BackupMap& BackupPort::map() const { return backup_.map(); }

BackupPort::Admission BackupPort::admit(uint64_t offset, uint64_t bytes) const {
  for (const uint64_t end = offset + bytes; offset < end;) {
    const Piece piece = piece_at(offset, end);
    const BackupState state = backup_.map().get(piece.page);
    if (in_queue(state)) return Admission::wait;
    if (!piece.whole() && state == BackupState::stale) return Admission::refused;
    offset += piece.length;
  }
  return Admission::yes;
}

bool BackupPort::room(uint64_t pages) {
  if (crowded_) return false;
  crowded_ = free_.size() < pages;
  return !crowded_;
}

void BackupPort::begin(const Operation& operation) {
  const uint32_t serial = tickets_[operation.index].serial;
  tickets_[operation.index] = {};
  tickets_[operation.index].serial = serial + 1;
}

void BackupPort::begin_bringing() { backup_.map().begin_bringing(); }
void BackupPort::end_bringing() { backup_.map().end_bringing(); }

void BackupPort::offer(const Operation& operation) {
  tickets_[operation.index].offered = true;
  put(operation);
}

// Queues each page that can be. What cannot be is marked, so that what the file has of it is not read.
void BackupPort::put(const Operation& operation) {
  Ticket& ticket = tickets_[operation.index];
  BackupMap& map = backup_.map();
  const uint64_t end = operation.offset + operation.length;
  const bool working = this->working();
  ticket.complete = true;
  for (uint64_t offset = operation.offset; offset < end;) {
    const Piece piece = piece_at(offset, end);
    const BackupState state = map.get(piece.page);
    const bool fits = state == BackupState::held || (state == BackupState::stale && piece.whole());
    if (working && fits && !free_.empty()) {
      const uint16_t index = free_.back();
      free_.pop_back();
      std::memcpy(buffer(index) + piece.begin, operation.memory + (offset - operation.offset), piece.length);
      map.queue(piece.page);
      put_.add();
      const bool queued =
          items_.push({piece.page, ticket.serial, operation.index, index, static_cast<uint16_t>(piece.begin),
                       static_cast<uint16_t>(piece.length)});
      RDMAKIT_INVARIANT(queued, "page %llu has a buffer and no place",
                        static_cast<unsigned long long>(piece.page));
      ticket.left++;
      pushed_ = true;
    } else {
      map.mark(piece.page);
      ticket.complete = false;
      statistics_.missed.add();
    }
    offset += piece.length;
  }
}

bool BackupPort::keep_offered(const Operation& operation) {
  Ticket& ticket = tickets_[operation.index];
  if (ticket.left == 0) return false;
  ticket.kept = true;
  outstanding_++;
  return true;
}

BackupPort::Kept BackupPort::keep(const Operation& operation) {
  Ticket& ticket = tickets_[operation.index];
  if (!ticket.offered || ticket.asked || !working()) return Kept::no;
  ticket.asked = true;
  if (ticket.complete && ticket.left == 0) return ticket.good ? Kept::now : Kept::no;
  if (!ticket.complete) {
    waiting_.push_back(operation.index);
  } else {
    ticket.kept = true;
  }
  outstanding_++;
  return Kept::later;
}

void BackupPort::read(const Operation& operation) {
  tickets_[operation.index].reading = true;
  const bool queued = reads_.push({operation.offset, operation.memory, operation.length, operation.index});
  RDMAKIT_INVARIANT(queued, "operation %u: %u are outstanding", operation.index, outstanding_);
  outstanding_++;
  pushed_ = true;
}

void BackupPort::end(uint16_t operation, bool succeeded, BackupListener& listener) {
  Ticket& ticket = tickets_[operation];
  ticket.kept = ticket.reading = false;
  outstanding_--;
  listener.backup_over(operation, succeeded);
}

int BackupPort::poll(BackupListener& listener, const Operation* operations) {
  int moved = 0;
  for (Done done; done_.pop(done); moved++) {
    Ticket& ticket = tickets_[done.operation];
    if (done.buffer == kNone) {
      end(done.operation, done.succeeded && !ticket.abandoned, listener);
      continue;
    }
    free_.push_back(done.buffer);
    if (ticket.serial != done.ticket) continue;
    ticket.left--;
    ticket.good &= done.succeeded;
    if (ticket.left == 0 && ticket.kept) end(done.operation, ticket.good && ticket.complete, listener);
  }
  if (!waiting_.empty()) moved += put_waiting(listener, operations);
  // A file for which nobody waits may take its time: the catch-up brings what has no room in the queue now.
  const bool needed = std::exchange(needed_, false);
  if ((outstanding_ > 0 || needed) && hangs()) give_up(listener);
  flush();
  return moved;
}

int BackupPort::put_waiting(BackupListener& listener, const Operation* operations) {
  int moved = 0;
  size_t kept = 0;
  for (size_t i = 0; i < waiting_.size(); i++) {
    const Operation& operation = operations[waiting_[i]];
    const Admission admission = working() ? admit(operation.offset, operation.length) : Admission::refused;
    if (admission == Admission::wait ||
        (admission == Admission::yes && free_.size() < operation.page_count())) {
      waiting_[kept++] = waiting_[i];
      continue;
    }
    moved++;
    // Earlier queued versions of it no longer count.
    Ticket& ticket = tickets_[operation.index];
    ticket.serial++;
    ticket.left = 0;
    ticket.good = true;
    if (admission == Admission::yes) put(operation);
    ticket.kept = admission == Admission::yes && ticket.left > 0;
    if (!ticket.kept) end(operation.index, false, listener);
  }
  waiting_.resize(kept);
  return moved;
}

// The time since a call began is not all the file's: the process may not have run (a stopped process, a
// machine without a free processor), and a lane that then runs before the backup's thread sees a call that
// has come back. So the same call is looked at several times. A standstill makes one of these looks late, and
// the thread can run between the others.
bool BackupPort::hangs() {
  const uint64_t since = backup_.overdue_since();
  if (since != overdue_since_) {
    overdue_since_ = since;
    next_look_ = 0;
    looks_ = 0;
  }
  if (since == 0) return false;
  const uint64_t now = now_ns(CLOCK_MONOTONIC_COARSE);
  if (now < next_look_) return false;
  next_look_ = now + kLookInterval;
  looks_ = std::min(looks_ + 1, kLastLooks);
  return looks_ == kLastLooks;
}

// The thread does not come back from its system call. What waits in a buffer of ours need not wait; a READ's
// memory may still be written to.
void BackupPort::give_up(BackupListener& listener) {
  backup_.fail("the file did not answer in time");
  for (uint16_t i = 0; i < kOperations; i++) {
    Ticket& ticket = tickets_[i];
    if (ticket.kept) {
      ticket.serial++;
      end(i, false, listener);
    } else if (ticket.reading && !ticket.abandoned) {
      ticket.abandoned = true;
      listener.backup_abandoned(i);
    }
  }
}

void BackupPort::flush() {
  if (!pushed_) return;
  pushed_ = false;
  backup_.wake();
}

void BackupPort::arm() {
  if (outstanding_ > 0 || crowded_) wants_wake_.exchange(true);
}

// ---- by the backup's thread ----

void BackupPort::finish(const BackupItem& item, bool succeeded) {
  RDMAKIT_INVARIANT(finished_.get() < put_.get() && item.buffer < buffers_,
                    "buffer %u of %u: %llu pages were queued and %llu finished", item.buffer, buffers_,
                    static_cast<unsigned long long>(put_.get()),
                    static_cast<unsigned long long>(finished_.get()));
  finished_.add();
  const bool told = done_.push({item.ticket, item.operation, item.buffer, succeeded});
  RDMAKIT_INVARIANT(told, "operation %u, buffer %u", item.operation, item.buffer);
}

void BackupPort::finish(const BackupRead& read, bool succeeded) {
  const bool told = done_.push({0, read.operation, kNone, succeeded});
  RDMAKIT_INVARIANT(told, "operation %u", read.operation);
}

void BackupPort::wake_lane() {
  if (wants_wake_.exchange(false)) wake_();
}

// ---- hot path ends ----

void BackupPort::check_rest() const {
  RDMAKIT_INVARIANT(empty() && queued() == 0 && outstanding_ == 0,
                    "%zu pages and %zu READs wait, %llu pages are not finished, %u operations outstanding",
                    items_.size(), reads_.size(), static_cast<unsigned long long>(queued()), outstanding_);
  RDMAKIT_INVARIANT(free_.size() + done_.size() == buffers_, "%zu buffers of %u are free, %zu on their way",
                    free_.size(), buffers_, done_.size());
}

}  // namespace rdmakit::volume
