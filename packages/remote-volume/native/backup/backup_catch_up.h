// Copies to the backup the pages for which it had no room when they were written: on the refill lane, beside
// refills, while the lanes continue.
//
//   claim up to 16 written, stale pages -> READ from a live replica, and check -> put into the backup's
//   queue -> end the claim
#pragma once

#include <cstdint>
#include <vector>

#include "rdma/arena.h"
#include "rdma/index_stack.h"
#include "rdma/rdma_queue.h"
#include "refill/page_repair.h"
#include "refill/refill.h"
#include "volume/volume.h"

namespace rdmakit::volume {

class BackupCatchUp {
 public:
  // bytes_per_second 0: without a limit. rdma.backup() must exist.
  BackupCatchUp(Volume& volume, const Arena& arena, RdmaQueue& rdma, uint64_t bytes_per_second,
                LaneStatistics& statistics, OperationListener& listener);

  // Whether the operation is its own and not the refill's.
  static bool owns(const Operation& operation) { return operation.chunk >= Refill::kBuffers; }
  // Starts what may be started. True: something moved.
  bool step(uint64_t now);
  void cancel() { cancelled_ = true; }
  bool busy() const { return free_chunks_.size() < kChunks; }
  // When it must look again; 0: never.
  uint64_t next_step() const { return cancelled_ ? 0 : next_; }
  const Counter& pages() const { return pages_; }

  // See OperationListener.
  void operation_decided(Operation& operation, bool succeeded);
  void operation_over(Operation& operation);

 private:
  static constexpr size_t kChunks = 4;

  bool find_stale(uint64_t& page);
  bool start_chunk(uint64_t page, uint64_t now);
  bool repair_chunks(uint64_t now);
  void bring(Operation& operation);
  void end_bringing();
  void give_back(Operation& operation);

  Volume& volume_;
  const Arena& arena_;
  RdmaQueue& rdma_;
  const BackupMap& map_;
  const uint64_t rate_;
  Counter pages_;  // brought
  IndexStack<kChunks> free_chunks_;
  std::vector<Operation*> wrong_;  // READs that do not match their checksums
  PageRepair repair_;              // of one of them at a time
  bool cancelled_ = false;
  bool active_ = true;  // a pass over the volume is under way
  bool again_ = false;  // this pass left pages behind
  uint64_t seen_ = 0;   // Backup::missed() when it began
  uint64_t word_ = 0;   // of the maps, next to look at
  uint64_t next_ = 1;   // ns
  uint64_t allowed_at_ = 0;
};

}  // namespace rdmakit::volume
