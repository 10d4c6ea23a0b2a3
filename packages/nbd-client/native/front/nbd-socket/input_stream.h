// Receives a client's bytes into registered chunks, from which payloads are posted without a copy.
//
//   chunk:  |.. consumed ..| unread ........ | room ............ |
//                          begin             end
//
// The operations that post from a chunk pin it, and it is not reused before the last of them is over. When
// the room of a chunk runs low, the stream moves to a free one and copies the unread bytes; the reader then
// leaves less than a page unread, so that copy is small.
#pragma once

#include <cstdint>
#include <span>

#include "rdma/arena.h"
#include "request/buffer_pins.h"

namespace rdmakit::nbd {

using namespace volume;

// One recv(2) fills at most a chunk. 256 KiB holds 60 page writes, more than a kernel queue sends at
// once; 16 of them hold the payload of every operation that can be outstanding at qd 128.
inline constexpr uint32_t kInputChunk = kMaxWrite;
inline constexpr uint32_t kInputChunks = kFrontMemory / kInputChunk;
static_assert(kInputChunks <= BufferPins::kBuffers);

class InputStream {
 public:
  enum class Status { received, empty, full, ended, failed };

  InputStream(const Arena& arena, BufferPins& pins) : arena_(arena), pins_(pins) {}

  // Only when nothing is pinned.
  void reset();
  // One recv(2) of at most `limit` bytes, which with `waits` blocks for as long as SO_RCVTIMEO says. `full`:
  // no chunk is free, or too much is unread. `failed`: errno says why.
  Status receive(int socket, size_t limit, bool waits);

  // The chunk is full to its end.
  bool filled() const { return end_ == kInputChunk; }
  std::span<uint8_t> unread() const { return {memory_of(chunk_) + begin_, end_ - begin_}; }
  void consume(size_t bytes) { begin_ += static_cast<uint32_t>(bytes); }
  // Pins the chunk that unread() lies in.
  uint16_t pin() {
    pins_.pin(chunk_);
    return chunk_;
  }

 private:
  uint8_t* memory_of(uint16_t chunk) const { return arena_.front_memory() + size_t{chunk} * kInputChunk; }
  bool make_room();

  const Arena& arena_;
  BufferPins& pins_;
  uint16_t chunk_ = 0;
  uint32_t begin_ = 0;
  uint32_t end_ = 0;
};

}  // namespace rdmakit::nbd
