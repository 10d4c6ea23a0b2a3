// The listening part of a ConnectionId. A peer that connects and says nothing, or nonsense, has one of a
// limited number of places for a limited time (software/arrivals.h).
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/accept_failure.h"
#include "shm/setup/connection.h"

namespace rdmakit::shm {
namespace {

constexpr std::chrono::milliseconds kRequestTimeout{5'000};

// Keeps two listeners from replacing the same stale socket, one removing what the other has just made.
// A lock on the folder leaves no file behind; who cannot have it within a second goes on without.
UniqueFd lock_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int tries = 0; fd && tries < 100 && flock(fd.get(), LOCK_EX | LOCK_NB) != 0; tries++) {
    const timespec pause{0, 10'000'000};
    nanosleep(&pause, nullptr);
  }
  return fd;
}

// 0 when nobody lives at `address` (any more), else an errno value.
int clear_path(const sockaddr_un& address, socklen_t length, const std::string& path) {
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) return errno == ENOENT ? 0 : errno;
  if (!S_ISSOCK(status.st_mode)) return EADDRINUSE;
  const UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!probe) return errno;
  // EAGAIN: a full backlog; EPROTOTYPE: a socket of another kind. Somebody is there.
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 ||
      errno != ECONNREFUSED) {
    return EADDRINUSE;
  }
  return ::unlink(path.c_str()) == 0 ? 0 : errno;
}

}  // namespace

int Connection::listen(const sockaddr* address, socklen_t length, int backlog) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::idle) return EINVAL;
  if (length < sizeof(sa_family_t) || address->sa_family != AF_UNIX) return EAFNOSUPPORT;
  sockaddr_un place{};
  if (length <= offsetof(sockaddr_un, sun_path) || length > sizeof place) return EINVAL;
  std::memcpy(&place, address, length);
  const std::string path(place.sun_path, strnlen(place.sun_path, sizeof place.sun_path));
  if (path.empty()) return EINVAL;  // an abstract name has no file, hence no permissions

  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (!socket || setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0) return errno;
  const UniqueFd folder = lock_folder(path);
  if (const int error = clear_path(place, length, path); error != 0) return error;
  // The file gets the mode of the socket, so that there is no moment with another one.
  if (fchmod(socket.get(), 0600) != 0) return errno;
  if (::bind(socket.get(), address, length) != 0) return errno;
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return errno;
  if (::listen(socket.get(), std::max(backlog, 1)) != 0 ||
      ProgressThread::instance().watch(number_, socket.get()) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    return error;
  }
  arrivals_ = software::Arrivals<ConnectionBase>(software::arrivals_for(software::descriptor_limit()));
  file_device_ = status.st_dev;
  file_inode_ = status.st_ino;
  std::memcpy(&local_, &place, sizeof place);
  socket_ = std::move(socket);
  enter(State::listening);
  return 0;
}

// Removes the socket's file, unless it is somebody else's by now.
void Connection::unlink_file() {
  if (state_ != State::listening) return;
  sockaddr_un place;
  std::memcpy(&place, &local_, sizeof place);
  struct stat status;
  if (lstat(place.sun_path, &status) == 0 && status.st_dev == file_device_ && status.st_ino == file_inode_) {
    ::unlink(place.sun_path);
  }
}

int Connection::accept_sockets() {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < kAcceptedAtOnce && state_ == State::listening && !paused_; i++) {
    UniqueFd accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!accepted) {
      const int error = errno;
      const AcceptFailure failure = accept_failure(error);
      if (failure == AcceptFailure::none_waiting) return 0;
      if (failure == AcceptFailure::connection_over || arrivals_.make_room()) continue;
      stop_watching();
      pause_accepting();
      return error;
    }
    const std::shared_ptr<Connection> id = Connection::create();
    const std::lock_guard id_lock(id->mutex_);
    id->local_ = local_;
    socklen_t length = sizeof id->peer_;
    getpeername(accepted.get(), reinterpret_cast<sockaddr*>(&id->peer_), &length);
    id->socket_ = std::move(accepted);
    if (ProgressThread::instance().watch(id->number_, id->socket_.get()) != 0) continue;
    await_request_of(id, kRequestTimeout);
  }
  return 0;
}

int Connection::resume_accepting() { return ProgressThread::instance().watch(number_, socket_.get()); }

}  // namespace rdmakit::shm
