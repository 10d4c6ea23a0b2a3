// Counts the WRITEs that have begun in each 64 KiB of a volume, so that the keeper of a copy of its pages can
// tell that the copy is old. Spans far from each other share a counter, which at worst invalidates a good
// copy.
//
//   writer   claims pages, add(), posts the WRITE, settles, answers
//   keeper   mark = of(), finds the pages `written`, reads them
//            later: finds the pages `written`, and of() == mark: no WRITE was answered since
//
// A WRITE that the keeper's first look at the pages missed claims them after that look, so it counts after
// `mark`. A WRITE that was answered before the copy is used has counted by then. Other changes (TRIM, zeros,
// a lost server) leave pages that are not `written`, until the next WRITE.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "volume/limits.h"

namespace rdmakit::volume {

class WriteCounters {
 public:
  static constexpr uint64_t kSpan = kChunkPages;

  // ---- hot path ----
  // Between the claim of the pages and their WRITE.
  void add(uint64_t first, uint64_t count) {
    for (uint64_t span = first / kSpan; span <= (first + count - 1) / kSpan; span++)
      marks_[span % kMarks].fetch_add(1, std::memory_order_release);
  }
  // Before the state of the page is looked at.
  uint64_t of(uint64_t page) const { return marks_[page / kSpan % kMarks].load(std::memory_order_acquire); }

 private:
  static constexpr size_t kMarks = 4096;

  std::array<std::atomic<uint64_t>, kMarks> marks_{};
};

}  // namespace rdmakit::volume
