#include "front/nbd-socket/reply_queue.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace rdmakit::nbd {

void ReplyQueue::reset(uint64_t export_offset) {
  queue_.clear();
  front_ = {};
  export_offset_ = export_offset;
}

// ---- hot path begins: no allocation, no log, no lock, no system call but sendmsg ----

// False: no segment is left.
bool ReplyQueue::add(const uint8_t* memory, uint64_t length, uint64_t& skip) {
  if (skip >= length) {
    skip -= length;
    return true;
  }
  if (segments_ == kSegments) return false;
  iov_[segments_++] = {const_cast<uint8_t*>(memory) + skip, length - skip};
  gathered_ += length - skip;
  skip = 0;
  return true;
}

const uint8_t* ReplyQueue::part_memory(uint16_t index, uint32_t part) const {
  const RequestSlot& slot = slots_[index];
  return slot.window == 0 ? arena_.request_page(index) : arena_.output_chunk(slot.chunk[part % slot.window]);
}

// Returns how many bytes of a plain reply, from its start, may be sent.
uint64_t ReplyQueue::plain_ready(uint16_t index) const {
  const RequestSlot& slot = slots_[index];
  uint64_t data = heads_of_[index].data_length;
  if (slot.streams() && slot.error == 0)
    data = std::min<uint64_t>(data, uint64_t{slot.parts_ready} * kOutputChunk);
  return heads_of_[index].length + data;
}

// Adds the rest of one reply. False: its later bytes are not there yet, or no segment is left, so nothing
// may follow.
bool ReplyQueue::gather_plain(uint16_t index, uint64_t within) {
  const ReplyHead& head = heads_of_[index];
  uint64_t skip = within;
  if (!add(head.bytes.data(), head.length, skip)) return false;
  const uint64_t ready = plain_ready(index) - head.length;
  for (uint64_t at = 0; at < ready; at += kOutputChunk) {
    const auto part = static_cast<uint32_t>(at / kOutputChunk);
    if (!add(part_memory(index, part), std::min<uint64_t>(kOutputChunk, ready - at), skip)) return false;
  }
  return ready == head.data_length;
}

ReplyQueue::Run ReplyQueue::run_at(RequestSlot& slot, uint32_t part, uint32_t at) const {
  const uint32_t holes = slot.holes_of(part);
  const uint32_t length = slot.part_length(part);
  uint32_t page = page_of_part(slot, part, at);
  const bool hole = (holes >> page & 1) != 0;
  uint32_t end = at;
  // Pages end where pages of the volume do, whatever the READ begins with.
  const auto begin = static_cast<uint32_t>((slot.request.offset + uint64_t{part} * kOutputChunk) % kPage);
  while (end < length && ((holes >> page & 1) != 0) == hole) end = ++page * kPage - begin;
  return {std::min(end, length) - at, hole};
}

const ReplyQueue::RunHead& ReplyQueue::make_head(uint16_t index, uint32_t part, uint32_t at, const Run& run) {
  const RequestSlot& slot = slots_[index];
  RunHead& head = head_[heads_++];
  const bool done = slot.error == 0 && part + 1 == slot.parts() && at + run.length == slot.part_length(part);
  OffsetHoleChunk chunk;
  chunk.header.magic = kStructuredReplyMagic;
  chunk.header.flags = done ? kChunkDone : 0;
  chunk.header.type = run.hole ? kChunkOffsetHole : kChunkOffsetData;
  chunk.header.cookie = heads_of_[index].cookie;
  chunk.header.length = static_cast<uint32_t>(run.head() - sizeof chunk.header + (run.hole ? 0 : run.length));
  chunk.offset = slot.request.offset - export_offset_ + uint64_t{part} * kOutputChunk + at;
  chunk.length = run.length;
  std::memcpy(head.data(), &chunk, run.head());
  return head;
}

bool ReplyQueue::gather_part(uint16_t index, Position position) {
  RequestSlot& slot = slots_[index];
  const uint8_t* memory = part_memory(index, position.part);
  const uint32_t length = slot.part_length(position.part);
  uint64_t skip = position.within;
  for (uint32_t at = 0; at < length;) {
    const Run run = run_at(slot, position.part, at);
    if (skip >= run.on_wire()) {
      skip -= run.on_wire();
    } else {
      if (segments_ == kSegments) return false;
      if (skip >= run.head()) {
        skip -= run.head();
      } else {
        add(make_head(index, position.part, at, run).data(), run.head(), skip);
      }
      if (!run.hole && !add(memory + at, run.length, skip)) return false;
    }
    at += run.length;
  }
  return true;
}

// For a READ that fragments: the number of parts that are sent whole.
uint32_t ReplyQueue::whole_parts(const RequestSlot& slot) const {
  return slot.error == 0 ? slot.parts() : slot.parts_before_failure;
}

bool ReplyQueue::is_last(const RequestSlot& slot, uint32_t part) const {
  if (!slot.request.fragments) return true;
  return part == (slot.error == 0 ? slot.parts() - 1 : slot.parts_before_failure);
}

uint64_t ReplyQueue::length_of(uint16_t index, uint32_t part) const {
  RequestSlot& slot = slots_[index];
  const ReplyHead& head = heads_of_[index];
  if (!slot.request.fragments) return head.length + head.data_length;
  if (part == whole_parts(slot)) return head.length;
  uint64_t bytes = 0;
  for (uint32_t at = 0; at < slot.part_length(part);) {
    const Run run = run_at(slot, part, at);
    bytes += run.on_wire();
    at += run.length;
  }
  return bytes;
}

bool ReplyQueue::gather_one(uint16_t index, Position position) {
  RequestSlot& slot = slots_[index];
  if (!slot.request.fragments) return gather_plain(index, position.within);
  const uint32_t whole = whole_parts(slot);
  const uint32_t ready = slot.streams() && slot.error == 0 ? slot.parts_ready : whole;
  for (; position.part < ready; position = {position.part + 1, 0}) {
    if (!gather_part(index, position)) return false;
  }
  if (slot.error == 0) return ready == whole;
  uint64_t skip = position.within;
  return add(heads_of_[index].bytes.data(), heads_of_[index].length, skip);
}

int ReplyQueue::gather() {
  segments_ = heads_ = 0;
  gathered_ = 0;
  for (size_t i = 0; i < queue_.size() && segments_ < kSegments; i++) {
    if (!gather_one(queue_[i], i == 0 ? front_ : Position{})) break;
  }
  return static_cast<int>(segments_);
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
