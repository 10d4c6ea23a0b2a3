// From the socket to segments: FPDU framing, CRC, and placement of payloads. All under receive_mutex_.
//
// An FPDU that is wholly in the buffer is checked first and then copied to its place. Of a large one
// that has only begun to arrive, the rest goes from the socket straight to its place, and the CRC is
// checked when it is complete: placed is not delivered (RFC 5041), nothing completes before the
// check, and a wrong CRC ends the connection. What the early placement gives up is that an FPDU
// damaged in flight, in a way that TCP's own checksum misses, can be written into the memory that its
// damaged header names; the header still has to pass every check of STag, domain, access and bounds.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/crc32c.h"
#include "iwarp/queue-pair/queue_pair.h"
#include "iwarp/wire/byte_order.h"
#include "iwarp/wire/markers.h"

namespace rdmakit::iwarp {

// FPDUs up to this length are waited for in the buffer: copying them costs less than a further call.
constexpr size_t kBufferedFpdu = 8 * 1024;
// Behind the last payload of a large message: its trailer, the next header, and a few small FPDUs. Not more,
// so that the payload of the next large message is read to its place as well.
constexpr size_t kBehindMessage = 512;
// One queue pair's share before the others have their turn.
constexpr int kReadsPerTurn = 16;

// Hot path: no allocation; system calls are receives.
void QueuePair::receive(Contention contention) {
  std::unique_lock lock(receive_mutex_, std::defer_lock);
  if (contention == Contention::wait) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return;
  }
  if (state_.load(std::memory_order_relaxed) != State::connected) return;
  Result failure = receive_available();
  if (transmit_wanted_ || failure) {
    const std::lock_guard send_lock(send_mutex_);
    transmit_wanted_ = false;
    if (!failure && state_.load() == State::connected && !backlog_.load(std::memory_order_relaxed)) {
      failure = transmit(4);
    }
    if (failure) fail_locked(*failure);
  }
}

QueuePair::Result QueuePair::receive_available() {
  if (begin_ < end_) {  // bytes that came with start()
    Result failure = consume();
    if (failure) return failure;
  }
  for (int reads = 0; reads < kReadsPerTurn; reads++) {
    size_t asked = 0;
    Result failure;
    const bool streaming = stream_.active && stream_.done < stream_.segment.payload_length;
    const ssize_t got = streaming ? read_into_target(asked, failure) : read_into_buffer(asked);
    if (failure) return failure;
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return std::nullopt;
      return Failure::lost(errno);
    }
    if (got == 0) {
      return ended();
    }
    failure = consume();
    if (failure) return failure;
    if (static_cast<size_t>(got) < asked) return std::nullopt;  // there is no more just now
    if (!streaming && !stream_.active) large_next_ = false;
  }
  return std::nullopt;
}

// The peer has closed. That is orderly between messages and with nothing outstanding; else something is
// lost. (A peer that was killed closes like this too, and who waits for its answer must be told.)
Failure QueuePair::ended() {
  const bool whole = begin_ == end_ && !stream_.active && send_offset_ == 0 && !write_continues_;
  const std::lock_guard lock(send_mutex_);
  return whole && !dead_ && send_head_ == send_tail_ ? Failure{} : Failure::lost(ECONNRESET);
}

ssize_t QueuePair::read_into_buffer(size_t& asked) {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  // After a large message another is likely: of its payload, too, most should go straight to its place.
  asked = large_next_ && end_ == 0 ? kBehindMessage : buffer_size_ - end_;
  const ssize_t got = ::recv(socket_fd_, buffer_.get() + end_, asked, MSG_DONTWAIT);
  if (got > 0) end_ += static_cast<size_t>(got);
  return got;
}

ssize_t QueuePair::read_into_target(size_t& asked, Result& failure) {
  const uint32_t left = stream_.segment.payload_length - stream_.done;
  Target target;
  failure = resolve(stream_.placement, stream_.done, left, target);
  if (failure) return 0;
  begin_ = end_ = 0;
  // Behind a payload that is not the last there is a header like its own, and then the next payload, of which
  // no byte goes through the buffer.
  const size_t behind = stream_.segment.last
                            ? kBehindMessage
                            : stream_.pad + kFpduCrcLength + kFpduLengthField + stream_.segment.header_length;
  asked = left + behind;
  target.pieces[target.count] = {buffer_.get(), behind};
  msghdr message{};
  message.msg_iov = target.pieces.data();
  message.msg_iovlen = target.count + 1;
  const ssize_t got = ::recvmsg(socket_fd_, &message, MSG_DONTWAIT);
  if (got < 0 && errno == EFAULT) [[unlikely]]  // registered, but not mapped: as if it was neither
    failure = no_place(stream_.placement, left, MemoryTable::Fault::unknown);
  if (got <= 0) return got;
  size_t placed = std::min(static_cast<size_t>(got), size_t{left});
  end_ = static_cast<size_t>(got) - placed;
  stream_.done += static_cast<uint32_t>(placed);
  for (uint32_t i = 0; i < target.count && placed > 0 && crc_; i++) {
    const size_t part = std::min(placed, target.pieces[i].iov_len);
    stream_.crc = crc32c_extend(stream_.crc, target.pieces[i].iov_base, part);
    placed -= part;
  }
  return got;
}

QueuePair::Result QueuePair::consume() {
  if (receive_markers_) [[unlikely]]
    return consume_marked();
  while (true) {
    if (stream_.active) {
      bool more = false;
      Result failure = consume_stream(more);
      if (failure || !more) return failure;
      continue;
    }
    const size_t available = end_ - begin_;
    if (available < kFpduLengthField + 1) return std::nullopt;
    const uint8_t* fpdu = buffer_.get() + begin_;
    const size_t ulpdu_length = load_be16(fpdu);
    const size_t length = fpdu_length(ulpdu_length);
    const uint8_t* ulpdu = fpdu + kFpduLengthField;
    const bool whole = available >= length;
    if (!whole) {
      if (length <= kBufferedFpdu) return std::nullopt;
      if (available < kFpduLengthField + header_length(ulpdu[0])) return std::nullopt;
    } else if (crc_ && load_crc(fpdu + length - kFpduCrcLength) != crc32c(fpdu, length - kFpduCrcLength)) {
      return Failure::protocol(terminate::mpa_crc);
    }

    Segment segment;
    Result failure = understand(ulpdu, ulpdu_length, segment);
    if (failure) return failure;
    failure =
        whole ? place(segment, ulpdu + segment.header_length) : begin_stream(segment, fpdu, ulpdu_length);
    if (failure) return failure;
    if (whole) begin_ += length;
  }
}

// consume() for a stream with markers, which are part of what the CRC covers: each FPDU is waited for,
// checked and freed of its markers in the buffer.
QueuePair::Result QueuePair::consume_marked() {
  while (true) {
    const size_t available = end_ - begin_;
    const size_t lead = leading_marker(received_position_);
    if (available < lead + kFpduLengthField) return std::nullopt;
    uint8_t* fpdu = buffer_.get() + begin_;
    const size_t ulpdu_length = load_be16(fpdu + lead);
    const size_t length = marked_length(received_position_, fpdu_length(ulpdu_length));
    if (available < length) return std::nullopt;
    const size_t checked = length - kFpduCrcLength;
    if (crc_ && load_crc(fpdu + checked) != crc32c(fpdu, checked)) {
      return Failure::protocol(terminate::mpa_crc);
    }
    if (!remove_markers(fpdu, length, received_position_)) return Failure::protocol(terminate::mpa_marker);
    Segment segment;
    Result failure = understand(fpdu + kFpduLengthField, ulpdu_length, segment);
    if (failure) return failure;
    failure = place(segment, fpdu + kFpduLengthField + segment.header_length);
    if (failure) return failure;
    begin_ += length;
    received_position_ += length;
  }
}

QueuePair::Result QueuePair::understand(const uint8_t* ulpdu, size_t ulpdu_length, Segment& segment) {
  TerminateCode why;
  if (!parse_segment(ulpdu, ulpdu_length, segment, why)) return Failure::protocol(why);
  if (!peer_spoke_) {
    peer_spoke_ = true;
    const std::lock_guard lock(send_mutex_);
    if (hold_sends_) transmit_wanted_ = true;
    hold_sends_ = false;
  }
  return std::nullopt;
}

// All of a segment whose payload is in the buffer.
QueuePair::Result QueuePair::place(const Segment& segment, const uint8_t* payload) {
  Placement placement;
  Result failure = begin_segment(segment, placement);
  if (failure) return failure;
  if (segment.payload_length > 0 && (placement.tagged || placement.sges != nullptr)) {
    Target target;
    failure = resolve(placement, 0, segment.payload_length, target);
    if (failure) return failure;
    const uint8_t* from = payload;
    for (uint32_t i = 0; i < target.count; i++) {
      std::memcpy(target.pieces[i].iov_base, from, target.pieces[i].iov_len);
      from += target.pieces[i].iov_len;
    }
  }
  return finish_segment(segment, payload);
}

QueuePair::Result QueuePair::begin_stream(const Segment& segment, const uint8_t* fpdu, size_t ulpdu_length) {
  Placement placement;
  Result failure = begin_segment(segment, placement);
  if (failure) return failure;
  {
    Target target;  // the whole payload must have a place before any of it is put there
    failure = resolve(placement, 0, segment.payload_length, target);
    if (failure) return failure;
  }
  stream_.active = true;
  large_next_ = true;
  stream_.segment = segment;
  stream_.placement = placement;
  stream_.done = 0;
  stream_.pad = static_cast<uint32_t>(fpdu_pad(ulpdu_length));
  const size_t head = kFpduLengthField + segment.header_length;
  stream_.crc = crc_ ? crc32c_extend(kCrcSeed, fpdu, head) : 0;
  begin_ += head;
  return std::nullopt;
}

// Takes what the buffer has of the payload (its beginning only: the rest bypasses the buffer) and
// then the trailer. `more` when the FPDU is complete.
QueuePair::Result QueuePair::consume_stream(bool& more) {
  more = false;
  const uint32_t left = stream_.segment.payload_length - stream_.done;
  const uint32_t part = static_cast<uint32_t>(std::min<size_t>(left, end_ - begin_));
  if (part > 0) {
    Target target;
    Result failure = resolve(stream_.placement, stream_.done, part, target);
    if (failure) return failure;
    if (crc_) stream_.crc = crc32c_extend(stream_.crc, buffer_.get() + begin_, part);
    for (uint32_t i = 0; i < target.count; i++) {
      std::memcpy(target.pieces[i].iov_base, buffer_.get() + begin_, target.pieces[i].iov_len);
      begin_ += target.pieces[i].iov_len;
    }
    stream_.done += part;
  }
  if (stream_.done < stream_.segment.payload_length) return std::nullopt;
  const uint8_t* trailer = buffer_.get() + begin_;
  if (end_ - begin_ < stream_.pad + kFpduCrcLength) return std::nullopt;
  if (crc_) {
    const uint32_t crc = crc32c_finish(crc32c_extend(stream_.crc, trailer, stream_.pad));
    if (crc != load_crc(trailer + stream_.pad)) return Failure::protocol(terminate::mpa_crc);
  }
  begin_ += stream_.pad + kFpduCrcLength;
  stream_.active = false;
  more = true;
  return finish_segment(stream_.segment, nullptr);
}
// End of hot path.

}  // namespace rdmakit::iwarp
