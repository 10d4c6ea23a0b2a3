#include "ring/poller.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace rdmakit::ring {

namespace {
constexpr uint32_t kKindCompletion = 0;
constexpr uint32_t kKindViolation = 1;
}  // namespace

Poller::Poller(CqRef cq, ChannelRef channel, const PollerOptions& options, std::function<void()> doorbell)
    : cq_(std::move(cq)),
      channel_(std::move(channel)),
      verbs_(cq_.handle()->verbs),
      options_(options),
      board_(options.max_connections, options.descriptor_count),
      doorbell_(std::move(doorbell)),
      slots_(options.max_connections),
      attention_((options.max_connections + 63) / 64),
      spin_(options.spin_ns) {}

Poller::~Poller() {
  stop();
  if (rouse_fd_ >= 0) close(rouse_fd_);
}

int Poller::start() {
  rouse_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (rouse_fd_ < 0) return errno;
  // The thread inherits this mask: signals are for the application's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& failure) {
    error = failure.code().value();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return error;
  pthread_setname_np(thread_.native_handle(), "ring-poller");
  if (options_.cpu >= 0) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(options_.cpu, &cpus);
    error = pthread_setaffinity_np(thread_.native_handle(), sizeof cpus, &cpus);
    if (error != 0) stop();
  }
  return error;
}

void Poller::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_seq_cst);
  rouse();
  thread_.join();
  // The board may live on, under an ArrayBuffer; the verbs objects go now.
  for (Slot& slot : slots_) slot.owned.reset();
  channel_ = {};
  cq_ = {};
}

// --- hot path ------------------------------------------------------------------------------------
// No allocation, no lock, no system call but the work itself, the offer of an idle core, and the sleep.

void Poller::run() {
  uint64_t idle_since = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    bool worked = poll_completions();
    if (any_attention_.load(std::memory_order_relaxed)) worked |= attend();
    if (!leaving_.empty()) worked |= settle_leaving();
    if (!backlog_.empty()) worked |= deliver_backlog();
    if (worked) {
      if (idle_since != 0) spin_.observe(now_ns() - idle_since);
      idle_since = 0;
      continue;
    }
    if (options_.mode == Mode::poll) {
      relax();
      continue;
    }
    if (options_.mode == Mode::adaptive) {
      const uint64_t now = now_ns();
      if (idle_since == 0) idle_since = now;
      if (now - idle_since < spin_.budget()) {
        relax();
        continue;
      }
    }
    sleep();
  }
  acknowledge_events();
}

bool Poller::poll_completions() {
  ibv_wc completions[kCompletions];
  const int count = ibv_poll_cq(cq_.get(), kCompletions, completions);
  more_completions_ = count == kCompletions;
  if (count <= 0) return false;
  for (int i = 0; i < count; ++i) handle(completions[i]);
  while (Connection* connection = touched_.take()) settle(*connection);
  return true;
}

void Poller::handle(const ibv_wc& completion) {
  const WorkId id = WorkId::decode(completion.wr_id);
  if (id.slot >= slots_.size()) return;
  Connection* connection = slots_[id.slot].current.load(std::memory_order_acquire);
  if (connection == nullptr || connection->generation != id.generation) return;
  if (!connection->touched) {
    connection->touched = true;
    touched_.add(connection);
  }
  if (completion.status != IBV_WC_SUCCESS) [[unlikely]] {
    if (id.kind == Work::receive) connection->receiver.flushed();
    if (id.kind == Work::credit) connection->receiver.credit_completed();
    break_connection(*connection, kKindCompletion, completion.status);
    return;
  }
  switch (id.kind) {
    case Work::data:
      connection->sender.complete(id);
      return;
    case Work::credit:
      connection->receiver.credit_completed();
      return;
    case Work::receive: {
      uint32_t word = 0;
      Violation violation = connection->receiver.take(completion, id.low, word);
      if (violation == Violation::none) {
        if ((word & kCreditBit) != 0) {
          // Cumulative: the last of a batch says it all.
          connection->credit_word = word;
          connection->has_credit = true;
          return;
        }
        violation = connection->receiver.publish(word);
      }
      if (violation != Violation::none)
        break_connection(*connection, kKindViolation, static_cast<uint32_t>(violation));
      return;
    }
  }
}

// What a batch of completions meant for one connection. Receives are posted again before the credit
// that they brought can be used: claim 2 of wire.h.
void Poller::settle(Connection& connection) {
  connection.touched = false;
  if (!connection.broken) {
    if (int error = connection.receiver.repost(); error != 0)
      break_connection(connection, kKindCompletion, IBV_WC_GENERAL_ERR);
  }
  if (connection.has_credit) {
    connection.has_credit = false;
    const Violation violation = connection.sender.credit(connection.credit_word);
    if (violation != Violation::none)
      break_connection(connection, kKindViolation, static_cast<uint32_t>(violation));
  }
  connection.tell_granted |= connection.sender.granted();
  credit(connection);
  if (connection.tell_granted != 0 || connection.tell_broken || connection.receiver.has_frame())
    to_backlog(connection);
}

void Poller::credit(Connection& connection) {
  if (connection.broken || !connection.established.load(std::memory_order_acquire)) return;
  const uint32_t released =
      board_.slot_word(connection.slot, Board::kReleased).load(std::memory_order_acquire);
  const PeerRing& peer = connection.sender.peer();
  if (connection.receiver.return_credit(released, peer.key, peer.address, peer.write_with_immediate) != 0) {
    break_connection(connection, kKindCompletion, IBV_WC_GENERAL_ERR);
    return;
  }
  board_.slot_word(connection.slot, Board::kReported)
      .store(static_cast<uint32_t>(connection.receiver.reported()), std::memory_order_release);
}

void Poller::to_backlog(Connection& connection) {
  if (connection.in_backlog) return;
  connection.in_backlog = true;
  backlog_.add(&connection);
}

// Describes what has arrived, a turn for each connection. When the board is full it stays in the
// rings: completions and credit of everyone go on, only the frames wait.
bool Poller::deliver_backlog() {
  for (Connection* end = backlog_.last(); !backlog_.empty();) {
    Connection* connection = backlog_.take();
    connection->in_backlog = false;
    const bool last = connection == end;
    if (!deliver(*connection)) to_backlog(*connection);
    if (last) break;
  }
  const bool some = board_.unpublished();
  if (board_.publish()) doorbell_();
  return some;
}

// True when nothing is left to tell of this connection. It may be gone then.
bool Poller::deliver(Connection& connection) {
  if (connection.tell_granted != 0) {
    if (!tell(connection, Event::writable, connection.tell_granted)) return false;
    connection.tell_granted = 0;
  }
  for (int left = kFramesInTurn; !connection.violated && connection.receiver.has_frame(); --left) {
    if (left == 0) return false;
    Descriptor* descriptor = board_.claim();
    if (descriptor == nullptr) return false;
    const Violation violation = connection.receiver.next(*descriptor);
    if (violation != Violation::none) [[unlikely]] {
      connection.violated = true;
      break_connection(connection, kKindViolation, static_cast<uint32_t>(violation));
      break;
    }
    descriptor->connection = connection.number();
    board_.push();
  }
  if (connection.tell_broken) {
    if (!tell(connection, Event::broken, connection.broken_kind, connection.broken_detail)) return false;
    connection.tell_broken = false;
  }
  if (connection.left) {
    // From here on the application may destroy it.
    std::atomic<Connection*>& current = slots_[connection.slot].current;
    Descriptor* descriptor = board_.claim();
    if (descriptor == nullptr) return false;
    *descriptor = {connection.number(), 0, 0, static_cast<uint32_t>(Event::detached), 0, 0, 0};
    current.store(nullptr, std::memory_order_release);
    board_.push();
  }
  return true;
}
// --- end of the hot path -------------------------------------------------------------------------

bool Poller::tell(Connection& connection, Event event, uint32_t kind, uint32_t detail) {
  Descriptor* descriptor = board_.claim();
  if (descriptor == nullptr) return false;
  *descriptor = {connection.number(), kind, detail, static_cast<uint32_t>(event), 0, 0, 0};
  board_.push();
  return true;
}

void Poller::break_connection(Connection& connection, uint32_t kind, uint32_t detail) {
  if (connection.broken) return;
  connection.broken = true;
  verbs_->move_to_error(connection.qp.get());
  if (connection.leaving) return;  // as it was asked for
  connection.tell_broken = true;
  connection.broken_kind = kind;
  connection.broken_detail = detail;
  to_backlog(connection);
}

// Wishes of the application.
bool Poller::attend() {
  any_attention_.store(false, std::memory_order_seq_cst);
  for (size_t word = 0; word < attention_.size(); ++word) {
    if (attention_[word].load(std::memory_order_relaxed) == 0) continue;
    uint64_t bits = attention_[word].exchange(0, std::memory_order_seq_cst);
    for (; bits != 0; bits &= bits - 1) {
      const size_t slot = word * 64 + static_cast<size_t>(__builtin_ctzll(bits));
      Connection* connection = slots_[slot].current.load(std::memory_order_acquire);
      if (connection == nullptr) continue;
      const uint32_t wishes = connection->wishes.exchange(0, std::memory_order_acquire);
      if ((wishes & Connection::kWishCredit) != 0) credit(*connection);
      if ((wishes & Connection::kWishDetach) != 0 && !connection->leaving) {
        connection->leaving = true;
        break_connection(*connection, kKindCompletion, 0);
        connection->leave_deadline = now_ns() + kLeaveNs;
        leaving_.add(connection);
      }
    }
  }
  return true;
}

// A connection that leaves is gone when all its receives have come back and the queue was empty after
// that, so that its share of the queue is free; or after a time that no device needs.
bool Poller::settle_leaving() {
  bool worked = false;
  for (Connection* end = leaving_.last(); !leaving_.empty();) {
    Connection* connection = leaving_.take();
    const bool last = connection == end;
    const bool through = connection->receiver.outstanding() == 0 && !more_completions_;
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

// Arms the completion queue, looks once more, and sleeps until the channel or the application wakes it.
void Poller::sleep() {
  // Before the last look at what the application stores before it looks at this (rouse).
  sleeping_.store(true, std::memory_order_seq_cst);
  if (!armed_) armed_ = ibv_req_notify_cq(cq_.get(), 0) == 0;
  // What completed before the arming raises no event.
  if (poll_completions() || any_attention_.load(std::memory_order_seq_cst) ||
      stopping_.load(std::memory_order_seq_cst)) {
    sleeping_.store(false, std::memory_order_relaxed);
    return;
  }
  pollfd ready[2] = {{channel_->fd, POLLIN, 0}, {rouse_fd_, POLLIN, 0}};
  poll(ready, 2, leaving_.empty() ? -1 : 5);
  sleeping_.store(false, std::memory_order_relaxed);
  if (ready[1].revents != 0) {
    uint64_t ignored;
    while (read(rouse_fd_, &ignored, sizeof ignored) > 0) {
    }
  }
  if (ready[0].revents == 0) return;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  while (verbs_->get_cq_event(channel_.get(), &cq, &context) == 0) {
    ++events_;
    armed_ = false;
  }
  // An acknowledgement takes a lock (ibv_ack_cq_events(3)), so many are made at once.
  if (events_ >= 256) acknowledge_events();
}

void Poller::acknowledge_events() {
  if (events_ > 0) verbs_->ack_cq_events(cq_.get(), events_);
  events_ = 0;
}

}  // namespace rdmakit::ring
