// READs whose bytes do not match their checksum. Under the claim of each such page, so that no WRITE is in
// between:
//
//   inspect: READ it from one live replica after the other, and then from the local backup, until one is
//   right repair_write: WRITE the right bytes to those that were wrong none is right: the page is lost, EIO
//   from now on, and reported once
//
// Most often nothing was wrong at all: a WRITE overtook the READ, and the first replica is right.
// Whole slots are read and written, so that nothing is packed here; see PageCodec.
// One READ at a time; the memory is the READ's own.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "rdma/rdma_queue.h"
#include "rdma/statistics.h"
#include "volume/volume.h"

namespace rdmakit::volume {

class PageRepair {
 public:
  // `claimed`: the caller holds the claim of the pages of its READs, and ends it, and their memory holds
  // slots (see PageCodec) before and after.
  PageRepair(Volume& volume, RdmaQueue& rdma, LaneStatistics& statistics, OperationListener& listener,
             bool claimed)
      : volume_(volume), rdma_(rdma), statistics_(statistics), listener_(listener), given_claims_(claimed) {}

  bool busy() const { return operation_ != nullptr; }
  bool owns(const Operation& operation) const { return operation_ == &operation; }
  // Continues, with the last of `wrong` when it is not busy: READs that are over. `cancel`: see cancel().
  // Returns the READ that is at its end, if one is. `moved`: set when something moved.
  Operation* next(std::vector<Operation*>& wrong, bool cancel, uint64_t now, bool& moved);
  // The data are not wanted any more: the repair ends when none of its operations is outstanding, and chains
  // no more.
  void cancel() { cancelled_ = true; }
  // After it was given up by operation_decided(): its end, too, is the caller's.
  void let_go() { operation_ = nullptr; }
  // The READ that ended last was given up by operation_decided().
  bool given_up() const { return given_up_; }
  // The READ that ended last was cancelled, or a page of it is lost.
  bool failed() const { return failed_; }
  // Bit i: its i-th page is lost. Of a READ of at most 32 pages.
  uint32_t lost() const { return lost_; }
  bool waits_for_page() const { return waits_for_page_; }

  // See OperationListener. decided(): true when the READ is given up: its claims are free and it is described
  // by its operation again, but its memory is not free yet.
  bool operation_decided(Operation& operation, bool succeeded);
  void operation_over(Operation& operation);

 private:
  enum class Stage : uint8_t { search, claim, inspect, repair_write, ended };

  void begin(Operation& read);
  bool advance(uint64_t now);
  bool claim();
  bool inspect(uint64_t now);
  bool inspect_backup();
  bool right();
  void write_right_bytes(uint64_t now);
  void aim(Operation::Kind kind);
  void give_page_up();
  void next_page(PageState to);
  void release(PageState to);
  void end();
  uint8_t* memory_of(uint64_t page) const { return memory_ + (page * kPage - offset_); }

  Volume& volume_;
  RdmaQueue& rdma_;
  LaneStatistics& statistics_;
  OperationListener& listener_;
  const bool given_claims_;

  Operation* operation_ = nullptr;
  uint64_t offset_ = 0;  // of the READ, as the next two
  uint32_t length_ = 0;
  uint8_t* memory_ = nullptr;
  bool cancelled_ = false;
  bool given_up_ = false;
  bool failed_ = false;
  uint32_t lost_ = 0;

  Stage stage_ = Stage::search;
  bool under_way_ = false;
  bool waits_for_page_ = false;
  uint64_t page_ = 0;
  uint64_t end_ = 0;
  bool held_ = false;        // the claim of the page
  uint16_t packed_ = 0;      // bytes of it in its slot
  uint32_t generation_ = 0;  // of its slab's place
  // Servers, not places in the record: that may change meanwhile.
  std::array<uint16_t, kMaxReplicas> inspected_{};
  std::array<uint16_t, kMaxReplicas> wrong_{};
  uint32_t inspected_count_ = 0;
  uint32_t wrong_count_ = 0;
  uint32_t repairs_ = 0;
  bool from_backup_ = false;   // the inspected copy is the backup's, the last one,
  bool backup_wrong_ = false;  // and it is wrong too
};

}  // namespace rdmakit::volume
