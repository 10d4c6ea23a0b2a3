#include "engine/reply_queue.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace rdmakit::nbd {

void ReplyQueue::reset() {
  queue_.clear();
  front_sent_ = 0;
}

// ---- hot path begins: no allocation, no log, no lock, no system call but sendmsg ----

// Adds the rest of one reply from `position` on. False: its later bytes are not there yet, or no
// segment is left, so nothing may follow.
bool ReplyQueue::gather_one(uint16_t index, uint64_t position, int& segments) {
  RequestSlot& slot = slots_[index];
  const auto add = [&](uint8_t* memory, uint64_t length) {
    iov_[static_cast<size_t>(segments++)] = {memory, length};
    gathered_ += length;
    position += length;
  };
  if (position < sizeof slot.header)
    add(reinterpret_cast<uint8_t*>(&slot.header) + position, sizeof slot.header - position);
  const uint64_t total = slot.reply_length();
  if (total == sizeof slot.header) return true;
  const uint64_t ready = sizeof slot.header + slot.sendable();
  while (position < ready) {
    if (segments == static_cast<int>(kSegments)) return false;
    const auto data = static_cast<uint32_t>(position - sizeof slot.header);
    if (slot.window == 0) {
      add(arena_.request_page(index) + data, slot.request.length - data);
      continue;
    }
    const uint32_t part = data / kOutputChunk;
    const uint32_t within = data % kOutputChunk;
    const uint64_t length = std::min<uint64_t>(kOutputChunk - within, ready - position);
    add(arena_.output_chunk(slot.chunk[part % slot.window]) + within, length);
  }
  return position == total;
}

int ReplyQueue::gather() {
  int segments = 0;
  gathered_ = 0;
  for (size_t i = 0; i < queue_.size() && segments < static_cast<int>(kSegments); i++) {
    if (!gather_one(queue_[i], i == 0 ? front_sent_ : 0, segments)) break;
  }
  return segments;
}

// -1 with blocked_ or errno; a short send means that the socket is full.
ssize_t ReplyQueue::transmit(int socket, int segments) {
  msghdr message{};
  message.msg_iov = iov_.data();
  message.msg_iovlen = static_cast<size_t>(segments);
  const ssize_t bytes = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  blocked_ = bytes < 0 ? errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM || errno == EINTR
                       : static_cast<uint64_t>(bytes) < gathered_;
  return bytes;
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
