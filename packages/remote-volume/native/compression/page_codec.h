// The LZ4 of one lane: packs pages that it writes and unpacks those that it reads, where they are. Its
// scratch is allocated with it.
//
//   page    4096 bytes as the client has them
//   packed  their LZ4 form, in the beginning of the page's memory or of its slot
//   slot    4096 bytes of a replica: a page as it is or a packed one (see PageLengths), and whatever follows
//   that
#pragma once

#include <cstdint>
#include <memory>

#include "compression/compression_meter.h"
#include "rdma/operation.h"
#include "rdma/statistics.h"
#include "volume/volume.h"

namespace rdmakit::volume {

class PageCodec {
 public:
  PageCodec(Volume& volume, LaneStatistics& statistics);

  // How the first of the pages that a WRITE brings are posted: some as they are, or one packed.
  struct Fold {
    uint64_t pages;
    uint16_t packed;  // kRaw, or its bytes, which wait in the scratch until pack()
  };

  // ---- hot path ----
  // Of `pages` whole pages (not 0). Changes nothing but the scratch.
  Fold fold(const uint8_t* memory, uint64_t pages) {
    return meter_.compresses() ? try_fold(memory, pages) : Fold{pages, kRaw};
  }
  // Before a WRITE that holds its claim is chained: what its pages are from now on.
  void note(Operation& write, uint16_t packed);
  // It has succeeded: under its claim, and while its memory is as it was.
  void keep(const Operation& write) {
    if (marks_lost(write)) volume_.checksums().note(write.offset, write.length, write.memory);
  }
  // The WRITE has failed, and its pages are what they were before: under its claim.
  void forget(const Operation& write);
  // After the operation was chained, before it is posted, and before the next fold(): its memory gets the
  // bytes to send.
  void pack(const Operation& write);
  // For a READ that is over: its memory becomes pages. False: they are not the written ones, and are checked
  // under their claim.
  bool unpack(Operation& read);
  // The page of `packed` bytes at `memory`. False: they are no LZ4, and it holds anything now.
  bool unpack(uint8_t* memory, uint16_t packed);
  // Whether a slot holds the written page, under the claim of its page. The slot does not change.
  bool right_slot(uint64_t page, const uint8_t* slot);
  bool right_slots(const Operation& read);
  // Under the claim: slots become pages.
  void unpack_slots(const Operation& read);

  void turn(uint64_t now, bool under_way) {
    meter_.turn(now, under_way);
    if (statistics_.compressing.get() != meter_.compresses())
      statistics_.compressing.set(meter_.compresses());
  }
  void posted() { meter_.posted(); }

 private:
  // A page before a WRITE.
  struct Before {
    uint16_t length;
    uint32_t checksum;
  };
  static constexpr uint64_t kMostPages = kMaxWrite / kPage;

  // Packed pages are not read without their checksum.
  bool marks_lost(const Operation& write) const {
    return write.claimed_from == PageState::lost && lz4_ == nullptr;
  }
  Before* before(const Operation& write) const { return &before_[write.index * kMostPages]; }
  Fold try_fold(const uint8_t* memory, uint64_t pages);
  bool unpack_to(const uint8_t* packed, uint16_t bytes, uint8_t* page) const;

  Volume& volume_;
  LaneStatistics& statistics_;
  const Lz4* const lz4_;  // nullptr: no page is packed
  CompressionMeter meter_;
  std::unique_ptr<uint64_t[]> state_;
  std::unique_ptr<uint8_t[]> scratch_;  // of a page
  std::unique_ptr<Before[]> before_;    // kMostPages of each operation
};

}  // namespace rdmakit::volume
