// The listening part of a ConnectionId. A peer that connects and says nothing, or nonsense, has one of a
// limited number of places for a limited time (software/arrivals.h).
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "iwarp/connection.h"
#include "iwarp/handshake.h"

namespace rdmakit::iwarp {
namespace {

constexpr int kAcceptedAtOnce = 64;  // then others have their turn
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
  const int error = ProgressThread::instance().watch(number_, socket.get(), EPOLLIN);
  if (error != 0) return error;
  arrivals_ = Arrivals(software::arrivals_for(software::descriptor_limit()));
  socket_ = std::move(socket);
  enter(State::listening);
  return 0;
}

void Connection::accept_sockets() {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < kAcceptedAtOnce && state_ == State::listening; i++) {
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    UniqueFd accepted(
        ::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&peer), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!accepted) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        if (arrivals_.make_room()) continue;
        // The connection stays readable: without a pause this would spin.
        paused_ = true;
        ProgressThread::instance().change(number_, socket_.get(), 0);
        ProgressThread::instance().call_at(
            number_, ProgressThread::Clock::now() + std::chrono::milliseconds(kPauseMs));
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
    if (ProgressThread::instance().watch(id->number_, id->socket_.get(), EPOLLIN) != 0) continue;
    id->set_deadline(std::chrono::milliseconds(kHandshakeTimeoutMs));
    arrivals_.enter(id);
  }
}

// `id` has shown a whole request, or has failed to.
void Connection::handshake_over(Connection& id, bool whole) {
  Events events;
  std::shared_ptr<Connection> kept;
  {
    const std::lock_guard lock(mutex_);
    kept = whole ? arrivals_.shown(id) : arrivals_.leave(id);
    if (kept == nullptr) return;
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

bool Connection::arriving() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::await_request || (state_ == State::requested && !answered_ && socket_);
}

// A request that the application has not answered is then one whose peer has gone.
void Connection::give_way() {
  const std::lock_guard lock(mutex_);
  socket_.reset();
  if (state_ == State::await_request) enter(State::ended);
}

}  // namespace rdmakit::iwarp
