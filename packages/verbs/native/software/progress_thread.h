// A software provider's thread: tasks in order, deadlines, and the sockets of connections being set up.
// Started with the first device or connection id, never stopped. The provider defines the rest of the
// thread's work.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/unique_fd.h"
#include "rdmakit/thread.h"

namespace rdmakit::software {

class ProgressThread {
 public:
  using Clock = std::chrono::steady_clock;

  // Something with a socket or a deadline that is not a queue pair's. Called on the progress thread.
  class Client {
   public:
    virtual ~Client() = default;
    virtual void on_ready() = 0;
    virtual void on_deadline() = 0;
  };

  ProgressThread(const ProgressThread&) = delete;

  // Before anything else is asked of it. 0, also when it runs already, or an errno value (Thread::start):
  // then the next one who asks tries again.
  int start();
  bool on_this_thread() const { return thread_.is_this(); }

  // Runs `task` on the progress thread, in order.
  void post(std::function<void()> task);

  // A client gets a number, by which its events find it as long as it lives.
  uint64_t enroll(std::weak_ptr<Client> client);
  void forget(uint64_t number);
  // Calls on_deadline once at that time. It may be on its way when it is cancelled, so the client checks what
  // it still waits for.
  void call_at(uint64_t number, Clock::time_point when);
  void call_off(uint64_t number, Clock::time_point when);
  size_t deadlines();  // how many lie ahead

 protected:
  static constexpr uint64_t kWake = 0;  // the number of the wake-up descriptor; clients start at 1

  explicit ProgressThread(const char* name);  // of the thread
  virtual ~ProgressThread() = default;

  // Waits for timeout_ms() or what wake_fd() and the sockets bring, passes it on, and over again.
  virtual void run() = 0;

  int wake_fd() const { return wake_fd_.get(); }
  void ring();  // makes wake_fd() ready; a system call each time
  void run_tasks();
  void run_deadlines();
  int timeout_ms();
  std::shared_ptr<Client> find(uint64_t number);

 private:
  void wake();

  const char* const name_;
  UniqueFd wake_fd_;
  std::mutex mutex_;
  bool woken_ = false;
  std::vector<std::function<void()>> tasks_;
  std::unordered_map<uint64_t, std::weak_ptr<Client>> clients_;
  std::multimap<Clock::time_point, uint64_t> deadlines_;
  uint64_t next_number_ = 1;
  Thread thread_;
};

}  // namespace rdmakit::software
