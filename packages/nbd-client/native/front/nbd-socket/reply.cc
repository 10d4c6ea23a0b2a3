// The answers to requests, and BLOCK_STATUS, which consists of an answer only.
#include <algorithm>
#include <cstring>

#include "front/nbd-socket/nbd_socket.h"

namespace rdmakit::nbd {

namespace {

static_assert(kPage == kGranularity && kMaxUnfragmented == kWindow * kOutputChunk);
// The maximum number of extents in one BLOCK_STATUS: as many as fit the page of its request.
constexpr uint32_t kExtents = kPage / sizeof(StatusDescriptor);

uint32_t state_flags(Allocation allocation) {
  if (allocation == Allocation::data) return 0;
  return allocation == Allocation::zeroes ? kStateZero : kStateZero | kStateHole;
}

ChunkHeader last_chunk(const ReplyHead& head, ChunkType type, size_t length) {
  ChunkHeader header;
  header.magic = kStructuredReplyMagic;
  header.flags = kChunkDone;
  header.type = type;
  header.cookie = head.cookie;
  header.length = static_cast<uint32_t>(length - sizeof header);
  return header;
}

}  // namespace

// ---- hot path begins: no allocation, no log, no lock, no system call but sendmsg ----

void NbdSocket::report_status(uint16_t index) {
  const RequestSlot& slot = requests_.slot(index);
  auto* extents = reinterpret_cast<StatusDescriptor*>(arena_.request_page(index));
  const uint32_t limit = (heads_[index].flags & kCmdFlagReqOne) != 0 ? 1 : kExtents;
  const uint64_t end = slot.request.offset + slot.request.length;
  uint32_t count = 0;
  for (uint64_t at = slot.request.offset; at < end;) {
    const uint64_t page = at / kPage;
    uint64_t run = 0;
    const uint32_t flags = state_flags(volume_.allocation(page, (end + kPage - 1) / kPage - page, run));
    const uint64_t until = std::min(end, (page + run) * kPage);
    const auto length = static_cast<uint32_t>(until - at);
    if (count > 0 && extents[count - 1].flags == flags) {
      extents[count - 1].length = extents[count - 1].length + length;
    } else {
      if (count == limit) break;
      extents[count].length = length;
      extents[count].flags = flags;
      count++;
    }
    at = until;
  }
  heads_[index].data_length = count * static_cast<uint32_t>(sizeof(StatusDescriptor));
}

// Gives each answer of the volume a head, and queues it.
void NbdSocket::queue_answers() {
  IndexQueue<kRequests>& answered = requests_.answered();
  for (; !answered.empty(); answered.pop()) {
    const uint16_t index = answered.front();
    if (requests_.slot(index).error == 0) {
      make_head(index);
    } else {
      make_error_head(index);
    }
    replies_.push(index);
  }
  IndexQueue<kRequests>& failed = requests_.failed_late();
  for (; !failed.empty(); failed.pop()) {
    const uint16_t index = failed.front();
    // A simple reply said that all is well and its data are on their way: only the end of the connection
    // can tell the client otherwise ("Simple reply message").
    if (!requests_.slot(index).request.fragments) return fail("a READ failed after its reply had begun");
    make_error_head(index);
  }
}

void NbdSocket::make_head(uint16_t index) {
  const RequestSlot& slot = requests_.slot(index);
  ReplyHead& head = heads_[index];
  if (slot.request.fragments) return;  // each chunk has its own
  if (slot.is_read()) head.data_length = slot.request.length;
  if (terms_.structured && slot.is_read()) {
    OffsetDataChunk chunk;
    chunk.header = last_chunk(head, kChunkOffsetData, sizeof chunk + head.data_length);
    chunk.offset = slot.request.offset - terms_.exported.offset;
    head.set(chunk);
  } else if (head.command == kCmdBlockStatus) {
    BlockStatusChunk chunk;
    chunk.header = last_chunk(head, kChunkBlockStatus, sizeof chunk + head.data_length);
    chunk.context = kBaseAllocation;
    head.set(chunk);
  } else {
    SimpleReply reply;
    reply.magic = kSimpleReplyMagic;
    reply.error = kOk;
    reply.cookie = head.cookie;
    head.set(reply);
  }
}

// With structured replies a text says what the matter is, and where it is known, the place.
void NbdSocket::make_error_head(uint16_t index) {
  const RequestSlot& slot = requests_.slot(index);
  ReplyHead& head = heads_[index];
  head.data_length = 0;
  uint8_t* end = head.bytes.data();
  const auto append = [&end](const void* bytes, size_t length) {
    std::memcpy(end, bytes, length);
    end += length;
  };
  if (!terms_.structured) {
    SimpleReply reply;
    reply.magic = kSimpleReplyMagic;
    reply.error = static_cast<uint32_t>(slot.error);
    reply.cookie = head.cookie;
    append(&reply, sizeof reply);
  } else {
    const std::string_view text = describe(static_cast<ErrorCode>(slot.error));
    const bool placed = slot.failed_at != RequestSlot::kNowhere;
    const Be64 place(slot.failed_at - terms_.exported.offset);
    ErrorChunk chunk;
    chunk.header = last_chunk(head, placed ? kChunkErrorOffset : kChunkError,
                              sizeof chunk + text.size() + (placed ? sizeof place : 0));
    chunk.error = static_cast<uint32_t>(slot.error);
    chunk.message_length = static_cast<uint16_t>(text.size());
    append(&chunk, sizeof chunk);
    append(text.data(), text.size());
    if (placed) append(&place, sizeof place);
  }
  head.length = static_cast<uint16_t>(end - head.bytes.data());
}

void NbdSocket::time_output(bool moved) {
  if (!output_blocked_) {
    output_deadline_ = 0;
  } else if (moved || output_deadline_ == 0) {
    output_deadline_ = now_ + terms_.stall;
  } else if (now_ >= output_deadline_) {
    fail("the client does not take its answers");
  }
}

bool NbdSocket::send(uint64_t now) {
  now_ = now;
  queue_answers();
  if (replies_.empty()) return false;
  const uint64_t before = replies_.bytes_sent();
  const auto status = replies_.send(socket_.get(), [this](uint16_t index) { requests_.sent(index); });
  const bool moved = replies_.bytes_sent() != before;
  output_blocked_ = status == ReplyQueue::Status::blocked;
  if (status == ReplyQueue::Status::failed) fail("connection reset");
  if (terms_.stall != 0) time_output(moved);
  return moved;
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
