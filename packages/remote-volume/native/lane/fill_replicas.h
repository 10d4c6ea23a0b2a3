// The work of the one lane that serves no client: it fills replicas, and the backup with what that has
// missed.
#pragma once

#include <cstdint>
#include <optional>

#include "backup/backup_catch_up.h"
#include "lane/lane.h"
#include "refill/refill.h"

namespace rdmakit::volume {

class FillReplicas {
 public:
  static constexpr bool kServes = false;

  FillReplicas(Volume& volume, const Arena& arena, RdmaQueue& rdma, LaneStatistics& statistics,
               OperationListener& listener, const LaneOptions& options)
      : rdma_(rdma), refill_(volume, arena, rdma, options.refill_rate, statistics, listener) {
    if (options.backup != nullptr)
      catch_up_.emplace(volume, arena, rdma, options.refill_rate, statistics, listener);
  }

  Refill& refill() { return refill_; }
  const Refill& refill() const { return refill_; }
  // nullptr: there is no backup.
  const BackupCatchUp* catch_up() const { return catch_up_ ? &*catch_up_ : nullptr; }

  void announce_end() {
    refill_.cancel("the engine was closed");
    if (catch_up_) catch_up_->cancel();
  }
  bool may_end(bool, bool) { return !refill_.busy() && (!catch_up_ || !catch_up_->busy()); }

  // ---- hot path ----
  bool finish(uint64_t now) {
    bool moved = refill_.step(now);
    if (catch_up_) moved |= catch_up_->step(now);
    rdma_.flush(now);
    return moved;
  }
  void operation_acknowledged(Operation&, uint64_t) {}
  void operation_decided(Operation& operation, bool succeeded, uint64_t) {
    if (catch_up_ && BackupCatchUp::owns(operation)) {
      catch_up_->operation_decided(operation, succeeded);
    } else {
      refill_.operation_decided(operation, succeeded);
    }
  }
  void operation_over(Operation& operation) {
    if (catch_up_ && BackupCatchUp::owns(operation)) {
      catch_up_->operation_over(operation);
    } else {
      refill_.operation_over(operation);
    }
  }
  bool may_move(const Operation&) const { return false; }

  bool waits_for_page() const { return refill_.waits_for_page(); }
  template <typename Consider>
  void deadlines(Consider consider) const {
    consider(refill_.next_step());
    if (catch_up_) consider(catch_up_->next_step());
  }

 private:
  RdmaQueue& rdma_;
  Refill refill_;
  std::optional<BackupCatchUp> catch_up_;
};

}  // namespace rdmakit::volume
