#include "kernel/descriptor_passing.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace rdmakit::nbd {

namespace {

// Ancillary data needs at least a byte of its own to travel with.
constexpr char kMark = 'd';

struct Message {
  char mark = kMark;
  iovec bytes{&mark, 1};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(kMaxPassedDescriptors * sizeof(int))] = {};
  msghdr header{};

  explicit Message(size_t ancillary_bytes) {
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = ancillary;
    header.msg_controllen = ancillary_bytes;
  }
};

}  // namespace

int descriptor_channel(int (&ends)[2]) {
  // A packet socket, so that a message is received whole or not at all.
  return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0 ? 0 : errno;
}

int send_descriptors(int channel, const std::vector<int>& descriptors) {
  if (descriptors.empty() || descriptors.size() > kMaxPassedDescriptors) return EINVAL;
  const size_t bytes = descriptors.size() * sizeof(int);
  Message message(CMSG_SPACE(bytes));
  cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(rights), descriptors.data(), bytes);
  return sendmsg(channel, &message.header, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 ? 0 : errno;
}

int receive_descriptors(int channel, std::vector<int>& descriptors) {
  Message message(sizeof(Message::ancillary));
  const ssize_t received = recvmsg(channel, &message.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0) return errno;
  if (received == 0) return EPIPE;
  descriptors.clear();
  for (cmsghdr* each = CMSG_FIRSTHDR(&message.header); each != nullptr;
       each = CMSG_NXTHDR(&message.header, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const size_t before = descriptors.size();
    descriptors.resize(before + count);
    std::memcpy(descriptors.data() + before, CMSG_DATA(each), count * sizeof(int));
  }
  // Some did not fit, which are closed then: a set that is not whole is of no use.
  if (message.mark == kMark && (message.header.msg_flags & MSG_CTRUNC) == 0) return 0;
  for (const int descriptor : descriptors) close(descriptor);
  descriptors.clear();
  return EBADMSG;
}

}  // namespace rdmakit::nbd
