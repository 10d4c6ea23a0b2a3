// The provider's thread: connection setup, announcements and hang-ups. It moves no data, except for
// queue pairs whose SENDs waited for a receive. Started at first use, never stopped.
#pragma once

#include <sys/epoll.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "iwarp/unique_fd.h"

namespace rdmakit::shm {

class Engine {
 public:
  using Clock = std::chrono::steady_clock;

  // Something with a socket or a deadline. Called on the engine's thread.
  class Client {
   public:
    virtual ~Client() = default;
    virtual void on_ready() = 0;
    virtual void on_deadline() = 0;
  };

  static Engine& instance();

  bool on_this_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Runs `task` on the engine's thread, in order.
  void post(std::function<void()> task);

  // A task that a data path can ask for: asking allocates nothing. It runs once for any number of calls
  // that come before it does.
  class Errand {
   public:
    explicit Errand(std::function<void()> run) : run_(std::move(run)) {}
    Errand(const Errand&) = delete;

   private:
    friend class Engine;
    const std::function<void()> run_;
    Errand* next_ = nullptr;
    bool queued_ = false;
  };
  void call(Errand& errand);
  // It neither runs nor will when this returns. From a task of the engine it may be running still.
  void cancel(Errand& errand);

  // A client gets a number, by which its events find it as long as it lives.
  uint64_t enroll(std::weak_ptr<Client> client);
  void forget(uint64_t number);
  // 0 or an errno value. A descriptor is watched until it is closed or unwatched.
  int watch(uint64_t number, int fd);
  void unwatch(int fd);
  // Calls on_deadline once at that time. It may be on its way when it is called off, so that the client
  // checks what it still waits for.
  void call_at(uint64_t number, Clock::time_point when);
  void call_off(uint64_t number, Clock::time_point when);
  size_t deadlines();  // how many lie ahead

  Engine();

 private:
  void run();
  void run_tasks();
  void run_errands();
  void run_deadlines();
  int timeout_ms();
  void wake();
  std::shared_ptr<Client> find(uint64_t number);

  iwarp::UniqueFd epoll_;
  iwarp::UniqueFd wake_fd_;
  std::mutex mutex_;
  bool woken_ = false;
  std::vector<std::function<void()>> tasks_;
  std::unordered_map<uint64_t, std::weak_ptr<Client>> clients_;
  std::multimap<Clock::time_point, uint64_t> deadlines_;
  uint64_t next_number_ = 1;
  std::mutex errands_mutex_;  // held for a few instructions only
  std::condition_variable errand_over_;
  Errand* first_errand_ = nullptr;
  Errand* last_errand_ = nullptr;
  Errand* running_ = nullptr;
  std::thread thread_;
};

}  // namespace rdmakit::shm
