#include "shm/setup/link.h"

#include <poll.h>

#include <cerrno>

#include "shm/progress_thread.h"

namespace rdmakit::shm {

// A peer that reads nothing does not get to keep more than this of our memory.
constexpr size_t kMostWaiting = 128 * 1024;

void Link::announce(const std::shared_ptr<Segment>& segment, uint32_t number) {
  {
    const std::lock_guard lock(mutex_);
    if (!announced_.insert(segment->generation).second) return;
  }
  put(SegmentFrame{header_of(FrameType::announce), number, segment->generation}, segment);
}

void Link::withdraw(const std::shared_ptr<Segment>& segment, uint32_t number) {
  {
    const std::lock_guard lock(mutex_);
    if (announced_.erase(segment->generation) == 0) return;
  }
  put(SegmentFrame{header_of(FrameType::withdraw), number, segment->generation}, nullptr);
}

void Link::put(const Bytes& bytes, std::shared_ptr<Segment> segment) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  Waiting frame{bytes, std::move(segment)};
  if (waiting_.empty() && send(frame) != EAGAIN) return;  // another error shows as a hang-up
  if (waiting_.size() >= kMostWaiting) {
    ended_ = true;
    waiting_.clear();
    ::shutdown(socket_.get(), SHUT_RDWR);
    return;
  }
  waiting_.push_back(std::move(frame));
  // By time and not by EPOLLOUT: the limit on descriptors in flight is no matter of this socket.
  if (waiting_.size() == 1) wake_soon();
}

int Link::send(const Waiting& frame) {
  const int fd = frame.segment == nullptr ? -1 : frame.segment->fd.get();
  const std::span<const int> fds(&fd, frame.segment == nullptr ? 0 : 1);
  return std::visit([&](const auto& bytes) { return send_frame(socket_.get(), &bytes, sizeof bytes, fds); },
                    frame.bytes);
}

void Link::wake_soon() {
  ProgressThread::instance().call_at(number_, ProgressThread::Clock::now() + std::chrono::milliseconds(1));
}

void Link::flush() {
  const std::lock_guard lock(mutex_);
  while (!waiting_.empty()) {
    if (send(waiting_.front()) == EAGAIN) return wake_soon();
    waiting_.pop_front();
  }
}

void Link::end(int status, Blame blame) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  ended_ = true;
  waiting_.clear();
  send({PlainFrame{header_of(FrameType::end), status, blame, {}}, nullptr});
  ::shutdown(socket_.get(), SHUT_WR);
}

void Link::hang_up() {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  ended_ = true;
  ::shutdown(socket_.get(), SHUT_WR);
}

bool Link::peer_over() {
  if (peer_over_.load(std::memory_order_acquire)) return true;
  // A process gives up its memory before its descriptors when it dies, so nothing of it runs any more.
  pollfd state{socket_.get(), POLLRDHUP, 0};
  return ::poll(&state, 1, 0) > 0 && (state.revents & (POLLHUP | POLLRDHUP | POLLERR));
}

}  // namespace rdmakit::shm
