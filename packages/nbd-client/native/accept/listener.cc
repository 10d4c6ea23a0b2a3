#include "accept/listener.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "system/error_reason.h"

namespace rdmakit::nbd {

using namespace volume;

namespace {

// The system's limit cuts it down. A burst that overflows it would keep good clients waiting for a second.
constexpr int kBacklog = SOMAXCONN;

bool unix_address(const std::string& path, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  return true;
}

}  // namespace

Listener::~Listener() {
  struct stat status;
  // A successor may have put its own socket there.
  if (!path_.empty() && lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ &&
      status.st_ino == inode_)
    unlink(path_.c_str());
}

int Listener::open_unix(const std::string& path, std::string& why) {
  sockaddr_un address;
  if (!unix_address(path, address))
    return with_reason(why, EINVAL, path + ": path empty or too long for a socket");
  struct stat status;
  if (lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) return with_reason(why, EEXIST, path + " exists and is not a socket");
    const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!probe) return with_reason(why, errno, "socket");
    const int answer = connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    // EAGAIN: the backlog is full, so a server is there.
    if (answer == 0 || errno != ECONNREFUSED)
      return with_reason(why, EADDRINUSE, "a server is listening on " + path);
    unlink(path.c_str());
  }
  const int error = bind_unix(path);
  if (error != 0) return with_reason(why, error, path + ": " + strerror(error));
  address_ = path;
  return 0;
}

int Listener::bind_unix(const std::string& path) {
  sockaddr_un address;
  unix_address(path, address);
  fd_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd_) return errno;
  // Linux takes the socket's own mode for the file that bind makes: never open to others, not even for
  // the moment that a chmod after bind would leave.
  if (fchmod(fd_.get(), 0600) != 0) return errno;
  if (bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return errno;
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) return errno;
  path_ = path;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  return listen(fd_.get(), kBacklog) == 0 ? 0 : errno;
}

int Listener::open_tcp(const std::string& host, uint16_t port, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failure =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) return with_reason(why, EINVAL, host + ": " + gai_strerror(failure));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    fd_.reset(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (fd_ && setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd_.get(), each->ai_addr, each->ai_addrlen) == 0 && listen(fd_.get(), kBacklog) == 0) {
      error = 0;
      break;
    }
    error = errno;
  }
  if (error != 0) return with_reason(why, error, host + ":" + std::to_string(port) + ": " + strerror(error));
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&bound), &length);
  char name[NI_MAXHOST];
  char service[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<sockaddr*>(&bound), length, name, sizeof name, service, sizeof service,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return with_reason(why, EINVAL, "getnameinfo");
  host_ = name;
  port_ = static_cast<uint16_t>(std::stoi(service));
  address_ = host_ + ":" + service;
  return 0;
}

}  // namespace rdmakit::nbd
