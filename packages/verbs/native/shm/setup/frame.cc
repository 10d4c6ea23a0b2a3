#include "shm/setup/frame.h"

#include <cerrno>
#include <cstring>

namespace rdmakit::shm {
namespace {

size_t frame_length(FrameType type) {
  switch (type) {
    case FrameType::request:
    case FrameType::accept:
    case FrameType::reject:
      return sizeof(GreetingFrame);
    case FrameType::announce:
    case FrameType::withdraw:
      return sizeof(SegmentFrame);
    case FrameType::synchronized:
    case FrameType::kick:
    case FrameType::end:
      return sizeof(PlainFrame);
  }
  return 0;
}

}  // namespace

int send_frame(int socket, const void* frame, size_t length, std::span<const int> fds) {
  iovec bytes{const_cast<void*>(frame), length};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  while (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    const bool later = errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM;
    return later ? EAGAIN : errno;
  }
  return 0;
}

int receive_frame(int socket, Frame& frame) {
  iovec bytes{&frame.greeting, sizeof frame.greeting};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int)) + CMSG_SPACE(sizeof(ucred))];
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t length;
  // ECONNRESET comes before the packets that are still in the queue, and only once.
  while ((length = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0) {
    if (errno != EINTR && errno != ECONNRESET) return errno;
    message.msg_controllen = sizeof control;
  }
  if (length == 0) return EPIPE;
  size_t count = 0;
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET) continue;
    if (at->cmsg_type == SCM_RIGHTS) {
      const size_t fds = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < fds; i++) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
        UniqueFd owned(fd);
        if (count < frame.fds.size()) frame.fds[count++] = std::move(owned);
      }
    } else if (at->cmsg_type == SCM_CREDENTIALS && at->cmsg_len >= CMSG_LEN(sizeof(ucred))) {
      ucred sender;
      std::memcpy(&sender, CMSG_DATA(at), sizeof sender);
      frame.pid = sender.pid;
      frame.uid = sender.uid;
    }
  }
  if (message.msg_flags & MSG_CTRUNC) return EMFILE;
  if (static_cast<size_t>(length) < sizeof(FrameHeader) || (message.msg_flags & MSG_TRUNC) ||
      frame.header.magic != kFrameMagic || frame.header.version != kFrameVersion ||
      static_cast<size_t>(length) != frame_length(frame.header.type)) {
    return EPROTO;
  }
  return 0;
}

}  // namespace rdmakit::shm
