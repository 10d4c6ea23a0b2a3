#include "provider/service_manager.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/unique_fd.h"

namespace rdmakit {
namespace {

struct Address {
  sockaddr_un socket{};
  socklen_t length = 0;
};

// A path, or with an "@" before it a name in the abstract namespace (unix(7)).
int address_of(const std::string& name, Address& out) {
  if (name.size() < 2 || (name[0] != '/' && name[0] != '@')) return EINVAL;
  if (name.size() >= sizeof out.socket.sun_path) return ENAMETOOLONG;
  out.socket.sun_family = AF_UNIX;
  std::memcpy(out.socket.sun_path, name.data(), name.size());
  if (name[0] == '@') out.socket.sun_path[0] = 0;
  const size_t end = name[0] == '@' ? name.size() : name.size() + 1;
  out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + end);
  return 0;
}

// `descriptor` goes along unless it is -1.
int send_datagram(int socket, Address& to, std::string_view text, int descriptor) {
  iovec piece{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_name = &to.socket;
  message.msg_namelen = to.length;
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

}  // namespace

int notify_service_manager(const std::string& socket, const std::string& state, int& read) {
  Address to;
  if (const int error = address_of(socket, to); error != 0) return error;
  const UniqueFd sender(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  int ends[2];
  if (!sender || pipe2(ends, O_CLOEXEC) != 0) return errno;
  const UniqueFd write(ends[1]);
  const int error = send_datagram(sender.get(), to, state, -1);
  if (error != 0) {
    close(ends[0]);
    return error;
  }
  // If it cannot be sent, the end of the pipe is there at once: there is no wait.
  static_cast<void>(send_datagram(sender.get(), to, "BARRIER=1", write.get()));
  read = ends[0];
  return 0;
}

}  // namespace rdmakit
