#include "engine/lane.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "engine/clock.h"
#include "kernel/swap_safety.h"

namespace rdmakit::nbd {

namespace {
constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kSecond = 1'000 * kMillisecond;
// After the queue pairs were moved to error, flushes have this long to arrive.
constexpr uint64_t kFlushTime = 1'000 * kMillisecond;
// So long may a remote client still ask, and be answered ESHUTDOWN, before it is cut off.
constexpr uint64_t kFarewell = 250 * kMillisecond;
constexpr int kPageRetryMs = 1;
constexpr uint64_t kLookInterval = 2'000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}
}  // namespace

Lane::Lane(uint32_t index, Volume& volume, LaneOptions&& options, std::function<void()> wake_control)
    : index_(index),
      volume_(volume),
      options_(std::move(options)),
      wake_control_(std::move(wake_control)),
      arena_(options_.arena),
      rdma_(volume, statistics_, *this, options_.cq, options_.operation_timeout_ns, options_.acknowledge,
            arena_.scratch(), options_.backup),
      connection_(volume, arena_, rdma_, statistics_),
      refill_(options_.refills ? std::make_unique<Refill>(volume, arena_, rdma_, options_.refill_rate)
                               : nullptr),
      catch_up_(options_.refills && options_.backup != nullptr
                    ? std::make_unique<BackupCatchUp>(volume, arena_, rdma_, options_.refill_rate)
                    : nullptr),
      waiter_(options_.wait_mode, options_.max_spin_ns) {
  if (options_.backup != nullptr) options_.backup->on_wake([this] { wake(); });
}

Lane::~Lane() {
  if (thread_.joinable()) thread_.join();
  Command command;
  while (commands_.pop(command)) {
    if (command.type == Command::Type::attach) {
      close(command.socket);
    } else if (command.type == Command::Type::connect) {
      command.qp->release(command.qp);
      command.mr->release(command.mr);
    }
  }
}

// ---- control path ----

int Lane::start(std::vector<std::string>& warnings) {
  wake_.reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!wake_ || !epoll_) return errno;
  const auto watch = [this](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : errno;
  };
  if (const int error = watch(wake_.get()); error != 0) return error;
  if (options_.channel) {
    if (const int error = watch(options_.channel->fd); error != 0) return error;
  }
  for (auto& server : options_.servers) {
    const int error = rdma_.connect(server.index, std::move(server.qp), std::move(server.mr));
    if (error != 0) return error;
  }
  options_.servers.clear();
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& failure) {
    return failure.code().value();
  }
  std::unique_lock lock(lifecycle_);
  changed_.wait(lock, [this] { return ready_; });
  warnings = warnings_;
  return 0;
}

void Lane::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = write(wake_.get(), &one, sizeof one);
}

bool Lane::reserve() {
  State expected = State::idle;
  return state_.compare_exchange_strong(expected, State::reserved);
}

void Lane::give_up() {
  State expected = State::reserved;
  state_.compare_exchange_strong(expected, State::idle);
}

void Lane::attach(int socket, const Terms& terms) {
  {
    const std::lock_guard lock(producers_);
    if (!commands_.push({Command::Type::attach, socket, 0, 0, nullptr, nullptr, terms})) {
      close(socket);
      give_up();
    }
  }
  wake();
}

int Lane::connect(uint32_t server, const QpRef& qp, const MrRef& mr) {
  auto* qp_handle = const_cast<Handle*>(qp.handle());
  auto* mr_handle = const_cast<Handle*>(mr.handle());
  qp_handle->retain(qp_handle);
  mr_handle->retain(mr_handle);
  {
    const std::lock_guard lock(producers_);
    if (!commands_.push({Command::Type::connect, -1, server, 0, qp_handle, mr_handle, {}})) {
      qp_handle->release(qp_handle);
      mr_handle->release(mr_handle);
      return EAGAIN;
    }
  }
  wake();
  return 0;
}

int Lane::refill(uint32_t slab, uint32_t server) {
  {
    const std::lock_guard lock(producers_);
    if (!commands_.push({Command::Type::refill, -1, server, slab, nullptr, nullptr, {}})) return EAGAIN;
  }
  wake();
  return 0;
}

void Lane::stop(uint64_t deadline) {
  stop_at_.store(std::max<uint64_t>(deadline, 1));
  wake();
}

bool Lane::join(uint64_t deadline) {
  if (!thread_.joinable()) return true;
  std::unique_lock lock(lifecycle_);
  const uint64_t now = now_ns();
  const auto left = std::chrono::nanoseconds(deadline > now ? deadline - now : 0);
  if (!changed_.wait_for(lock, left, [this] { return ended_; })) return false;
  lock.unlock();
  thread_.join();
  return rdma_.outstanding() == 0 && rdma_.outstanding_backup() == 0;
}

void Lane::drop_resources() {
  rdma_.drop_resources();
  options_.cq = CqRef();
  options_.channel = ChannelRef();
}

// ---- the thread ----

void Lane::run() {
  prepare_thread();
  {
    const std::lock_guard lock(lifecycle_);
    ready_ = true;
  }
  changed_.notify_all();
  loop();
  state_.store(State::stopped, std::memory_order_release);
  const std::lock_guard lock(lifecycle_);
  ended_ = true;
  changed_.notify_all();
}

void Lane::prepare_thread() {
  char name[16];
  if (refill_ != nullptr) {
    snprintf(name, sizeof name, "nbd-lane-refill");
  } else {
    snprintf(name, sizeof name, "nbd-lane-%u", index_);
  }
  pthread_setname_np(pthread_self(), name);
  touch_stack();
  if (options_.swap_safe) {
    for (const Safety& safety : {mark_io_flusher(), lock_range(options_.arena, Arena::kBytes)}) {
      if (!safety.granted) warnings_.push_back(safety.name + ": " + safety.reason);
    }
  }
}

// ---- hot path begins ----
// Rules: no allocation, no log, no lock, no system call that is not the work itself (recv, sendmsg, the
// device's own, and epoll_wait when there is nothing to do). Everything used here was made before.

void Lane::loop() {
  for (;;) {
    // The epoch before the commands: what was commanded before it was raised is done when it is acknowledged.
    const uint64_t epoch = volume_.epoch();
    if (!commands_.empty()) take_commands();
    if (rdma_.enter(epoch) && epoch != acknowledged_epoch_.load(std::memory_order_relaxed))
      acknowledge(epoch);
    now_ = clock_.now();
    rdma_.adopt_failures();
    bool moved = rdma_.poll() > 0;
    moved |= rdma_.poll_backup() > 0;
    if (connection_.is_open()) {
      const bool look = look_ || connection_.input_full();
      if (look) looked_at_ = now_;
      moved |= connection_.step(now_, look);
      look_ = connection_.more_input();
      rdma_.flush(now_);
      moved |= connection_.send(now_);
    }
    if (refill_ != nullptr) moved |= step_refill();
    rdma_.check_deadlines(now_);
    if (!connection_.is_open() && connection_.socket() >= 0) end_connection();
    if (state_.load(std::memory_order_relaxed) == State::draining && connection_.idle() &&
        rdma_.outstanding() == 0 && rdma_.outstanding_backup() == 0)
      become_idle();
    if (stop_at_.load(std::memory_order_relaxed) != 0) {
      if (may_exit(now_)) break;
      moved |= announce_stop();
    }

    if (moved) {
      if (waiter_.moved(now_) && !waiter_.slept()) statistics_.spins.add();
      continue;
    }
    // Completions are worth spinning for. A request is not: its sender must be scheduled first, and a
    // sleeping lane leaves it the core (4 KiB READ at depth 1, two cores: p99 11 µs instead of 56).
    const bool spins =
        rdma_.outstanding() > 0 || (options_.wait_mode == WaitMode::poll && connection_.is_open());
    if (spins && waiter_.spin(now_)) {
      // Requests may come meanwhile; each look is a system call.
      look_ = now_ - looked_at_ >= kLookInterval;
      relax();
      continue;
    }
    sleep(now_);
  }
  if (connection_.socket() >= 0) end_connection();
}

void Lane::sleep(uint64_t now) {
  waiter_.sleeping();
  statistics_.spin_limit.set(waiter_.limit());
  if (rdma_.outstanding() > 0) {
    // Armed first, then looked at once more: a completion between the two would raise no event.
    if (!options_.channel || ibv_req_notify_cq(rdma_.cq(), 0) != 0) return;
    if (rdma_.poll() > 0) {
      if (connection_.is_open()) connection_.send(now);
      return;
    }
  }
  if (options_.backup != nullptr) {
    options_.backup->arm();
    if (rdma_.poll_backup() > 0) {
      if (connection_.is_open()) connection_.send(now);
      return;
    }
  }
  watch_socket();
  statistics_.sleeps.add();
  epoll_event events[4];
  const int count = epoll_wait(epoll_.get(), events, 4, timeout_ms(now));
  for (int i = 0; i < count; i++) {
    const int fd = events[i].data.fd;
    if (fd == wake_.get()) {
      uint64_t value;
      [[maybe_unused]] const ssize_t ignored = read(fd, &value, sizeof value);
    } else if (options_.channel && fd == options_.channel->fd) {
      drain_channel();
    } else {
      look_ = true;
      if ((events[i].events & (EPOLLERR | EPOLLHUP)) != 0 && !connection_.wants_input())
        // Both directions are gone, and with them whoever would take the answers.
        connection_.drop("connection reset");
    }
  }
}

int Lane::timeout_ms(uint64_t now) const {
  if (connection_.waits_for_page() || (refill_ != nullptr && refill_->waits_for_page()) ||
      (options_.backup != nullptr && options_.backup->waits()))
    return kPageRetryMs;
  uint64_t next = UINT64_MAX;
  const auto consider = [&next](uint64_t deadline) {
    if (deadline != 0) next = std::min(next, deadline);
  };
  consider(rdma_.next_deadline());
  consider(connection_.linger_deadline());
  consider(connection_.stall_deadline());
  if (connection_.is_open()) consider(farewell_);
  if (refill_ != nullptr) consider(refill_->next_step());
  if (catch_up_ != nullptr) consider(catch_up_->next_step());
  // The backup's thread may hang in a system call, and only we look.
  if (rdma_.outstanding_backup() > 0) consider(now + kSecond);
  consider(stop_at_.load(std::memory_order_relaxed));
  if (next == UINT64_MAX) return -1;
  return next <= now ? 0 : static_cast<int>(std::min<uint64_t>((next - now) / kMillisecond + 1, 60'000));
}

// Level-triggered, changed only when the wish changes: EPOLLOUT while a reply is stuck, no EPOLLIN
// while there is no room.
void Lane::watch_socket() {
  if (!connection_.is_open()) return;
  const int socket = connection_.socket();
  const uint32_t wanted =
      (connection_.wants_input() ? EPOLLIN : 0u) | (connection_.wants_output() ? EPOLLOUT : 0u);
  if (watched_ == socket && watched_events_ == wanted) return;
  epoll_event event{};
  event.events = wanted;
  event.data.fd = socket;
  epoll_ctl(epoll_.get(), watched_ == socket ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, socket, &event);
  watched_ = socket;
  watched_events_ = wanted;
}

void Lane::drain_channel() {
  const DataPathVerbs* verbs = options_.cq.handle()->verbs;
  ibv_cq* cq;
  void* context;
  unsigned int events = 0;
  while (verbs->get_cq_event(options_.channel.get(), &cq, &context) == 0) events++;
  if (events > 0) verbs->ack_cq_events(options_.cq.get(), events);
}

void Lane::operation_acknowledged(Operation& operation) {
  if (refill_ == nullptr) connection_.operation_acknowledged(operation, now_);
}

void Lane::operation_decided(Operation& operation, bool succeeded) {
  if (catch_up_ != nullptr && BackupCatchUp::owns(operation)) {
    catch_up_->operation_decided(operation, succeeded);
  } else if (refill_ != nullptr) {
    refill_->operation_decided(operation, succeeded);
  } else {
    connection_.operation_decided(operation, succeeded, now_);
  }
}

void Lane::operation_over(Operation& operation) {
  if (catch_up_ != nullptr && BackupCatchUp::owns(operation)) {
    catch_up_->operation_over(operation);
  } else if (refill_ != nullptr) {
    refill_->operation_over(operation);
  } else {
    connection_.operation_over(operation);
  }
}

bool Lane::may_move(const Operation& operation) {
  return refill_ == nullptr && connection_.may_move(operation);
}

// ---- hot path ends ----

void Lane::acknowledge(uint64_t epoch) {
  acknowledged_epoch_.store(epoch, std::memory_order_release);
  wake_control_();
}

bool Lane::step_refill() {
  bool moved = refill_->step(now_);
  if (catch_up_ != nullptr) moved |= catch_up_->step(now_);
  rdma_.flush(now_);
  Refill::Outcome outcome;
  if (!refill_->ended(outcome)) return moved;
  const bool failed = outcome.failure != nullptr;
  Event event = Event::about(failed ? Event::Type::refill_failed : Event::Type::slab_refilled, index_,
                             failed ? outcome.failure : "", outcome.server);
  event.slab = outcome.slab;
  if (events_.push(event)) wake_control_();
  return true;
}

void Lane::server_failed(uint32_t server, const char* reason) {
  if (volume_.fail(server)) emit(Event::Type::server_failed, reason, server);
}

void Lane::emit(Event::Type type, const char* reason, uint32_t server) {
  // A full ring means that control has stood still for 256 events; the counters still tell.
  if (events_.push(Event::about(type, index_, reason, server))) wake_control_();
}

void Lane::take_commands() {
  Command command;
  while (commands_.pop(command)) {
    if (command.type == Command::Type::attach) {
      look_ = true;
      connection_.open(command.socket, command.terms);
      if (announced_stop_) connection_.refuse_new();
      state_.store(State::serving, std::memory_order_release);
      emit(Event::Type::connection_opened, "");
    } else if (command.type == Command::Type::refill) {
      refill_->begin(command.slab, command.server);
    } else {
      rdma_.connect(command.server, QpRef(command.qp), MrRef(command.mr));
      command.qp->release(command.qp);
      command.mr->release(command.mr);
    }
  }
}

// serving -> draining. Out of the epoll set before it is closed: between a fork and its exec a child
// holds the socket open too, and the set would go on telling of it (epoll(7), question 6).
void Lane::end_connection() {
  if (watched_ >= 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watched_, nullptr);
  watched_ = -1;
  connection_.close_socket();
  emit(Event::Type::connection_closed, connection_.reason());
  state_.store(State::draining, std::memory_order_release);
}

// draining -> idle, when the operations of the last connection are over.
void Lane::become_idle() {
  state_.store(State::idle, std::memory_order_release);
  emit(Event::Type::lane_idle, "");
}

// True once: one more turn of the loop before anything ends, so that what has arrived is answered.
bool Lane::announce_stop() {
  if (announced_stop_) return false;
  announced_stop_ = true;
  farewell_ = now_ + kFarewell;
  connection_.refuse_new();
  if (refill_ != nullptr) refill_->cancel("the engine was closed");
  if (catch_up_ != nullptr) catch_up_->cancel();
  return true;
}

bool Lane::may_exit(uint64_t now) {
  const uint64_t deadline = stop_at_.load(std::memory_order_relaxed);
  if (!announced_stop_) return false;
  const bool told = !connection_.remote() || now >= farewell_;
  if (connection_.is_open() && ((connection_.quiet() && told) || now >= deadline))
    connection_.drop("engine closed");
  if (connection_.is_open()) return false;
  const bool refilling = refill_ != nullptr && refill_->busy();
  const bool outstanding = rdma_.outstanding() > 0 || rdma_.outstanding_backup() > 0;
  if (!outstanding && connection_.idle() && !refilling) return true;
  if (now < deadline) return false;
  if (!abandoned_) {
    abandoned_ = true;
    rdma_.abandon();
  }
  return now >= deadline + kFlushTime;
}

}  // namespace rdmakit::nbd
