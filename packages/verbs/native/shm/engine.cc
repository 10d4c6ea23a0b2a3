#include "shm/engine.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace rdmakit::shm {
namespace {

constexpr uint64_t kWake = 0;  // the number of the wake-up descriptor; clients start at 1

}  // namespace

Engine& Engine::instance() {
  // Never destroyed: its thread may run until the process is gone.
  static Engine* engine = std::make_unique<Engine>().release();
  return *engine;
}

Engine::Engine() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  watch(kWake, wake_fd_.get());
  // Signals are the application's: none is handled here.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  // The thread waits for the constructor's end, so that it sees thread_ assigned.
  const std::lock_guard lock(mutex_);
  thread_ = std::thread([this] {
    { const std::lock_guard started(mutex_); }
    run();
  });
  pthread_setname_np(thread_.native_handle(), "rdmakit-shm");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Engine::post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  wake();
}

void Engine::call(Errand& errand) {
  {
    const std::lock_guard lock(errands_mutex_);
    if (errand.queued_) return;
    errand.queued_ = true;
    errand.next_ = nullptr;
    (last_errand_ == nullptr ? first_errand_ : last_errand_->next_) = &errand;
    last_errand_ = &errand;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t done = write(wake_fd_.get(), &one, sizeof one);
}

void Engine::cancel(Errand& errand) {
  std::unique_lock lock(errands_mutex_);
  if (errand.queued_) {
    Errand* before = nullptr;
    for (Errand* at = first_errand_; at != &errand; at = at->next_) before = at;
    (before == nullptr ? first_errand_ : before->next_) = errand.next_;
    if (last_errand_ == &errand) last_errand_ = before;
    errand.queued_ = false;
  }
  if (!on_this_thread()) errand_over_.wait(lock, [&] { return running_ != &errand; });
}

void Engine::run_errands() {
  std::unique_lock lock(errands_mutex_);
  while (first_errand_ != nullptr) {
    running_ = first_errand_;
    first_errand_ = running_->next_;
    if (first_errand_ == nullptr) last_errand_ = nullptr;
    running_->queued_ = false;
    lock.unlock();
    running_->run_();
    lock.lock();
    running_ = nullptr;
    errand_over_.notify_all();
  }
}

void Engine::wake() {
  if (woken_) return;
  woken_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t done = write(wake_fd_.get(), &one, sizeof one);
}

uint64_t Engine::enroll(std::weak_ptr<Client> client) {
  const std::lock_guard lock(mutex_);
  const uint64_t number = next_number_++;
  clients_.emplace(number, std::move(client));
  return number;
}

void Engine::forget(uint64_t number) {
  const std::lock_guard lock(mutex_);
  clients_.erase(number);
}

int Engine::watch(uint64_t number, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = number;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : errno;
}

void Engine::unwatch(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void Engine::call_at(uint64_t number, Clock::time_point when) {
  const std::lock_guard lock(mutex_);
  const bool first = deadlines_.empty() || when < deadlines_.begin()->first;
  deadlines_.emplace(when, number);
  if (first) wake();
}

void Engine::call_off(uint64_t number, Clock::time_point when) {
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = deadlines_.equal_range(when);
  const auto found = std::find_if(begin, end, [&](const auto& each) { return each.second == number; });
  if (found != end) deadlines_.erase(found);
}

size_t Engine::deadlines() {
  const std::lock_guard lock(mutex_);
  return deadlines_.size();
}

std::shared_ptr<Engine::Client> Engine::find(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = clients_.find(number);
  return found == clients_.end() ? nullptr : found->second.lock();
}

int Engine::timeout_ms() {
  const std::lock_guard lock(mutex_);
  if (!tasks_.empty()) return 0;
  if (deadlines_.empty()) return -1;
  const auto left = deadlines_.begin()->first - Clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void Engine::run() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms());
    for (int i = 0; i < count; i++) {
      const uint64_t number = events[i].data.u64;
      if (number == kWake) {
        run_tasks();
        run_errands();
      } else if (const std::shared_ptr<Client> client = find(number)) {
        client->on_ready();
      }
    }
    run_deadlines();
  }
}

void Engine::run_tasks() {
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(mutex_);
    woken_ = false;
    uint64_t count;
    [[maybe_unused]] const ssize_t done = read(wake_fd_.get(), &count, sizeof count);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
}

void Engine::run_deadlines() {
  while (true) {
    uint64_t number;
    {
      const std::lock_guard lock(mutex_);
      if (deadlines_.empty() || deadlines_.begin()->first > Clock::now()) return;
      number = deadlines_.begin()->second;
      deadlines_.erase(deadlines_.begin());
    }
    if (const std::shared_ptr<Client> client = find(number)) client->on_deadline();
  }
}

}  // namespace rdmakit::shm
