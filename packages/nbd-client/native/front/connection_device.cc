// A queue of a ublk device in the place of a socket: requests come without headers to parse and with their
// payload in place, and answers are a number.
//
//   buffer   the tag's  ->  pinned by its request, and by each operation that reads it
//                       ->  commit: the tag's again, or, where somebody is not done with it
//                           (--ack one, a server that hangs), a spare one takes its place
#include "front/connection.h"
#include "rdmakit/invariant.h"

namespace rdmakit::nbd {

void Connection::open(std::unique_ptr<DeviceQueue> device, const Terms& terms) {
  device_ = std::move(device);
  of_device_ = true;
  may_doze_ = true;
  arrived_.clear();
  answered_.clear();
  buffer_pins_.fill(0);
  retired_.fill(false);
  spare_buffers_.reset(kDeviceDepth);
  ended_tags_ = 0;
  free_chunks_.reset(kOutputChunks - Arena::kDeviceOutputChunks);
  ahead_.share_chunks(false);
  begin_anew(terms);
  for (uint16_t tag = 0; tag < kDeviceDepth; tag++) {
    tag_buffer_[tag] = tag;
    device_->fetch(tag, arena_.device_buffer(tag));
  }
  if (!device_->enter()) {
    drop("io_uring_enter(2) failed");
  } else if (!device_->map()) {
    drop("the requests of the ublk device cannot be mapped");
  }
}

// ---- hot path begins: no allocation, no log, no lock, no system call but io_uring_enter ----

bool Connection::receive_from_device(bool waits) {
  if (!device_->ready() && !device_->enter(waits ? kDoze : 0)) {
    drop_later("io_uring_enter(2) failed");
    return true;
  }
  bool moved = false;
  uint16_t tag;
  int32_t result;
  while (device_->take(tag, result)) {
    moved = true;
    if (tag >= kDeviceDepth) {
      drop_later("the ublk driver named a tag that there is not");
    } else if (result == UBLK_IO_RES_OK) {
      arrived_.push(tag);
    } else if (result != UBLK_IO_RES_ABORT) {
      drop_later("the ublk driver refused a command");
    } else if (++ended_tags_ == kDeviceDepth) {
      // Not before all that was asked is answered.
      drop_later("the device was stopped");
    }
  }
  more_input_ = false;
  return moved;
}

bool Connection::begin_from_device() {
  // What has come to one that yields is for whoever serves the queue next.
  if (yielding_ || arrived_.empty() || free_slots_.size() == 0) return false;
  // As in begin_request().
  if (rdma_.available() < kReservedOperations + 3) return false;
  const uint16_t tag = arrived_.front();
  arrived_.pop();
  const ublksrv_io_desc& from = device_->request(tag);
  Request request{0, 0, tag, from.start_sector << 9, from.nr_sectors << 9};
  bool known = from.start_sector >> 55 == 0 && from.nr_sectors >> 23 == 0;
  switch (ublksrv_get_op(&from)) {
    case UBLK_IO_OP_READ:
      request.command = kCmdRead;
      known &= request.length <= kDeviceRequest;
      break;
    case UBLK_IO_OP_WRITE:
      request.command = kCmdWrite;
      known &= request.length <= kDeviceRequest;
      break;
    case UBLK_IO_OP_DISCARD:
      request.command = kCmdTrim;
      break;
    case UBLK_IO_OP_WRITE_ZEROES:
      request.command = kCmdWriteZeroes;
      if ((ublksrv_get_flags(&from) & (UBLK_IO_F_NOUNMAP >> 8)) != 0) request.flags = kCmdFlagNoHole;
      break;
    case UBLK_IO_OP_FLUSH:
      request.command = kCmdFlush;
      break;
    default:
      known = false;
  }
  const uint16_t index = begin(request);
  RequestSlot& slot = slots_[index];
  slot.buffer = tag_buffer_[tag];
  slot.memory = arena_.device_buffer(slot.buffer);
  buffer_pins_[slot.buffer]++;
  if (!known) slot.error = kEinval;
  if (slot.error != kOk || request.command != kCmdWrite) {
    begin_without_payload(index);
    return true;
  }
  Operation& operation = rdma_.take(Operation::Kind::write);
  operation.request = index;
  operation.chunk = slot.buffer;
  pin_again(slot.buffer);
  operation.offset = slot.request.offset;
  operation.length = request.length;
  operation.memory = slot.memory;
  slot.outstanding++;
  slot.received = slot.issued = true;
  start(operation);
  return true;
}

void Connection::pin_again(uint16_t chunk) {
  if (!of_device_) return input_.pin_again(chunk);
  buffer_pins_[chunk]++;
}

void Connection::unpin(uint16_t chunk) {
  if (!of_device_) return input_.unpin(chunk);
  RDMAKIT_INVARIANT(buffer_pins_[chunk] > 0, "buffer %u is not pinned", chunk);
  if (--buffer_pins_[chunk] > 0 || !retired_[chunk]) return;
  retired_[chunk] = false;
  spare_buffers_.push(chunk);
}

// A buffer that only its request has is free with the answer. Else a spare one is needed, and where there is
// none the answer waits.
bool Connection::commit_to_device() {
  bool moved = false;
  for (size_t left = answered_.size(); left > 0; left--) {
    const uint16_t index = answered_.front();
    answered_.pop();
    RequestSlot& slot = slots_[index];
    const auto tag = static_cast<uint16_t>(slot.request.cookie);
    const bool done = slot.outstanding == 0 && !slot.queued && buffer_pins_[slot.buffer] == 1;
    if (!done) {
      if (spare_buffers_.empty()) {
        answered_.push(index);
        continue;
      }
      retired_[slot.buffer] = true;
      tag_buffer_[tag] = spare_buffers_.pop();
    }
    const bool carries = slot.request.command == kCmdRead || slot.request.command == kCmdWrite;
    const auto result = slot.error != kOk ? -static_cast<int32_t>(slot.error)
                                          : static_cast<int32_t>(carries ? slot.request.length : 0);
    device_->commit(tag, result, arena_.device_buffer(tag_buffer_[tag]));
    slot.sent = true;
    release_if_done(index);
    moved = true;
  }
  if (!moved && !device_->pending()) return false;
  if (!device_->enter()) drop_later("io_uring_enter(2) failed");
  more_input_ = device_->ready();
  return true;
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
