#include "front/nbd-socket/input_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "protocol/wire.h"

namespace rdmakit::nbd {

// Below this a recv(2) brings too little for its cost.
constexpr uint32_t kLowRoom = 32 << 10;
// The most that moves to the next chunk: a part of a header, or of a page.
constexpr uint32_t kMaxCarry = kPage + sizeof(RequestHeader);

void InputStream::reset() {
  chunk_ = 0;
  begin_ = end_ = 0;
}

// ---- hot path begins: no allocation, no log, no lock, no system call but recv ----

bool InputStream::make_room() {
  if (begin_ == end_ && pins_.count(chunk_) == 0) {
    begin_ = end_ = 0;  // the same memory again: it is in the cache
    return true;
  }
  if (kInputChunk - end_ >= kLowRoom) return true;
  const uint32_t carry = end_ - begin_;
  // The reader is stalled, or waits for more: its backlog is not copied.
  if (carry > kMaxCarry) return end_ < kInputChunk;
  uint16_t next = chunk_;
  if (pins_.count(chunk_) != 0) {
    for (next = 0; next < kInputChunks && pins_.count(next) != 0;) next++;
    if (next == kInputChunks) return end_ < kInputChunk;
  }
  std::memmove(memory_of(next), memory_of(chunk_) + begin_, carry);
  chunk_ = next;
  begin_ = 0;
  end_ = carry;
  return true;
}

InputStream::Status InputStream::receive(int socket, size_t limit, bool waits) {
  if (!make_room()) return Status::full;
  const size_t room = std::min<size_t>(kInputChunk - end_, limit);
  const ssize_t bytes = recv(socket, memory_of(chunk_) + end_, room, waits ? 0 : MSG_DONTWAIT);
  if (bytes > 0) {
    end_ += static_cast<uint32_t>(bytes);
    return Status::received;
  }
  if (bytes == 0) return Status::ended;
  return errno == EAGAIN || errno == EINTR ? Status::empty : Status::failed;
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
