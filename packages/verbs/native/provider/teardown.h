// Destroys verbs objects on threads of its own, because that may take long. Soft-RoCE waits up to 50 s for
// the packets of a queue pair that the network has not taken (__rxe_cleanup in rxe_pool.c), Soft-iWARP 10 s
// for a connection that is being made, shm 5 s for a peer that is stopped in the middle of a copy. The thread
// that closes an object must not wait for that.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace rdmakit {

class Teardown {
 public:
  // `patience`: how long `run` waits at most, all calls within a short time together. `most_threads`: how
  // many works may take long at the same time; what comes then waits for one of them.
  explicit Teardown(std::chrono::milliseconds patience = std::chrono::milliseconds(100),
                    unsigned most_threads = 16);
  Teardown(const Teardown&) = delete;
  Teardown& operator=(const Teardown&) = delete;
  // Waits for all work.
  ~Teardown();

  // Runs `work` on another thread. With `wait` it usually returns when that is done: after `patience` the
  // work continues alone, and while any other work is that late, no call waits. An event loop closes hundreds
  // of objects in one turn, and on a busy machine each of these threads has a core after milliseconds: so
  // waits that are not short use up the patience, which grows again with time. Teardown within `work` is done
  // directly. On any thread.
  void run(std::function<void()> work, bool wait);

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    std::function<void()> work;
    bool done = false;
    bool late = false;  // who waited for it has gone on
  };
  // With the lock held. Whether there is a thread that will look for work.
  bool staffed();
  // With the lock held. False: it is late.
  bool await(std::unique_lock<std::mutex>& lock, const Job& job);
  void serve();

  const Clock::duration patience_;
  const unsigned most_threads_;
  Clock::duration left_;  // of the patience, at looked_
  Clock::time_point looked_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable work_, done_, ended_;
  std::deque<std::shared_ptr<Job>> waiting_;
  unsigned threads_ = 0;
  unsigned idle_ = 0;
  unsigned late_ = 0;
  bool ending_ = false;
};

}  // namespace rdmakit
