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
#include "system/swap_safety.h"

namespace rdmakit::volume {

// In nanoseconds.
static uint64_t longest_look(const LaneOptions& options) {
  return options.wait_mode == WaitMode::event ? 0 : options.max_spin_ns;
}

Lane::Lane(uint32_t index, Volume& volume, LaneOptions&& options, std::function<void()> wake_control)
    : index_(index),
      volume_(volume),
      options_(std::move(options)),
      wake_control_(std::move(wake_control)),
      arena_(options_.arena),
      rdma_(volume, statistics_, *this, options_.cq, options_.operation_timeout_ns, options_.acknowledge,
            arena_.scratch(), options_.backup),
      for_completions_(longest_look(options_)),
      for_requests_(longest_look(options_)) {
  if (options_.backup != nullptr) options_.backup->on_wake([this] { wake(); });
}

Lane::~Lane() {
  join_thread();
  Command command;
  while (commands_.pop(command)) {
    if (command.type == Command::Type::attach) {
      command.destroy(command.client);
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
  if (const int error = thread_.start(options_.thread_name, [this] { run(); }); error != 0) return error;
  std::unique_lock lock(lifecycle_);
  changed_.wait(lock, [this] { return ready_; });
  warnings = warnings_;
  return 0;
}

int Lane::pin(const std::vector<uint32_t>& processors) {
  if (processors.empty()) return EINVAL;
  const size_t count = size_t{*std::max_element(processors.begin(), processors.end())} + 1;
  const size_t bytes = CPU_ALLOC_SIZE(count);
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(count),
                                                             [](cpu_set_t* owned) { CPU_FREE(owned); });
  if (set == nullptr) return ENOMEM;
  CPU_ZERO_S(bytes, set.get());
  for (const uint32_t processor : processors) CPU_SET_S(processor, bytes, set.get());
  return pthread_setaffinity_np(thread_.id(), bytes, set.get());
}

void Lane::wake() {
  if (!wake_) return;
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

int Lane::post(const Command& command) {
  // While servers come and go, a lane that stands still can yet be told what becomes of its client.
  using Type = Command::Type;
  const bool of_servers =
      command.type == Type::connect || command.type == Type::disconnect || command.type == Type::refill;
  {
    const std::lock_guard lock(producers_);
    if (!commands_.push(command, of_servers ? kClientCommands : 0)) return EAGAIN;
  }
  wake();
  return 0;
}

void Lane::attach_client(void* client, void (*destroy)(void*)) {
  Command command{Command::Type::attach};
  command.client = client;
  command.destroy = destroy;
  if (post(command) == 0) return;
  destroy(client);
  give_up();
}

int Lane::connect(uint32_t server, const QpRef& qp, const MrRef& mr) {
  Command command{Command::Type::connect, server};
  command.qp = const_cast<Handle*>(qp.handle());
  command.mr = const_cast<Handle*>(mr.handle());
  command.qp->retain(command.qp);
  command.mr->retain(command.mr);
  const int error = post(command);
  if (error == 0) return 0;
  command.qp->release(command.qp);
  command.mr->release(command.mr);
  return error;
}

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
  if (thread_suffix() != nullptr) {
    snprintf(name, sizeof name, "%s-%s", options_.thread_name, thread_suffix());
  } else {
    snprintf(name, sizeof name, "%s-%u", options_.thread_name, index_);
  }
  pthread_setname_np(pthread_self(), name);
  touch_stack();
  if (options_.swap_safe) {
    for (const Safety& safety :
         {mark_io_flusher(), admit_to_reserve(), lock_range(options_.arena, Arena::kBytes)}) {
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

void Lane::tell_refilled(const Refill::Outcome& outcome) {
  const bool told = refill_outcome_.push(outcome);
  RDMAKIT_INVARIANT(told, "slab %u at server %u: the refill before it was not heard of", outcome.slab,
                    outcome.server);
  wake_control_();
}

void Lane::take_events(std::vector<Event>& events) {
  // First: what the lane told before it became idle is in the ring then.
  const bool idle = idle_.exchange(false);
  Event event;
  while (events_.pop(event)) events.push_back(event);
  if (idle) events.push_back(Event::about(Event::Type::lane_idle, index_, ""));
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

// Not through the ring: without this event the lane gets no other client.
void Lane::tell_idle() {
  idle_.store(true);
  wake_control_();
}

// Control yields a lane again only when it has heard of this.
void Lane::tell_yielded(int descriptor) {
  if (yielded_.push(descriptor))
    wake_control_();
  else if (descriptor >= 0)
    close(descriptor);
}

void Lane::take_commands() {
  Command command;
  while (commands_.pop(command)) {
    if (command.type == Command::Type::connect) {
      rdma_.connect(command.server, QpRef(command.qp), MrRef(command.mr));
      // Its completions would be heard of by nobody: not until the operation timeout.
      if (device_lost_) rdma_.fail_all("its device is gone");
      command.qp->release(command.qp);
      command.mr->release(command.mr);
    } else if (command.type == Command::Type::disconnect) {
      rdma_.disconnect(command.server);
    } else {
      obey(command);
    }
  }
}

void Lane::take_wake() {
  uint64_t value;
  [[maybe_unused]] const ssize_t ignored = read(wake_.get(), &value, sizeof value);
}

// The queue is armed once, so there is one event. Were there another, the channel would stay readable.
void Lane::take_event() {
  const DataPathVerbs* verbs = options_.cq.handle()->verbs;
  ibv_cq* cq;
  void* context;
  const int error = verbs->get_cq_event(options_.channel.get(), &cq, &context);
  if (error == 0)
    verbs->ack_cq_events(options_.cq.get(), 1);
  else if (error != EAGAIN && error != EINTR)
    lose_device("ibv_get_cq_event", error);
}

// If a queue cannot be armed, or its channel cannot be read, the lane would spin, or sleep for ever. All its
// outstanding operations are decided without the device.
void Lane::lose_device(const char* call, int error) {
  device_lost_ = true;
  char reason[64];
  snprintf(reason, sizeof reason, "its device is gone: %s, errno %d", call, error);
  rdma_.fail_all(reason);
}

}  // namespace rdmakit::volume
