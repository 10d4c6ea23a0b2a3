// A lane's end of the local backup: rings to and from the backup's thread, and the buffers in which pages
// wait for it. Neither side ever waits for the other.
//
//   offer   marks the pages of a WRITE under its claim, and queues what can be queued
//   keep    makes the outcome of a WRITE depend on the file: it is the only copy, or --ack backup
//   read    from the file into the lane's memory
//
// A kept WRITE has each of its pages in the queue, or waits for that: for a buffer, or until an older version
// of a page has left the queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "backup/backup_map.h"
#include "base/clock.h"
#include "base/spsc_ring.h"
#include "rdma/index_stack.h"
#include "rdma/operation.h"
#include "rdma/statistics.h"

namespace rdmakit::volume {

class Backup;

// Pages that wait in a port at most. A WRITE that is kept needs a buffer for each page of the
// longest operation.
inline constexpr uint32_t kMaxBackupBuffers = 4096;
inline constexpr uint32_t kMinBackupBuffers = 2 * (kMaxWrite / kPage);

// A page, or a part of one, on its way to the file.
struct BackupItem {
  uint64_t page;
  uint32_t ticket;  // serial number
  uint16_t operation;
  uint16_t buffer;
  uint16_t begin;  // in the page
  uint16_t length;
};

struct BackupRead {
  uint64_t offset;
  uint8_t* memory;
  uint32_t length;
  uint16_t operation;
};

// The owner of operations that wait for the backup; called on the lane's thread.
class BackupListener {
 public:
  // A WRITE that was kept, or a READ, has its outcome, and its memory is free.
  virtual void backup_over(uint16_t operation, bool succeeded) = 0;
  // The READ will not succeed, but its memory is not free yet: backup_over follows.
  virtual void backup_abandoned(uint16_t operation) = 0;

 protected:
  ~BackupListener() = default;
};

// Written by the lane's thread alone.
struct BackupPortStatistics {
  Counter missed;  // pages of WRITEs that were not queued
};

class BackupPort {
 public:
  enum class Admission { yes, wait, refused };
  enum class Kept { no, later, now };

  // `buffers` pages of `memory`, page-aligned.
  BackupPort(Backup& backup, uint8_t* memory, uint32_t buffers);

  // ---- control, before the lane starts ----
  void on_wake(std::function<void()> wake) { wake_ = std::move(wake); }

  // ---- hot path: on the lane's thread ----
  bool working() const;
  const BackupMap& map() const;
  const Backup& backup() const { return backup_; }
  // Whether a WRITE may be kept: under its claim. `refused`: a part of a page that the file does not have.
  Admission admit(uint64_t offset, uint64_t bytes) const;
  // Buffers for `pages` pages. Once it was false it stays so until next_round(): first come, first served.
  bool room(uint64_t pages);
  void next_round() { crowded_ = false; }
  // Somebody waits for the file though nothing of his is outstanding: for a page to leave the queue, or for
  // room in it. Said again at each try.
  void need() { needed_ = true; }
  // An operation restarts; called before any of the following.
  void begin(const Operation& operation);
  // Before the WRITE is posted anywhere.
  void offer(const Operation& operation);
  // The catch-up's, from before offer() until nothing is queued(): see BackupMap.
  void begin_bringing();
  void end_bringing();
  // After offer(): the outcome depends on its queued pages. False: there were none.
  bool keep_offered(const Operation& operation);
  // No other copy has the WRITE. `now`: the file has it already. `no`: the file cannot have it.
  Kept keep(const Operation& operation);
  void read(const Operation& operation);
  // READs, and WRITEs that are kept.
  uint32_t outstanding() const { return outstanding_; }
  // Reports finished operations, and queues pages that had to wait. Returns how many moved.
  int poll(BackupListener& listener, const Operation* operations);
  // Wakes the backup's thread if there is something for it.
  void flush();
  // Before the lane sleeps: from now on it is woken. Poll once more after it.
  void arm();
  // The lane must check again soon: a page for which an operation waits causes no wake-up.
  bool waits() const { return !waiting_.empty(); }
  // How long (ns) a lane with something outstanding may sleep: only lanes look whether the file hangs.
  uint64_t look_interval() const { return looks_ % kLastLooks != 0 ? kLookInterval : kSecond; }
  const BackupPortStatistics& statistics() const { return statistics_; }

  // ---- the backup's thread ----
  bool pop(BackupItem& item) { return items_.pop(item); }
  bool pop(BackupRead& read) { return reads_.pop(read); }
  bool empty() const { return items_.empty() && reads_.empty(); }
  uint8_t* buffer(uint16_t index) const { return memory_ + size_t{index} * kPage; }
  void finish(const BackupItem& item, bool succeeded);
  void finish(const BackupRead& read, bool succeeded);
  void wake_lane();
  // At rest, when the lane has ended and nothing is in the rings: all is over, and no buffer is missing.
  void check_rest() const;

  // Any thread.
  uint64_t queued() const {
    const uint64_t finished = finished_.get();
    const uint64_t put = put_.get();
    return put > finished ? put - finished : 0;
  }

 private:
  // An operation's state in the backup.
  struct Ticket {
    uint32_t serial = 0;
    uint16_t left = 0;      // pages in the queue
    bool offered = false;   // it is a WRITE of the volume
    bool complete = false;  // every page was queued
    bool good = true;       // none failed
    bool kept = false;      // its outcome hangs on it
    bool asked = false;     // keep() was called
    bool reading = false;
    bool abandoned = false;
  };
  struct Done {
    uint32_t ticket;
    uint16_t operation;
    uint16_t buffer;  // kNone: a READ
    bool succeeded;
  };

  // The last looks at a system call that is overdue, and the time (ns) from one to the next at least.
  static constexpr uint32_t kLastLooks = 4;
  static constexpr uint64_t kLookInterval = 50 * kMillisecond;

  void put(const Operation& operation);
  int put_waiting(BackupListener& listener, const Operation* operations);
  void end(uint16_t operation, bool succeeded, BackupListener& listener);
  bool hangs();
  void give_up(BackupListener& listener);

  Backup& backup_;
  uint8_t* const memory_;
  const uint32_t buffers_;
  std::function<void()> wake_;
  std::vector<uint16_t> free_;     // buffers; reserved up front
  std::vector<Ticket> tickets_;    // by operation
  std::vector<uint16_t> waiting_;  // operations that are kept and not yet queued; reserved up front
  uint32_t outstanding_ = 0;
  bool crowded_ = false;
  bool needed_ = false;  // since the last poll
  bool pushed_ = false;
  uint64_t overdue_since_ = 0;  // of the call that was looked at last; 0: that was in time
  uint64_t next_look_ = 0;      // ns
  uint32_t looks_ = 0;          // at that call
  BackupPortStatistics statistics_;
  Counter put_;       // pages, by the lane, before they are in the ring
  Counter finished_;  // of them, by the backup's thread

  std::atomic<bool> wants_wake_{false};
  SpscRing<BackupItem, kMaxBackupBuffers> items_;
  SpscRing<BackupRead, kOperations> reads_;
  SpscRing<Done, 2 * kMaxBackupBuffers> done_;
};

}  // namespace rdmakit::volume
