#include "iwarp/queue-pair/batch.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/crc32c.h"
#include "iwarp/wire/byte_order.h"
#include "iwarp/wire/markers.h"

namespace rdmakit::iwarp {

void Batch::use_markers(uint64_t position) {
  // Before the last FPDU that fits there are less than kBytes; the length of each is 16 bits.
  marked_ = std::make_unique_for_overwrite<uint8_t[]>(kBytes + marked_length(0, fpdu_length(UINT16_MAX)));
  position_ = position;
}

// Hot path: no allocation, no lock, no system call.

// Adds scratch bytes at used_ to the pieces: to the last one when they follow it.
void Batch::touch(uint32_t length) {
  uint8_t* at = scratch_.data() + used_;
  bytes_ += length;
  if (count_ > std::max(at_, first_)) {
    iovec& last = pieces_[count_ - 1];
    if (keys_[count_ - 1] == 0 && static_cast<uint8_t*>(last.iov_base) + last.iov_len == at) {
      last.iov_len += length;
      return;
    }
  }
  pieces_[count_] = {at, length};
  keys_[count_++] = 0;
}

void Batch::sum_scratch() {
  if (crc_enabled_ && !marked_) crc_ = crc32c_extend(crc_, scratch_.data() + summed_, used_ - summed_);
  summed_ = used_;
}

void Batch::begin_fpdu(uint32_t ulpdu_length, bool crc) {
  crc_enabled_ = crc;
  ulpdu_length_ = ulpdu_length;
  crc_ = kCrcSeed;
  summed_ = used_;
  if (marked_) first_ = count_;
  store_be16(write(kFpduLengthField), static_cast<uint16_t>(ulpdu_length));
}

void Batch::reference(void* data, uint32_t length, uint32_t key, MemoryTable::Pin pin) {
  sum_scratch();
  if (crc_enabled_ && !marked_) crc_ = crc32c_extend(crc_, data, length);
  pieces_[count_] = {data, length};
  keys_[count_] = key;
  pins_[count_++] = std::move(pin);
  bytes_ += length;
}

uint32_t Batch::end_fpdu() {
  const uint32_t pad = static_cast<uint32_t>(fpdu_pad(ulpdu_length_));
  if (pad > 0) std::memset(write(pad), 0, pad);
  sum_scratch();
  store_crc(write(kFpduCrcLength), crc_enabled_ ? crc32c_finish(crc_) : 0);
  if (marked_) [[unlikely]]
    return mark_fpdu();
  return static_cast<uint32_t>(fpdu_length(ulpdu_length_));
}

// Copies the FPDU that has just been put together behind those that have their markers already. The CRC
// covers the markers too (RFC 5044 §4.4).
uint32_t Batch::mark_fpdu() {
  const uint32_t plain = static_cast<uint32_t>(fpdu_length(ulpdu_length_));
  const uint32_t before = bytes_ - plain;
  uint8_t* fpdu = marked_.get() + before;
  const std::span<const iovec> pieces(pieces_.data() + first_, count_ - first_);
  const uint32_t length = static_cast<uint32_t>(insert_markers(fpdu, position_, pieces));
  const size_t checked = length - kFpduCrcLength;
  if (crc_enabled_) store_crc(fpdu + checked, crc32c(fpdu, checked));
  for (uint32_t i = first_; i < count_; i++) pins_[i].release();
  count_ = first_;
  used_ = 0;
  bytes_ = before + length;
  position_ += length;
  if (count_ > at_) {
    pieces_[count_ - 1].iov_len += length;
  } else {
    pieces_[count_] = {fpdu, length};
    keys_[count_++] = 0;
  }
  return length;
}

void Batch::put_back(const LentBytes& lent) {
  for (uint32_t i = at_; i < count_; i++) {
    const uint64_t offset =
        reinterpret_cast<uint64_t>(pieces_[i].iov_base) - reinterpret_cast<uint64_t>(lent.data);
    if (offset < lent.length) pieces_[i].iov_base = reinterpret_cast<uint8_t*>(lent.address) + offset;
  }
}

void Batch::advance(size_t length) {
  while (at_ < count_) {
    iovec& piece = pieces_[at_];
    if (length < piece.iov_len) {
      piece.iov_base = static_cast<uint8_t*>(piece.iov_base) + length;
      piece.iov_len -= length;
      return;
    }
    length -= piece.iov_len;
    at_++;
  }
  clear();
}

void Batch::unpin() {
  for (uint32_t i = 0; i < count_; i++) pins_[i].release();
}

bool Batch::pin_again(const ibv_pd* pd) {
  for (uint32_t i = at_; i < count_; i++) {
    if (keys_[i] == 0) continue;
    MemoryTable::Fault fault;
    pins_[i] = MemoryTable::instance().pin(keys_[i], pd, 0, reinterpret_cast<uint64_t>(pieces_[i].iov_base),
                                           pieces_[i].iov_len, fault);
    if (!pins_[i]) return false;
  }
  return true;
}
// End of hot path.

}  // namespace rdmakit::iwarp
