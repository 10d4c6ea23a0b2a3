#include "front/ublk-queue/ublk_queue.h"

#include <utility>

#include "front/volume_request.h"

namespace rdmakit::nbd {

void UblkQueue::open(std::unique_ptr<DeviceQueue> device, const Terms& terms) {
  terms_ = terms;
  device_ = std::move(device);
  requests_.open(kTakenChunks, true);
  arrived_.clear();
  retired_.fill(false);
  spare_buffers_.reset(kDeviceDepth);
  ended_tags_ = 0;
  more_input_ = yielding_ = false;
  failure_ = nullptr;
  for (uint16_t tag = 0; tag < kDeviceDepth; tag++) {
    tag_buffer_[tag] = tag;
    device_->fetch(tag, buffer(tag));
  }
  if (!device_->enter()) {
    fail("io_uring_enter(2) failed");
  } else if (!device_->map()) {
    fail("the requests of the ublk device cannot be mapped");
  }
}

// ---- hot path begins: no allocation, no log, no lock, no system call but io_uring_enter ----

bool UblkQueue::receive(uint64_t wait) {
  if (!device_->ready() && !device_->enter(wait)) {
    fail("io_uring_enter(2) failed");
    return true;
  }
  bool moved = false;
  uint16_t tag;
  int32_t result;
  while (device_->take(tag, result)) {
    moved = true;
    if (tag >= kDeviceDepth) {
      fail("the ublk driver named a tag that there is not");
    } else if (result == UBLK_IO_RES_OK) {
      arrived_.push(tag);
    } else if (result != UBLK_IO_RES_ABORT) {
      fail("the ublk driver refused a command");
    } else if (++ended_tags_ == kDeviceDepth) {
      // Not before all that was asked is answered.
      fail("the device was stopped");
    }
  }
  more_input_ = false;
  return moved;
}

bool UblkQueue::take() {
  bool moved = false;
  while (failure_ == nullptr && begin()) moved = true;
  return moved;
}

bool UblkQueue::begin() {
  // Requests that arrive while it yields are left to the next process that serves the queue.
  if (yielding_ || arrived_.empty() || !requests_.has_room()) return false;
  const uint16_t tag = arrived_.front();
  arrived_.pop();
  const ublksrv_io_desc& from = device_->request(tag);
  const uint16_t index = tag_buffer_[tag];
  NbdRequest request{0, 0, tag, from.start_sector << 9, from.nr_sectors << 9};
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
  const auto error = static_cast<int>(known ? validate_request(request, terms_) : kEinval);
  volume::Request asked = to_volume(request, terms_, error);
  asked.memory = buffer(index);
  asked.buffer = index;
  const uint16_t slot = requests_.begin(asked, error);
  slot_tag_[slot] = tag;
  if (asked.kind != RequestKind::write) return true;
  if (error == 0) {
    requests_.pins().pin(index);
    requests_.write(slot, asked.offset, asked.memory, asked.length, index);
  }
  requests_.end_payload(slot);
  return true;
}

// A buffer that only its request has is free with the answer. Else a spare one is needed, and where there is
// none the answer waits.
bool UblkQueue::send() {
  IndexQueue<kRequests>& answered = requests_.answered();
  if (answered.empty() && !device_->pending()) return false;
  bool moved = false;
  for (size_t left = answered.size(); left > 0; left--) {
    const uint16_t index = answered.front();
    answered.pop();
    const RequestSlot& slot = requests_.slot(index);
    const uint16_t tag = slot_tag_[index];
    if (!requests_.has_buffer_alone(slot)) {
      if (spare_buffers_.empty()) reclaim_buffers();
      if (spare_buffers_.empty()) {
        answered.push(index);
        continue;
      }
      retired_[slot.request.buffer] = true;
      tag_buffer_[tag] = spare_buffers_.pop();
    }
    const bool carries = slot.is_read() || slot.request.kind == RequestKind::write;
    const auto result =
        slot.error != 0 ? -slot.error : static_cast<int32_t>(carries ? slot.request.length : 0);
    device_->commit(tag, result, buffer(tag_buffer_[tag]));
    requests_.sent(index);
    moved = true;
  }
  if (!moved && !device_->pending()) return false;
  if (!device_->enter()) fail("io_uring_enter(2) failed");
  more_input_ = device_->ready();
  return true;
}

void UblkQueue::reclaim_buffers() {
  for (uint16_t i = 0; i < kBuffers; i++) {
    if (!retired_[i] || requests_.pins().count(i) > 0) continue;
    retired_[i] = false;
    spare_buffers_.push(i);
  }
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
