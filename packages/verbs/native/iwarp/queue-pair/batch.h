// FPDUs on their way into one sendmsg: headers, trailers and small payloads in a scratch buffer, large
// payloads where the application has them.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>

#include "iwarp/memory/memory_table.h"
#include "iwarp/wire/mpa.h"
#include "rdmakit/handle.h"

namespace rdmakit::iwarp {

class Batch {
 public:
  // Payload pieces up to this length are copied: an iovec entry costs the kernel about as much.
  static constexpr uint32_t kCopied = 512;
  // Data that were just read for the CRC should still be in the cache when the kernel copies them.
  static constexpr uint32_t kBytes = 128 * 1024;
  static constexpr uint32_t kPieces = 128;
  static constexpr uint32_t kScratch = 16 * 1024;

  bool empty() const { return count_ == 0; }
  // From now on FPDUs are sent with markers; the first of them begins at `position` (see markers.h). They
  // are copied for that. Throws std::bad_alloc.
  void use_markers(uint64_t position);
  // Whether one more FPDU with `pieces` payload pieces, `copied` bytes of them copied, still fits.
  bool fits(uint32_t pieces, uint32_t copied) const {
    return bytes_ < kBytes && count_ + pieces + 2 <= kPieces && used_ + kOverhead + copied <= kScratch;
  }

  // One FPDU: begin, then write and reference `ulpdu_length` bytes in all, then end. With `crc` false
  // the CRC field is sent as zero (RFC 5044: the field is always there).
  void begin_fpdu(uint32_t ulpdu_length, bool crc);
  // Room for `length` bytes, which the caller fills before the next call here.
  uint8_t* write(uint32_t length) {
    touch(length);
    uint8_t* at = scratch_.data() + used_;
    used_ += length;
    return at;
  }
  // `key` and `pin` are of the region; 0 and empty for memory that needs none.
  void reference(void* data, uint32_t length, uint32_t key, MemoryTable::Pin pin);
  // The length of the FPDU in the stream.
  [[nodiscard]] uint32_t end_fpdu();

  // For sendmsg: the rest to send.
  iovec* pieces() { return pieces_.data() + at_; }
  uint32_t piece_count() const { return count_ - at_; }
  // Pieces of what was lent are where it is now.
  void put_back(const LentBytes& lent);
  // `length` bytes are in the socket. Empties the batch after the last one.
  void advance(size_t length);

  // Pins do not outlive the system call: a peer that does not read must not hold up dereg_mr.
  void unpin();
  // Before the next try. False when a region is gone.
  bool pin_again(const ibv_pd* pd);

  void clear() {
    unpin();
    count_ = at_ = used_ = bytes_ = first_ = 0;
  }

 private:
  static constexpr uint32_t kOverhead = 64;  // length field, header or read request, pad, CRC

  void touch(uint32_t length);
  void sum_scratch();
  uint32_t mark_fpdu();

  std::array<iovec, kPieces> pieces_;
  std::array<uint32_t, kPieces> keys_;
  std::array<MemoryTable::Pin, kPieces> pins_;
  uint32_t count_ = 0;
  uint32_t at_ = 0;
  uint32_t used_ = 0;   // of scratch_
  uint32_t bytes_ = 0;  // in all pieces

  // State of the FPDU under construction
  bool crc_enabled_ = true;  // while markers are used: to be computed by mark_fpdu()
  uint32_t ulpdu_length_ = 0;
  uint32_t crc_ = 0;
  uint32_t summed_ = 0;  // scratch bytes before this are in crc_

  // With markers: whole FPDUs, of which those under way come to bytes_.
  std::unique_ptr<uint8_t[]> marked_;
  uint64_t position_ = 0;
  uint32_t first_ = 0;  // piece of the FPDU under construction

  alignas(64) std::array<uint8_t, kScratch> scratch_;
};

}  // namespace rdmakit::iwarp
