// What a request is answered, and BLOCK_STATUS, which is nothing but an answer.
#include <algorithm>
#include <cstring>

#include "front/connection.h"
#include "rdmakit/invariant.h"

namespace rdmakit::nbd {

namespace {

static_assert(kPage == kGranularity && kMaxUnfragmented == kWindow * kOutputChunk);
// Extents that one BLOCK_STATUS tells of: as many as fit the page of its request.
constexpr uint32_t kExtents = kPage / sizeof(StatusDescriptor);

uint32_t state_flags(Allocation allocation) {
  if (allocation == Allocation::data) return 0;
  return allocation == Allocation::zeroes ? kStateZero : kStateZero | kStateHole;
}

ChunkHeader last_chunk(const RequestSlot& slot, ChunkType type, size_t length) {
  ChunkHeader header;
  header.magic = kStructuredReplyMagic;
  header.flags = kChunkDone;
  header.type = type;
  header.cookie = slot.request.cookie;
  header.length = static_cast<uint32_t>(length - sizeof header);
  return header;
}

}  // namespace

// ---- hot path begins: no allocation, no log, no lock, no system call but sendmsg ----

void Connection::report_status(uint16_t index) {
  RequestSlot& slot = slots_[index];
  auto* extents = reinterpret_cast<StatusDescriptor*>(arena_.request_page(index));
  const uint32_t limit = (slot.request.flags & kCmdFlagReqOne) != 0 ? 1 : kExtents;
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
  slot.data_length = count * static_cast<uint32_t>(sizeof(StatusDescriptor));
}

void Connection::reply_if_ready(uint16_t index) {
  RequestSlot& slot = slots_[index];
  if (slot.replied || !slot.received) return;
  if (slot.error == kOk) {
    const bool ready = slot.streams() ? slot.parts_ready >= kWindow : slot.issued && slot.outstanding == 0;
    if (!ready) return;
  }
  slot.replied = true;
  if (device_ != nullptr) {
    answered_.push(index);
    count_reply(slot);
    return;
  }
  if (slot.error == kOk) {
    make_head(slot);
  } else {
    make_error_head(slot);
  }
  replies_.push(index);
  count_reply(slot);
}

void Connection::make_head(RequestSlot& slot) {
  const auto set = [&slot](const auto& head) {
    static_assert(sizeof head <= RequestSlot::kHead);
    std::memcpy(slot.head.data(), &head, sizeof head);
    slot.head_length = sizeof head;
  };
  if (slot.fragments) return;  // each chunk has its own
  if (slot.is_read()) slot.data_length = slot.request.length;
  if (terms_.structured && slot.is_read()) {
    OffsetDataChunk chunk;
    chunk.header = last_chunk(slot, kChunkOffsetData, sizeof chunk + slot.data_length);
    chunk.offset = slot.request.offset - terms_.exported.offset;
    set(chunk);
  } else if (slot.request.command == kCmdBlockStatus) {
    BlockStatusChunk chunk;
    chunk.header = last_chunk(slot, kChunkBlockStatus, sizeof chunk + slot.data_length);
    chunk.context = kBaseAllocation;
    set(chunk);
  } else {
    SimpleReply reply;
    reply.magic = kSimpleReplyMagic;
    reply.error = kOk;
    reply.cookie = slot.request.cookie;
    set(reply);
  }
}

// With structured replies a text says what the matter is, and where it is known, the place.
void Connection::make_error_head(RequestSlot& slot) {
  slot.data_length = 0;
  uint8_t* end = slot.head.data();
  const auto append = [&end](const void* bytes, size_t length) {
    std::memcpy(end, bytes, length);
    end += length;
  };
  if (!terms_.structured) {
    SimpleReply reply;
    reply.magic = kSimpleReplyMagic;
    reply.error = slot.error;
    reply.cookie = slot.request.cookie;
    append(&reply, sizeof reply);
  } else {
    const std::string_view text = describe(static_cast<ErrorCode>(slot.error));
    const bool placed = slot.failed_at != RequestSlot::kNowhere;
    const Be64 place(slot.failed_at - terms_.exported.offset);
    ErrorChunk chunk;
    chunk.header = last_chunk(slot, placed ? kChunkErrorOffset : kChunkError,
                              sizeof chunk + text.size() + (placed ? sizeof place : 0));
    chunk.error = slot.error;
    chunk.message_length = static_cast<uint16_t>(text.size());
    append(&chunk, sizeof chunk);
    append(text.data(), text.size());
    if (placed) append(&place, sizeof place);
  }
  slot.head_length = static_cast<uint16_t>(end - slot.head.data());
}

void Connection::fail_request(uint16_t index, ErrorCode error, uint64_t offset) {
  RequestSlot& slot = slots_[index];
  if (slot.error != kOk || slot.sent) return;
  // A simple reply said that all is well and its data are on their way: only the end of the connection
  // can tell the client otherwise ("Simple reply message").
  if (slot.replied && !slot.fragments) return drop_later("a READ failed after its reply had begun");
  slot.error = error;
  slot.failed_at = offset;
  slot.issued = true;
  if (!slot.replied) return;
  slot.parts_before_failure = slot.parts_ready;
  make_error_head(slot);
  statistics_.errors.add();
}

void Connection::count_reply(const RequestSlot& slot) {
  if (slot.error != kOk) return statistics_.errors.add();
  // The lane's clock goes back when it is set by the kernel's.
  const uint64_t taken = now_ > slot.started ? now_ - slot.started : 0;
  switch (slot.request.command) {
    case kCmdRead:
      statistics_.reads.add();
      statistics_.bytes_read.add(slot.request.length);
      statistics_.read_latency.add(taken);
      break;
    case kCmdWrite:
      statistics_.writes.add();
      statistics_.bytes_written.add(slot.request.length);
      statistics_.write_latency.add(taken);
      break;
    case kCmdFlush:
      statistics_.flushes.add();
      break;
    case kCmdTrim:
      statistics_.trims.add();
      break;
    case kCmdCache:
      statistics_.caches.add();
      break;
    case kCmdBlockStatus:
      statistics_.block_statuses.add();
      break;
    default:
      statistics_.write_zeroes.add();
  }
}

void Connection::release_if_done(uint16_t index) {
  RequestSlot& slot = slots_[index];
  RDMAKIT_INVARIANT(slot.used, "slot %u", index);
  if (!slot.sent || slot.outstanding > 0 || slot.queued) return;
  for (uint16_t i = 0; i < slot.window; i++) free_chunks_.push(slot.chunk[i]);
  if (slot.memory != nullptr) unpin(slot.buffer);
  slot.used = false;
  free_slots_.push(index);
  statistics_.in_flight.set(kRequests - free_slots_.size());
}

void Connection::time_output(bool moved) {
  if (!output_blocked_) {
    output_deadline_ = 0;
  } else if (moved || output_deadline_ == 0) {
    output_deadline_ = now_ + terms_.stall;
  } else if (now_ >= output_deadline_) {
    drop_later("the client does not take its answers");
  }
}

bool Connection::send(uint64_t now) {
  if (!is_open()) return false;
  now_ = now;
  bool moved = device_ != nullptr && (!answered_.empty() || device_->pending()) && commit_to_device();
  if (!replies_.empty()) {
    const uint64_t before = replies_.bytes_sent();
    const auto status = replies_.send(socket_.get(), [this](uint16_t index) {
      slots_[index].sent = true;
      release_if_done(index);
    });
    moved = replies_.bytes_sent() != before;
    output_blocked_ = status == ReplyQueue::Status::blocked;
    if (status == ReplyQueue::Status::failed) drop_later("connection reset");
    if (terms_.stall != 0) time_output(moved);
  }
  if (drop_reason_ != nullptr) {
    drop(drop_reason_);
    return true;
  }
  if (linger_deadline_ != 0 && (quiet() || now >= linger_deadline_)) {
    drop(reason_);
    return true;
  }
  return moved;
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
