#include "tls/pump.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/clock.h"

namespace rdmakit::nbd {

// After the engine has ended the connection, the client has this long to take its last answers.
constexpr uint64_t kStopping = 2 * kSecond;

TlsPump::TlsPump(std::unique_ptr<TlsSession> session, UniqueFd outer, UniqueFd inner, uint64_t parting)
    : outer_(std::move(outer)),
      inner_(std::move(inner)),
      session_(std::move(session)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      parting_(parting) {}

TlsPump::~TlsPump() {
  stop();
  if (thread_.joinable()) thread_.join();
}

int TlsPump::start() {
  if (!wake_) return errno;
  return thread_.start("nbd-tls", [this] { run(); });
}

void TlsPump::stop() {
  stopping_.store(true);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = write(wake_.get(), &one, sizeof one);
}

void TlsPump::run() {
  for (;;) {
    const Move moved = move();
    if (moved == Move::over) break;
    if (lane_gone_ || outwards_.ended) end_within(parting_);
    if (stopping_.load()) end_within(kStopping);
    if (deadline_ != 0 && now_ns() >= deadline_) break;
    if (moved == Move::none) wait();
  }
  // The lane must not wait for a client that is gone.
  shutdown(inner_.get(), SHUT_RDWR);
  shutdown(outer_.get(), SHUT_RDWR);
  finished_.store(true, std::memory_order_release);
}

// The earliest counts.
void TlsPump::end_within(uint64_t time) {
  const uint64_t end = now_ns() + time;
  if (deadline_ == 0 || end < deadline_) deadline_ = end;
}

TlsPump::Move TlsPump::move() {
  const Move in = move_inwards();
  if (in == Move::over) return in;
  const Move out = move_outwards();
  return out == Move::none ? in : out;
}

// client -> lane
TlsPump::Move TlsPump::move_inwards() {
  Move moved = Move::none;
  if (inwards_.empty() && !inwards_.ended) {
    const ssize_t bytes = session_->receive(inwards_.buffer.data(), kBuffer);
    if (bytes < 0 && errno != EAGAIN) return Move::over;
    if (bytes >= 0) moved = Move::some;
    if (bytes > 0) inwards_.put(static_cast<size_t>(bytes));
    inwards_.ended = bytes == 0;
  }
  if (!inwards_.empty()) {
    const ssize_t bytes = send(inner_.get(), inwards_.data(), inwards_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes > 0) {
      inwards_.begin += static_cast<size_t>(bytes);
      moved = Move::some;
    } else if (errno != EAGAIN && errno != EINTR) {
      // The lane takes nothing more; its last answers may still be there. The rest of the input is dropped.
      inwards_.put(0);
      inwards_.ended = inwards_.passed = true;
    }
  }
  if (inwards_.ended && inwards_.empty() && !inwards_.passed) {
    inwards_.passed = true;
    shutdown(inner_.get(), SHUT_WR);
  }
  return moved;
}

// lane -> client
TlsPump::Move TlsPump::move_outwards() {
  Move moved = Move::none;
  if (outwards_.empty() && !outwards_.ended) {
    const ssize_t bytes = recv(inner_.get(), outwards_.buffer.data(), kBuffer, MSG_DONTWAIT);
    if (bytes > 0) outwards_.put(static_cast<size_t>(bytes));
    if (bytes > 0) moved = Move::some;
    outwards_.ended = bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR);
  }
  tls_blocked_ = false;
  if (!outwards_.empty()) {
    const ssize_t bytes = session_->send(outwards_.data(), outwards_.size());
    if (bytes < 0 && errno != EAGAIN) return Move::over;
    tls_blocked_ = bytes < 0;
    if (bytes > 0) {
      outwards_.begin += static_cast<size_t>(bytes);
      moved = Move::some;
    }
  }
  if (!outwards_.ended || !outwards_.empty()) return moved;
  session_->say_goodbye();
  return Move::over;
}

// A socket for which no event is awaited is left out of the set: its hang-up would cause wake-ups without
// end. That of the lane is awaited once, for its client may take nothing of what the lane has sent.
void TlsPump::wait() {
  const bool reads = inwards_.empty() && !inwards_.ended;
  const auto outer = static_cast<short>((reads ? POLLIN : 0) | (tls_blocked_ ? POLLOUT : 0));
  const auto inner = static_cast<short>((outwards_.empty() && !outwards_.ended ? POLLIN : 0) |
                                        (inwards_.empty() ? 0 : POLLOUT));
  pollfd descriptors[] = {{outer == 0 ? -1 : outer_.get(), outer, 0},
                          {inner == 0 && lane_gone_ ? -1 : inner_.get(), inner, 0},
                          {wake_.get(), POLLIN, 0}};
  int timeout = -1;
  if (deadline_ != 0) {
    const uint64_t now = now_ns();
    timeout = deadline_ <= now ? 0 : static_cast<int>((deadline_ - now) / kMillisecond + 1);
  }
  if (poll(descriptors, 3, timeout) <= 0) return;
  if ((descriptors[1].revents & POLLHUP) != 0) lane_gone_ = true;
  if (descriptors[2].revents == 0) return;
  uint64_t value;
  [[maybe_unused]] const ssize_t ignored = read(wake_.get(), &value, sizeof value);
}

}  // namespace rdmakit::nbd
