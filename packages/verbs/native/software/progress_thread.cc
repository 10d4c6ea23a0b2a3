#include "software/progress_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace rdmakit::software {

ProgressThread::ProgressThread(const char* name)
    : name_(name), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

int ProgressThread::start() {
  const std::lock_guard lock(mutex_);
  if (thread_.joinable()) return 0;
  // The thread waits for the end of this, so that it sees thread_ assigned.
  return thread_.start(name_, [this] {
    { const std::lock_guard started(mutex_); }
    run();
  });
}

void ProgressThread::post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  wake();
}

void ProgressThread::wake() {
  if (woken_) return;
  woken_ = true;
  ring();
}

void ProgressThread::ring() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t done = write(wake_fd_.get(), &one, sizeof one);
}

uint64_t ProgressThread::enroll(std::weak_ptr<Client> client) {
  const std::lock_guard lock(mutex_);
  const uint64_t number = next_number_++;
  clients_.emplace(number, std::move(client));
  return number;
}

void ProgressThread::forget(uint64_t number) {
  const std::lock_guard lock(mutex_);
  clients_.erase(number);
}

void ProgressThread::call_at(uint64_t number, Clock::time_point when) {
  const std::lock_guard lock(mutex_);
  const bool first = deadlines_.empty() || when < deadlines_.begin()->first;
  deadlines_.emplace(when, number);
  if (first) wake();
}

void ProgressThread::call_off(uint64_t number, Clock::time_point when) {
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = deadlines_.equal_range(when);
  const auto found = std::find_if(begin, end, [&](const auto& each) { return each.second == number; });
  if (found != end) deadlines_.erase(found);
}

size_t ProgressThread::deadlines() {
  const std::lock_guard lock(mutex_);
  return deadlines_.size();
}

std::shared_ptr<ProgressThread::Client> ProgressThread::find(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = clients_.find(number);
  return found == clients_.end() ? nullptr : found->second.lock();
}

int ProgressThread::timeout_ms() {
  const std::lock_guard lock(mutex_);
  if (!tasks_.empty()) return 0;
  if (deadlines_.empty()) return -1;
  const auto left = deadlines_.begin()->first - Clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void ProgressThread::run_tasks() {
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

void ProgressThread::run_deadlines() {
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

}  // namespace rdmakit::software
