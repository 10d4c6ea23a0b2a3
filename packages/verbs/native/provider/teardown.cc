#include "provider/teardown.h"

#include <algorithm>

#include "rdmakit/thread.h"

namespace rdmakit {
namespace {

// Where all memory is locked (mlockall(2) with MCL_FUTURE) the whole stack is real memory.
constexpr size_t kStackBytes = 256 << 10;

// How long a thread beyond the first stays without work.
constexpr std::chrono::seconds kIdle{1};

// A wait that is no longer than this costs no patience: the work was done as soon as a thread had it.
constexpr std::chrono::microseconds kShort{100};

// Of the time that passes, the part by which the patience grows again: 1 / kGrowth.
constexpr int kGrowth = 4;

thread_local bool tearing_down = false;

}  // namespace

Teardown::Teardown(std::chrono::milliseconds patience, unsigned most_threads)
    : patience_(patience), most_threads_(most_threads), left_(patience) {}

Teardown::~Teardown() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  work_.notify_all();
  ended_.wait(lock, [this] { return threads_ == 0; });
}

bool Teardown::staffed() {
  if (idle_ >= waiting_.size() || threads_ == most_threads_) return true;
  Thread thread;
  const auto work = [this] {
    tearing_down = true;
    serve();
  };
  if (thread.start("verbs-teardown", work, kStackBytes) != 0) return threads_ > 0;
  thread.detach();
  ++threads_;
  return true;
}

void Teardown::run(std::function<void()> work, bool wait) {
  if (tearing_down) {
    work();
    return;
  }
  auto job = std::make_shared<Job>(Job{std::move(work)});
  std::unique_lock lock(mutex_);
  waiting_.push_back(job);
  if (!staffed()) {
    // There is no thread to be had: as if there were no Teardown.
    waiting_.pop_back();
    lock.unlock();
    job->work();
    return;
  }
  work_.notify_one();
  if (!wait) return;
  if (late_ > 0 || !await(lock, *job)) {
    job->late = true;
    ++late_;
  }
}

bool Teardown::await(std::unique_lock<std::mutex>& lock, const Job& job) {
  const Clock::time_point begin = Clock::now();
  left_ = std::min(patience_, left_ + (begin - looked_) / kGrowth);
  looked_ = begin;
  const bool done = done_.wait_until(lock, begin + left_, [&job] { return job.done; });
  const Clock::duration taken = Clock::now() - begin;
  if (taken > kShort) left_ = std::max(Clock::duration::zero(), left_ - taken);
  return done;
}

void Teardown::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    const auto wanted = [this] { return ending_ || !waiting_.empty(); };
    // One stays, so that there is one when memory is short.
    if (idle_ == 1) {
      work_.wait(lock, wanted);
    } else {
      work_.wait_for(lock, kIdle, wanted);
    }
    --idle_;
    if (waiting_.empty()) break;
    std::shared_ptr<Job> job = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    job->work();
    job->work = nullptr;
    lock.lock();
    job->done = true;
    if (job->late) --late_;
    done_.notify_all();
  }
  --threads_;
  // Under the lock: who waits for it may free this object.
  ended_.notify_all();
}

}  // namespace rdmakit
