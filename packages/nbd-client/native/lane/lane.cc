#include "lane/lane.h"

#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "rdmakit/invariant.h"
#include "system/processors.h"
#include "system/swap_safety.h"

namespace rdmakit::nbd {

using namespace volume;

namespace {
// After the queue pairs were moved to error, flushes have this long to arrive.
constexpr uint64_t kFlushTime = kSecond;
// So long may a remote client still ask, and be answered ESHUTDOWN, before it is cut off.
constexpr uint64_t kFarewell = 250 * kMillisecond;
}  // namespace

Lane::Lane(uint32_t index, Volume& volume, LaneOptions&& options, std::function<void()> wake_control)
    : index_(index),
      volume_(volume),
      options_(std::move(options)),
      wake_control_(std::move(wake_control)),
      arena_(options_.arena),
      rdma_(volume, statistics_, *this, options_.cq, options_.operation_timeout_ns, options_.acknowledge,
            arena_.scratch(), options_.backup),
      connection_(volume, arena_, rdma_, statistics_, *this, options_.read_ahead),
      refill_(options_.refills ? make_refill() : nullptr),
      catch_up_(options_.refills && options_.backup != nullptr ? make_catch_up() : nullptr),
      waiter_(options_.wait_mode, options_.max_spin_ns),
      request_waiter_(options_.wait_mode) {
  if (options_.backup != nullptr) options_.backup->on_wake([this] { wake(); });
}

std::unique_ptr<Refill> Lane::make_refill() {
  OperationListener& listener = *this;  // which only a Lane knows that it is
  return std::make_unique<Refill>(volume_, arena_, rdma_, options_.refill_rate, statistics_, listener);
}

std::unique_ptr<BackupCatchUp> Lane::make_catch_up() {
  OperationListener& listener = *this;
  return std::make_unique<BackupCatchUp>(volume_, arena_, rdma_, options_.refill_rate, statistics_, listener);
}

Lane::~Lane() {
  if (thread_.joinable()) thread_.join();
  Command command;
  while (commands_.pop(command)) {
    delete command.device;
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
  if (!wake_) return errno;
  for (auto& server : options_.servers) {
    const int error = rdma_.connect(server.index, std::move(server.qp), std::move(server.mr));
    if (error != 0) return error;
  }
  options_.servers.clear();
  if (const int error = thread_.start("nbd-lane", [this] { run(); }); error != 0) return error;
  std::unique_lock lock(lifecycle_);
  changed_.wait(lock, [this] { return ready_; });
  warnings = warnings_;
  return 0;
}

int Lane::pin(const std::vector<uint32_t>& processors) {
  if (processors.empty()) return EINVAL;
  const size_t count = size_t{*std::max_element(processors.begin(), processors.end())} + 1;
  const size_t bytes = CPU_ALLOC_SIZE(count);
  const Processors set(CPU_ALLOC(count));
  if (set == nullptr) return ENOMEM;
  CPU_ZERO_S(bytes, set.get());
  for (const uint32_t processor : processors) CPU_SET_S(processor, bytes, set.get());
  const int error = pthread_setaffinity_np(thread_.id(), bytes, set.get());
  // Processors of its own make a lane stay where its requests come from: beside its clients.
  if (error == 0) spinners_ = usable_processors(thread_.id()) > 1 ? processors_ / 2 : 0;
  return error;
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

void Lane::attach(std::unique_ptr<DeviceQueue> device, const Terms& terms) {
  {
    const std::lock_guard lock(producers_);
    if (commands_.push({Command::Type::attach_device, -1, 0, 0, nullptr, nullptr, terms, device.get()})) {
      static_cast<void>(device.release());
    } else {
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

int Lane::disconnect(uint32_t server) { return command(Command::Type::disconnect, server); }

void Lane::take_back() {
  if (!let_go_.there.load(std::memory_order_acquire)) return;
  let_go_.qp = QpRef();
  let_go_.mr = MrRef();
  let_go_.there.store(false, std::memory_order_release);
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
  processors_ = static_cast<uint32_t>(usable_processors(pthread_self()));
  spinners_ = processors_ / 2;
  touch_stack();
  if (options_.swap_safe) {
    for (const Safety& safety : {mark_io_flusher(), lock_range(options_.arena, Arena::kBytes)}) {
      if (!safety.granted) warnings_.push_back(safety.name + ": " + safety.reason);
    }
  }
}

void Lane::acknowledge(uint64_t epoch) {
  acknowledged_epoch_.store(epoch, std::memory_order_release);
  wake_control_();
}

void Lane::call_control() {
  if (events_.push(Event::about(Event::Type::slabs_changed, index_, ""))) {
    wake_control_();
  } else {
    volume_.call_control();  // later
  }
}

void Lane::let_go() {
  RDMAKIT_INVARIANT(!let_go_.there.load(std::memory_order_acquire),
                    "control has not taken the last one back");
  if (rdma_.let_go(let_go_.qp, let_go_.mr)) let_go_.there.store(true, std::memory_order_release);
}

bool Lane::step_refill() {
  bool moved = refill_->step(now_);
  if (catch_up_ != nullptr) moved |= catch_up_->step(now_);
  rdma_.flush(now_);
  Refill::Outcome outcome;
  if (!refill_->ended(outcome)) return moved;
  const bool told = refill_outcome_.push(outcome);
  RDMAKIT_INVARIANT(told, "slab %u at server %u: the refill before it was not heard of", outcome.slab,
                    outcome.server);
  wake_control_();
  return true;
}

void Lane::take_events(std::vector<Event>& events) {
  Event event;
  while (events_.pop(event)) events.push_back(event);
  while (wrong_pages_.pop(event)) events.push_back(event);
  if (Refill::Outcome outcome; refill_outcome_.pop(outcome)) {
    const bool failed = outcome.failure != nullptr;
    event = Event::about(failed ? Event::Type::refill_failed : Event::Type::slab_refilled, index_,
                         failed ? outcome.failure : "", outcome.server);
    event.slab = outcome.slab;
    events.push_back(event);
  }
  if (int descriptor; yielded_.pop(descriptor)) {
    event = Event::about(Event::Type::lane_yielded, index_, "");
    event.descriptor = descriptor;
    events.push_back(event);
  }
}

void Lane::server_failed(uint32_t server, const char* reason) {
  if (volume_.fail(server, index_, reason)) wake_control_();
}

void Lane::page_wrong(const WrongPage& page) {
  const auto type = page.repaired ? Event::Type::page_repaired : Event::Type::page_lost;
  Event event = Event::about(type, index_, "", page.server);
  event.page = page.page;
  event.slab = static_cast<uint32_t>(page.page * kPage / volume_.slab_size());
  if (wrong_pages_.push(event)) wake_control_();
}

void Lane::emit(Event::Type type, const char* reason) {
  events_.push(Event::about(type, index_, reason));
  wake_control_();
}

void Lane::take_commands() {
  Command command;
  while (commands_.pop(command)) {
    if (command.type == Command::Type::attach || command.type == Command::Type::attach_device) {
      look_ = true;
      if (command.type == Command::Type::attach)
        connection_.open(command.socket, command.terms);
      else
        connection_.open(std::unique_ptr<DeviceQueue>(command.device), command.terms);
      volume_.connection_opened();
      if (announced_stop_) connection_.refuse_new();
      state_.store(State::serving, std::memory_order_release);
      emit(Event::Type::connection_opened, "");
    } else if (command.type == Command::Type::disconnect) {
      rdma_.disconnect(command.server);
    } else if (command.type == Command::Type::refill) {
      refill_->begin(command.slab, command.server);
    } else if (command.type == Command::Type::yield) {
      yielding_ = true;
      connection_.yield();
    } else if (command.type == Command::Type::resume) {
      look_ = true;
      connection_.resume();
      if (std::exchange(yielding_, false)) tell_yielded(-1);
    } else {
      rdma_.connect(command.server, QpRef(command.qp), MrRef(command.mr));
      command.qp->release(command.qp);
      command.mr->release(command.mr);
    }
  }
}

// serving -> draining.
void Lane::end_connection() {
  connection_.close_socket();
  volume_.connection_closed();
  emit(Event::Type::connection_closed, connection_.reason());
  state_.store(State::draining, std::memory_order_release);
}

// draining -> idle, when the operations of the last connection are over.
void Lane::become_idle() {
  connection_.check_rest();
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
  const bool refilling =
      (refill_ != nullptr && refill_->busy()) || (catch_up_ != nullptr && catch_up_->busy());
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
