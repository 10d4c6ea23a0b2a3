// A front whose client is a thread of this process: no framing, no copies. See lane/front.h.
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <utility>

#include "in_process_queue.h"
#include "lane/working_lane.h"
#include "rdma/index_stack.h"
#include "request/buffer_pins.h"

namespace rdmakit::volume {

class InProcessFront {
 public:
  using Client = std::shared_ptr<InProcessQueue>;
  static constexpr uint64_t kBlockTime = UINT64_MAX;  // it never blocks

  InProcessFront(RequestExecutor& requests, const Arena&, const Volume& volume)
      : requests_(requests), volume_(volume) {
    static_assert(InProcessQueue::kDepth <= BufferPins::kBuffers);
  }

  void open(Client&& queue) {
    queue_ = std::move(queue);
    requests_.open(0, true);
    buffers_.reset(0);
    in_use_.clear();
    refusing_ = yielding_ = false;
    reason_ = "";
  }
  void drop(const char* reason) {
    if (!is_open()) return;
    reason_ = reason;
    requests_.drop();
  }
  bool is_open() const { return requests_.is_open(); }
  const char* reason() const { return reason_; }
  int descriptor() const { return queue_ == nullptr ? -1 : queue_->descriptor(); }
  void close() {
    queue_->close();
    queue_.reset();
  }

  void refuse_new() { refusing_ = true; }
  bool outlasts_lane() const { return false; }
  void yield() { yielding_ = true; }
  bool may_part() const { return yielding_ && requests_.quiet(); }
  int part() { return -1; }
  void resume() { yielding_ = false; }

  // ---- hot path ----
  bool receive() {
    queue_->clear_bell();  // first: what rings after it is seen below, or wakes the lane
    return !queue_->empty();
  }
  bool take(uint64_t) {
    bool moved = false;
    InProcessQueue::Submitted submitted;
    for (; !yielding_ && requests_.has_room() && queue_->take(submitted); moved = true) begin(submitted);
    return moved;
  }
  uint16_t sending() const { return kNone; }
  bool may_read_ahead() const { return !yielding_; }
  void end_turn(uint64_t) {}
  bool send(uint64_t) {
    bool moved = false;
    for (IndexQueue<kRequests>& answered = requests_.answered(); !answered.empty(); moved = true) {
      const uint16_t index = answered.front();
      answered.pop();
      const RequestSlot& slot = requests_.slot(index);
      const uint16_t buffer = slot.request.buffer;
      const int error = slot.error;
      requests_.sent(index);
      const bool in_use = requests_.pins().count(buffer) > 0;
      queue_->answer({tags_[buffer], error, in_use});
      if (in_use) {
        in_use_.push(buffer);
      } else {
        buffers_.push(buffer);
      }
    }
    for (size_t left = in_use_.size(); left > 0; left--) {
      const uint16_t buffer = in_use_.front();
      in_use_.pop();
      if (requests_.pins().count(buffer) > 0) {
        in_use_.push(buffer);
        continue;
      }
      queue_->answer({tags_[buffer], 0, false});
      buffers_.push(buffer);
      moved = true;
    }
    if (!queue_->left()) return moved;
    drop("its caller left");
    return true;
  }
  bool more_input() const { return !yielding_ && !queue_->empty(); }
  bool input_full() const { return false; }
  uint64_t pause(uint64_t) const { return 0; }
  bool wants_input() const { return !yielding_; }
  bool wants_output() const { return false; }
  bool may_block() const { return false; }
  bool block() { return false; }
  template <typename Consider>
  void deadlines(Consider) const {}

 private:
  void begin(const InProcessQueue::Submitted& submitted) {
    Request request = submitted.request;
    request.buffer = buffers_.pop();
    tags_[request.buffer] = submitted.tag;
    const uint16_t index = requests_.begin(request, refusing_ ? ESHUTDOWN : check(request));
    if (request.kind != RequestKind::write) return;
    if (requests_.slot(index).error == 0) {
      requests_.pins().pin(request.buffer);
      requests_.write(index, request.offset, request.memory, request.length, request.buffer);
    }
    requests_.end_payload(index);
  }
  int check(const Request& request) const {
    const bool reads = request.kind == RequestKind::read;
    const bool writes = request.kind == RequestKind::write;
    if (request.kind == RequestKind::flush) return 0;
    if (volume_.read_only() && !reads) return EPERM;
    if (request.length == 0 || request.offset > volume_.size() ||
        request.length > volume_.size() - request.offset)
      return EINVAL;
    if (request.offset % volume_.minimum_block() != 0 || request.length % volume_.minimum_block() != 0)
      return EINVAL;
    if ((reads || writes) && request.memory == nullptr) return EINVAL;
    return writes && request.length > kMaxWrite ? EINVAL : 0;
  }

  RequestExecutor& requests_;
  const Volume& volume_;
  Client queue_;
  // Each request has one buffer, until nothing reads or writes it any more.
  IndexStack<InProcessQueue::kDepth> buffers_;
  IndexQueue<InProcessQueue::kDepth> in_use_;  // whose request is answered
  std::array<uint64_t, InProcessQueue::kDepth> tags_{};
  bool refusing_ = false;
  bool yielding_ = false;
  const char* reason_ = "";
};

using InProcessLane = ServingLane<InProcessFront>;

}  // namespace rdmakit::volume
