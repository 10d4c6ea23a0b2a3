// The provider's thread: connection setup, events to sinks, and the data of queue pairs with automatic
// progress. Started at first use, never stopped.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "iwarp/poll_set.h"
#include "iwarp/unique_fd.h"

namespace rdmakit::iwarp {

class Engine {
 public:
  using Clock = std::chrono::steady_clock;

  // Something with a socket or a deadline that is not a queue pair's. Called on the engine's thread.
  class Client {
   public:
    virtual ~Client() = default;
    virtual void on_ready(uint32_t events) = 0;
    virtual void on_deadline() = 0;
  };

  static Engine& instance();

  // Queue pairs with automatic progress.
  PollSet& poll_set() { return poll_set_; }
  bool on_this_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Runs `task` on the engine's thread, in order.
  void post(std::function<void()> task);

  // A client gets a number, by which its events find it as long as it lives.
  uint64_t enroll(std::weak_ptr<Client> client);
  void forget(uint64_t number);
  int watch(uint64_t number, int fd, uint32_t events);
  int change(uint64_t number, int fd, uint32_t events);
  void unwatch(int fd) { poll_set_.mute(fd); }
  // Calls on_deadline once at that time. It may be on its way when it is called off, so that the client
  // checks what it still waits for.
  void call_at(uint64_t number, Clock::time_point when);
  void call_off(uint64_t number, Clock::time_point when);
  size_t deadlines();  // how many lie ahead

  Engine();

 private:
  void run();
  void run_tasks();
  void run_deadlines();
  int timeout_ms();
  void wake();
  std::shared_ptr<Client> find(uint64_t number);

  PollSet poll_set_;
  UniqueFd wake_fd_;
  std::mutex mutex_;
  bool woken_ = false;
  std::vector<std::function<void()>> tasks_;
  std::unordered_map<uint64_t, std::weak_ptr<Client>> clients_;
  std::multimap<Clock::time_point, uint64_t> deadlines_;
  uint64_t next_number_ = 1;
  std::thread thread_;
};

}  // namespace rdmakit::iwarp
