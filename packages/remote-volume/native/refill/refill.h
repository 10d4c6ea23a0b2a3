// Fills one replica of a slab from a live one while the lanes continue, within the rate limit.
//
//   claim up to 16 written pages -> READ from a live replica (or the backup, when none is left) -> WRITE to
//   the filling one -> end the claim
//
// Pages never written are skipped; a claimed page is waited for. Volume::place and docs/page-service.md
// explain why the result is right.
#pragma once

#include <cstdint>
#include <vector>

#include "rdma/arena.h"
#include "rdma/index_stack.h"
#include "rdma/rdma_queue.h"
#include "rdma/statistics.h"
#include "refill/page_repair.h"
#include "volume/volume.h"

namespace rdmakit::volume {

// Written by the refill's thread alone.
struct RefillStatistics {
  Counter slabs;   // filled
  Counter bytes;   // copied
  Counter lost;    // pages that neither a live replica nor the backup had
  Counter active;  // 1 while a slab is being filled; the next three are about it
  Counter slab;
  Counter pages_done;  // looked at
  Counter pages;       // of the slab
};

class Refill {
 public:
  // A chunk under way holds 16 pages back from their writers, so few of them are.
  static constexpr size_t kChunks = 4;
  // Pieces of memory, one for each chunk. A server that has failed, or a file that hangs, may keep those of
  // all that were under way, and the next refill needs others.
  static constexpr size_t kBuffers = 2 * kChunks;

  struct Outcome {
    uint32_t slab = 0;
    uint32_t server = 0;
    const char* failure = nullptr;  // nullptr: the replica is live
  };

  // bytes_per_second 0: as fast as it goes.
  Refill(Volume& volume, const Arena& arena, RdmaQueue& rdma, uint64_t bytes_per_second,
         LaneStatistics& statistics, OperationListener& listener);

  bool busy() const { return busy_; }
  // Only when not busy. The slab's record names the server's replica as filling.
  void begin(uint32_t slab, uint32_t server);
  // Ends it as soon as nothing of it is under way but what was abandoned.
  void cancel(const char* reason) {
    if (busy_ && failure_ == nullptr) failure_ = reason;
  }
  // Starts what may be started. True: something moved.
  bool step(uint64_t now);
  // True once after the end of a refill.
  bool ended(Outcome& outcome);

  bool waits_for_page() const { return waits_for_page_ || repair_.waits_for_page(); }
  // When the rate limit lets it continue; 0: it does not wait for the rate limit.
  uint64_t next_step() const { return waits_for_rate_ ? allowed_at_ : 0; }
  const RefillStatistics& statistics() const { return statistics_; }

  // See OperationListener.
  void operation_decided(Operation& operation, bool succeeded);
  void operation_over(Operation& operation);

 private:
  bool start_chunk(uint64_t now);
  bool repair_chunks(uint64_t now);
  uint64_t held_by_backup(uint64_t claimed, uint32_t generation);
  void turn(Operation& operation, uint64_t now);
  void end_claim(Operation& operation);
  void finish();
  // Chunks whose outcome is not known.
  size_t under_way() const { return kBuffers - free_chunks_.size() - abandoned_; }

  Volume& volume_;
  const Arena& arena_;
  RdmaQueue& rdma_;
  const uint64_t rate_;
  RefillStatistics statistics_;
  IndexStack<kBuffers> free_chunks_;
  size_t abandoned_ = 0;            // chunks that are given up, and whose memory is not free yet
  std::vector<Operation*> turned_;  // READs that are over, to be written
  std::vector<Operation*> wrong_;   // READs that do not match their checksums
  PageRepair repair_;               // of one of them at a time

  bool busy_ = false;
  bool ended_ = false;
  uint32_t slab_ = 0;
  uint32_t server_ = 0;
  uint64_t cursor_ = 0;  // page
  uint64_t end_ = 0;
  const char* failure_ = nullptr;
  bool waits_for_page_ = false;
  bool waits_for_rate_ = false;
  uint64_t allowed_at_ = 0;  // ns
};

}  // namespace rdmakit::volume
