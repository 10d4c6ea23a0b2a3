// What a client sends, received into registered chunks from which payloads are posted without a copy.
//
//   chunk:  |.. consumed ..| unread ........ | room ............ |
//                          begin             end
//
// A chunk is pinned by the operations that post from it and is not received into again before the last
// of them is over. When the room of a chunk runs low, the stream moves on to a free one and takes the
// unread bytes along; the reader leaves less than a page unread then, so that copy is small.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "rdma/arena.h"
#include "rdmakit/invariant.h"

namespace rdmakit::nbd {

using namespace volume;

class InputStream {
 public:
  enum class Status { received, empty, full, ended, failed };

  explicit InputStream(const Arena& arena) : arena_(arena) {}

  // Only when nothing is pinned.
  void reset();
  // One recv(2) of at most `limit` bytes, which with `waits` blocks for as long as SO_RCVTIMEO says. `full`:
  // no chunk is free, or too much is unread. `failed`: errno says why.
  Status receive(int socket, size_t limit, bool waits);

  // The chunk is full to its end.
  bool filled() const { return end_ == kInputChunk; }
  std::span<uint8_t> unread() const { return {arena_.input_chunk(chunk_) + begin_, end_ - begin_}; }
  void consume(size_t bytes) { begin_ += static_cast<uint32_t>(bytes); }
  // Pins the chunk that unread() lies in.
  uint16_t pin() {
    pins_[chunk_]++;
    return chunk_;
  }
  void pin_again(uint16_t chunk) { pins_[chunk]++; }
  void unpin(uint16_t chunk) {
    RDMAKIT_INVARIANT(pins_[chunk] > 0, "chunk %u is not pinned", chunk);
    pins_[chunk]--;
  }
  bool pinned() const {
    return std::any_of(pins_.begin(), pins_.end(), [](uint16_t pins) { return pins > 0; });
  }

 private:
  bool make_room();

  const Arena& arena_;
  std::array<uint16_t, kInputChunks> pins_{};
  uint16_t chunk_ = 0;
  uint32_t begin_ = 0;
  uint32_t end_ = 0;
};

}  // namespace rdmakit::nbd
