// Requests of one thread of this process to a lane, and their answers.
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
  };

  InProcessQueue() : arrived_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

  // ---- the caller: one thread at a time ----
  // A READ needs memory, and so does a WRITE, of at most kMaxWrite bytes: inside of the lane's memory
  // regions, and untouched until it is answered. False: kDepth are under way.
  bool submit(const Request& request, uint64_t tag) {
    if (under_way_ == kDepth) return false;
    requests_.push({request, tag, false});
    under_way_++;
    ring();
    return true;
  }
  // Blocks. False: the lane has ended, and what is under way is never answered.
  bool await(Answer& answer) {
    for (;;) {
      const uint32_t seen = answered_.load(std::memory_order_acquire);
      if (answers_.pop(answer)) {
        under_way_--;
        return true;
      }
      if (closed_.load(std::memory_order_acquire)) return false;
      answered_.wait(seen);
    }
  }
  uint32_t under_way() const { return under_way_; }
  // After the last answer: the lane is free for another.
  void leave() {
    requests_.push({{}, 0, true});
    ring();
  }

  // ---- the lane ----
  struct Submitted {
    Request request;
    uint64_t tag;
    bool leaves;
  };
  int descriptor() const { return arrived_.get(); }
  void clear_bell() {
    uint64_t count;
    [[maybe_unused]] const ssize_t ignored = read(arrived_.get(), &count, sizeof count);
  }
  bool empty() const { return requests_.empty(); }
  bool take(Submitted& submitted) { return requests_.pop(submitted); }
  void answer(uint64_t tag, int error) {
    answers_.push({tag, error});
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
  uint32_t under_way_ = 0;
  SpscRing<Submitted, 2 * kDepth> requests_;
  SpscRing<Answer, kDepth> answers_;
  std::atomic<uint32_t> answered_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace rdmakit::volume
