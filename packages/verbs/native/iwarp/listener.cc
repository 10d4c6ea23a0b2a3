// The listening part of a ConnectionId. A peer that connects and says nothing, or nonsense, costs one
// of a limited number of places for a limited time.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "iwarp/connection.h"
#include "iwarp/handshake.h"

namespace rdmakit::iwarp {
namespace {

constexpr size_t kHalfOpenLeast = 64;
constexpr size_t kHalfOpenMost = 1024;
constexpr int kPauseMs = 100;

}  // namespace

int Connection::listen(const sockaddr* address, socklen_t length, int backlog) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::idle) return EINVAL;
  if (address->sa_family != AF_INET && address->sa_family != AF_INET6) return EAFNOSUPPORT;
  UniqueFd socket(::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return errno;
  const int yes = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(socket.get(), address, length) != 0) return errno;
  if (::listen(socket.get(), std::max(backlog, 1)) != 0) return errno;
  socklen_t local_length = sizeof local_;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local_), &local_length);
  const int error = Engine::instance().watch(number_, socket.get(), EPOLLIN);
  if (error != 0) return error;
  half_open_limit_ = std::clamp(static_cast<size_t>(std::max(backlog, 1)), kHalfOpenLeast, kHalfOpenMost);
  socket_ = std::move(socket);
  enter(State::listening);
  return 0;
}

void Connection::accept_sockets() {
  const std::lock_guard lock(mutex_);
  while (state_ == State::listening) {
    if (half_open_.size() >= half_open_limit_) {
      full_ = true;
      Engine::instance().change(number_, socket_.get(), 0);
      return;
    }
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    UniqueFd accepted(
        ::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&peer), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!accepted) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        // The connection stays readable: without a pause this would spin.
        paused_ = true;
        Engine::instance().change(number_, socket_.get(), 0);
        Engine::instance().call_at(number_, Engine::Clock::now() + std::chrono::milliseconds(kPauseMs));
      }
      return;
    }
    prepare_socket(accepted.get());
    const std::shared_ptr<Connection> id = Connection::create();
    const std::lock_guard id_lock(id->mutex_);
    id->peer_ = peer;
    length = sizeof id->local_;
    getsockname(accepted.get(), reinterpret_cast<sockaddr*>(&id->local_), &length);
    id->socket_ = std::move(accepted);
    id->enter(State::await_request);
    id->listener_ = std::static_pointer_cast<Connection>(shared_from_this());
    if (Engine::instance().watch(id->number_, id->socket_.get(), EPOLLIN) != 0) continue;
    id->set_deadline(kHandshakeTimeoutMs);
    half_open_.push_back(id);
  }
}

// `id` has shown a whole request, or has failed to.
void Connection::handshake_over(Connection& id, bool whole) {
  Events events;
  std::shared_ptr<Connection> kept;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(half_open_.begin(), half_open_.end(),
                                    [&](const auto& each) { return each.get() == &id; });
    if (found == half_open_.end()) return;
    kept = std::move(*found);
    half_open_.erase(found);
    if (full_ && state_ == State::listening) {
      full_ = false;
      Engine::instance().change(number_, socket_.get(), EPOLLIN);
    }
    if (whole) {
      std::vector<uint8_t> private_data;
      {
        const std::lock_guard id_lock(kept->mutex_);
        private_data = std::move(kept->peer_frame_.private_data);
      }
      events.push_back({CmEvent::Type::connect_request, 0, std::move(private_data), kept});
    }
  }
  emit(std::move(events));
}

}  // namespace rdmakit::iwarp
