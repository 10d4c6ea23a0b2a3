// Requests of this process to a lane, and their answers.
//
//   caller   submit ──> requests ──> InProcessFront
//            await  <── answers  <──
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "base/spsc_ring.h"
#include "base/unique_fd.h"
#include "request/request.h"

namespace rdmakit::volume {

class InProcessQueue {
 public:
  // Under way at once.
  static constexpr uint32_t kDepth = 64;
  struct Answer {
    uint64_t tag = 0;
    int error = 0;  // errno value
    // A replica is still written to from there, or a server that hangs may still write there. A second answer
    // follows when that is over.
    bool memory_in_use = false;
  };

  InProcessQueue() : arrived_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

  // ---- the caller: one thread at a time submits, and one awaits ----
  // A READ needs memory, and so does a WRITE, of at most kMaxWrite bytes: inside of the lane's memory
  // regions, and untouched until an answer says that it is not in use. The lane may change that of a WRITE.
  // False: kDepth are under way.
  bool submit(const Request& request, uint64_t tag) {
    if (under_way() == kDepth) return false;
    under_way_.fetch_add(1, std::memory_order_relaxed);
    requests_.push({request, tag});
    ring();
    return true;
  }
  // Blocks. False: the lane has ended, and outstanding requests are never answered. Their memory is in use
  // until the engine is closed.
  bool await(Answer& answer) {
    for (;;) {
      const uint32_t seen = answered_.load(std::memory_order_acquire);
      if (answers_.pop(answer)) {
        if (!answer.memory_in_use) under_way_.fetch_sub(1, std::memory_order_relaxed);
        return true;
      }
      if (closed_.load(std::memory_order_acquire)) return false;
      answered_.wait(seen);
    }
  }
  uint32_t under_way() const { return under_way_.load(std::memory_order_relaxed); }
  // Frees the lane for another client. Outstanding requests are never answered, and their memory is in use
  // until the engine is closed. Any thread.
  void leave() {
    left_.store(true, std::memory_order_release);
    ring();
  }

  // ---- the lane ----
  struct Submitted {
    Request request;
    uint64_t tag;
  };
  int descriptor() const { return arrived_.get(); }
  void clear_bell() {
    uint64_t count;
    [[maybe_unused]] const ssize_t ignored = read(arrived_.get(), &count, sizeof count);
  }
  bool empty() const { return requests_.empty(); }
  bool take(Submitted& submitted) { return requests_.pop(submitted); }
  bool left() const { return left_.load(std::memory_order_acquire); }
  void answer(const Answer& answer) {
    answers_.push(answer);
    tell();
  }
  void close() {
    closed_.store(true, std::memory_order_release);
    tell();
  }

 private:
  void ring() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = write(arrived_.get(), &one, sizeof one);
  }
  void tell() {
    answered_.fetch_add(1, std::memory_order_release);
    answered_.notify_one();
  }

  const UniqueFd arrived_;
  std::atomic<uint32_t> under_way_{0};
  SpscRing<Submitted, kDepth> requests_;
  SpscRing<Answer, 2 * kDepth> answers_;
  std::atomic<uint32_t> answered_{0};
  std::atomic<bool> left_{false};
  std::atomic<bool> closed_{false};
};

}  // namespace rdmakit::volume
