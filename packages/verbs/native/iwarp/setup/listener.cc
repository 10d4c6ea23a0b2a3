// The listening part of a ConnectionId. A peer that connects and says nothing, or nonsense, has one of a
// limited number of places for a limited time (software/arrivals.h).
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/accept_failure.h"
#include "iwarp/setup/connection.h"
#include "iwarp/setup/handshake.h"

namespace rdmakit::iwarp {

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
  const int error = ProgressThread::instance().watch(number_, socket.get(), EPOLLIN);
  if (error != 0) return error;
  arrivals_ = software::Arrivals<ConnectionBase>(software::arrivals_for(software::descriptor_limit()));
  socket_ = std::move(socket);
  enter(State::listening);
  return 0;
}

int Connection::accept_sockets() {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < kAcceptedAtOnce && state_ == State::listening; i++) {
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    UniqueFd accepted(
        ::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&peer), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!accepted) {
      const int error = errno;
      const AcceptFailure failure = accept_failure(error);
      if (failure == AcceptFailure::none_waiting) return 0;
      if (failure == AcceptFailure::connection_over || arrivals_.make_room()) continue;
      ProgressThread::instance().change(number_, socket_.get(), 0);
      pause_accepting();
      return error;
    }
    prepare_socket(accepted.get());
    const std::shared_ptr<Connection> id = Connection::create();
    const std::lock_guard id_lock(id->mutex_);
    id->peer_ = peer;
    length = sizeof id->local_;
    getsockname(accepted.get(), reinterpret_cast<sockaddr*>(&id->local_), &length);
    id->socket_ = std::move(accepted);
    if (ProgressThread::instance().watch(id->number_, id->socket_.get(), EPOLLIN) != 0) continue;
    await_request_of(id, std::chrono::milliseconds(kHandshakeTimeoutMs));
  }
  return 0;
}

int Connection::resume_accepting() {
  return ProgressThread::instance().change(number_, socket_.get(), EPOLLIN);
}

}  // namespace rdmakit::iwarp
