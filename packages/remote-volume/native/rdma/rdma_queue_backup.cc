// The local backup's part in the operations of a lane: it is one more part of a WRITE whose outcome depends
// on it, and the only part of a READ that no replica can serve.
#include "rdma/rdma_queue.h"

namespace rdmakit::volume {

// ---- hot path begins: no allocation, no log, no lock, no system call ----

BackupPort::Admission RdmaQueue::admit(const SlabPlace& place, uint64_t offset, uint64_t bytes) const {
  const bool live = this->live(place) != nullptr;
  if (!live && !backed_up()) return BackupPort::Admission::refused;
  if (!needs_backup(place)) return BackupPort::Admission::yes;
  const BackupPort::Admission admission = backup_->admit(offset, bytes);
  if (admission == BackupPort::Admission::wait) backup_->need();
  // A part of a page that the file does not have: the replicas have it, and the catch-up brings the page.
  if (live && admission == BackupPort::Admission::refused) return BackupPort::Admission::yes;
  return admission;
}

// The WRITE is chained to its servers and not posted yet.
void RdmaQueue::back_up(Operation& operation, bool live) {
  backup_->offer(operation);
  if (live) {
    if (acknowledge_ != Acknowledge::backup || !backup_->keep_offered(operation)) return;
    operation.parts++;
    operation.awaited++;
  } else if (operation.parts == 0) {
    // Else the replicas that are being filled have it first, and then decide() asks.
    operation.packed = kRaw;  // nor will it be
    keep(operation);
  }
}

// No live replica has the WRITE. True: its outcome hangs on the backup now.
bool RdmaQueue::keep(Operation& operation) {
  if (backup_ == nullptr || operation.reads()) return false;
  // The file takes pages as they are. A device that still reads this memory sends it to a server that has
  // failed.
  if (operation.packed != kRaw) codec_.unpack(operation.memory, operation.packed);
  operation.packed = kRaw;
  switch (backup_->keep(operation)) {
    case BackupPort::Kept::later:
      operation.parts++;
      operation.awaited++;
      return true;
    case BackupPort::Kept::now:
      operation.kept = operation.backed = true;
      return false;
    case BackupPort::Kept::no:
      break;
  }
  return false;
}

// No server was there to take them, so no completion will come.
void RdmaQueue::end_stranded() {
  for (const uint16_t index : stranded_) {
    Operation& operation = operations_[index];
    listener_.operation_decided(operation, operation.kept);
    listener_.operation_over(operation);
  }
  stranded_.clear();
}

void RdmaQueue::read_backup(Operation& operation) {
  begin(operation);
  operation.packed = kRaw;  // the file has pages as they are
  operation.parts = operation.awaited = 1;
  backup_->read(operation);
}

void RdmaQueue::backup_over(uint16_t index, bool succeeded) {
  Operation& operation = operations_[index];
  if (!operation.abandoned || !operation.reads()) {
    operation.awaited--;
    operation.backed |= succeeded;
    operation.kept = still_kept(operation);
    if (operation.awaited == 0) listener_.operation_decided(operation, operation.kept);
  }
  if (--operation.parts == 0) listener_.operation_over(operation);
}

void RdmaQueue::backup_abandoned(uint16_t index) {
  Operation& operation = operations_[index];
  operation.abandoned = true;
  operation.awaited--;
  listener_.operation_decided(operation, false);
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
