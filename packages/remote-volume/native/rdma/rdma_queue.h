// The RDMA side of a lane: one completion queue, one queue pair per server, a fixed set of operations
// and of work requests, which are the parts of operations.
//
// rdma_queue.cc         connecting, failing, chaining, posting
// completions.cc        what comes back, deadlines, outcomes
// rdma_queue_backup.cc  the local backup as one more part of a WRITE, or the only one of a READ
//
// Posting: operations collect in a chain per server; flush() rings one doorbell per server.
//
// When is a WRITE done? On InfiniBand and RoCE its completion means that the responder has it, and a
// later READ on any queue pair sees it. On iWARP it means only that the local buffer may be reused: the
// bytes may still sit in a TCP socket (RFC 5040), die with the server unseen, or be
// overtaken by a READ on another lane's connection. There each chain that writes ends with a fence: an
// RDMA READ of 8 bytes. A READ request is processed only after everything before it on the stream was
// placed (RFC 5041: delivery in order), so its completion confirms all of them. It costs
// no extra round trip, for it travels with the writes.
//
// Deadlines: all operations have the same timeout, so the oldest one posted is the next to expire.
//
// A failed server: its queue pair is moved to error once; every operation of it ends with failure when
// its completion (or flush) arrives, never before: until then the device may touch the memory. The other
// replicas decide the outcome of the request at once (operation_decided); the memory is free later
// (operation_over). A READ that another replica can serve waits for its flush and moves there. If there is no
// other replica, an unanswered operation may restart at a server that comes back:
// docs/page-service/reconnect.md.
//
// Replicas: a WRITE goes to all replicas of a place, also to those that are being filled or are leaving. It
// succeeded when one that counts has it and each of the others has it or has failed, because a replica that
// missed a WRITE is never read again. Which of them count follows from the slab's record at the time of that
// decision, not when the WRITE was chained: see Volume::counts.
//
// Epochs: each part counts for the parity of the epoch that the lane saw when it was chained. When none of
// the last epoch is left, the lane acknowledges the new one: then none of its operations uses a place that
// was replaced before the epoch was raised. An epoch is raised only after all lanes acknowledged the last
// one, hence two counters do.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "backup/backup_port.h"
#include "compression/page_codec.h"
#include "rdma/index_stack.h"
#include "rdma/operation.h"
#include "rdma/statistics.h"
#include "rdma/work_request.h"
#include "rdmakit/handle.h"
#include "volume/volume.h"

namespace rdmakit::volume {

// The user of the queue. Called on the lane's thread, from poll(), flush() and fail(). It must not chain
// operations from inside a call.
class OperationListener {
 public:
  // A WRITE is with its first live replica, and others are under way. Only with Acknowledge::one.
  virtual void operation_acknowledged(Operation& operation) = 0;
  // Nothing that may still come changes the outcome; once for each operation. Its memory is not free yet.
  virtual void operation_decided(Operation& operation, bool succeeded) = 0;
  // The operation is over and its memory is free. It must give the operation back, or chain it again later.
  virtual void operation_over(Operation& operation) = 0;
  // The server of this READ has failed. True: another one may serve it when its flush has arrived.
  virtual bool may_move(const Operation& operation) = 0;
  // The server has just failed. Its operations follow one by one.
  virtual void server_failed(uint32_t server, const char* reason) = 0;
  // Not the queue's own: see PageRepair.
  virtual void page_wrong(const WrongPage& page) = 0;

 protected:
  ~OperationListener() = default;
};

// When a WRITE to several replicas may be answered: when all have it, or one, or all and the backup.
enum class Acknowledge : uint8_t { all, one, backup };

class RdmaQueue final : private BackupListener {
 public:
  // `backup`: nullptr without one.
  RdmaQueue(Volume& volume, LaneStatistics& statistics, OperationListener& listener, CqRef cq,
            uint64_t timeout_ns, Acknowledge acknowledge, uint8_t* scratch, BackupPort* backup);

  // ---- control, on the lane's thread ----
  // Moves the references in. EEXIST, EHOSTDOWN.
  int connect(uint32_t server, QpRef&& qp, MrRef&& mr);
  // Reason: a static or short-lived text, passed on to the listener. Idempotent.
  void fail(uint32_t server, const char* reason);
  // The server has failed, and another one shall get its index: the lane releases its queue pair when none of
  // its operations is outstanding. Until then no epoch is acknowledged.
  void disconnect(uint32_t server);
  // Returns the objects of a server that the lane has released: true for each. The lane's thread must not
  // destroy them.
  bool let_go(QpRef& qp, MrRef& mr);
  // The device is gone: nothing that is under way will be heard of.
  void fail_all(const char* reason);
  // Looks which servers others declared failed. First in each turn: the deadlines that a failure sets count
  // from `now`, and a lane that slept has an old one.
  void adopt_failures(uint64_t now);
  // Moves every queue pair with something outstanding to error.
  void abandon();
  // Only when nothing is outstanding, and never to be used again.
  void drop_resources();

  // ---- hot path ----
  // The volume is asked too: a READ that came after the answer to a WRITE must know whom that one missed.
  bool usable(uint32_t server) const { return links_[server].usable && !volume_.failed(server); }
  // The replica that a READ goes to; nullptr: there is none.
  const Replica* readable(const SlabPlace& place) const {
    if (const Replica* const replica = live(place); replica != nullptr) return replica;
    for (const Replica& each : place.all()) {
      if (each.leaving && usable(each.server)) return &each;
    }
    return nullptr;
  }
  // One that a WRITE needs; nullptr: there is none.
  const Replica* live(const SlabPlace& place) const {
    for (const Replica& each : place.all()) {
      if (each.live && usable(each.server)) return &each;
    }
    return nullptr;
  }
  // No server can serve a request for that place now, and one may soon.
  bool waits(const SlabPlace& place) const { return !backed_up() && volume_.waits_for(place); }
  size_t available() const { return free_.size(); }
  uint64_t timeout() const { return timeout_; }
  PageCodec& codec() { return codec_; }
  Operation& take(Operation::Kind kind);
  void give_back(Operation& operation);
  // Put the operation into the chain of one server, or of all. kind, memory, length, offset are set.
  void chain(Operation& operation, const Replica& replica, uint64_t now);
  // Needs a live replica, or admission to the backup.
  void chain_write(Operation& operation, const SlabPlace& place, uint64_t now);
  void flush(uint64_t now);
  // Completions handled.
  int poll();
  // Fails the servers of overdue operations. True: something ended.
  bool check_deadlines(uint64_t now);
  // 0: nothing is outstanding.
  uint64_t next_deadline() const {
    const uint64_t oldest = oldest_ == kNone ? 0 : std::max(work_requests_[oldest_].deadline, excused_until_);
    return oldest == 0 || reap_at_ == 0 ? std::max(oldest, reap_at_) : std::min(oldest, reap_at_);
  }
  uint32_t outstanding() const { return outstanding_; }
  bool lets_go() const { return leaving_ > 0; }
  // Before places are looked at in a turn. True: nothing of the last epoch is left.
  bool enter(uint64_t epoch) {
    epoch_ = epoch % 2;
    return in_flight_[1 - epoch_] == 0 && leaving_ == 0;
  }
  // ---- hot path: the local backup (rdma_queue_backup.cc) ----
  BackupPort* backup() const { return backup_; }
  bool backed_up() const { return backup_ != nullptr && backup_->working(); }
  // Whether a WRITE needs the backup: there is no live replica, or it is answered by the backup too.
  bool needs_backup(const SlabPlace& place) const {
    return backed_up() && (acknowledge_ == Acknowledge::backup || live(place) == nullptr);
  }
  // For the pages of a WRITE, before it claims them.
  bool has_room(const SlabPlace& place, uint64_t pages) {
    if (!needs_backup(place) || backup_->room(pages)) return true;
    backup_->need();
    return false;
  }
  // For a WRITE that has claimed its pages. `refused`: neither a replica nor the backup can take it.
  BackupPort::Admission admit(const SlabPlace& place, uint64_t offset, uint64_t bytes) const;
  void read_backup(Operation& operation);
  int poll_backup() { return backup_ == nullptr ? 0 : backup_->poll(*this, operations_.data()); }
  uint32_t outstanding_backup() const { return backup_ == nullptr ? 0 : backup_->outstanding(); }
  const ServerStatistics& statistics(uint32_t server) const { return server_statistics_[server]; }
  ibv_cq* cq() const { return cq_.get(); }

 private:
  struct Link {
    QpRef qp;
    MrRef mr;
    bool usable = false;  // connected and not failed
    bool fenced = false;  // completion is not placement (iWARP)
    bool dirty = false;   // in dirty_
    bool leaving = false;
    uint32_t serial = 0;  // in the ids of its work requests
    uint32_t outstanding = 0;
    uint64_t reap_at = 0;  // ns; 0: it has not failed, or nothing was outstanding then
    uint16_t chain_head = kNone;
    uint16_t chain_tail = kNone;
    uint16_t last_write = kNone;  // in the chain
    uint16_t first_fenced = kNone;
  };

  // Layout of work_requests_: first one per operation, then copies, then fences.
  static constexpr uint16_t kFirstCopy = kOperations;
  static constexpr uint16_t kFirstFence = kOperations + kCopies;

  void begin(Operation& operation);
  void back_up(Operation& operation, bool live);
  bool keep(Operation& operation);
  void end_stranded();
  void backup_over(uint16_t index, bool succeeded) override;
  void backup_abandoned(uint16_t index) override;
  void chain_part(WorkRequest& part, Operation& operation, const Replica& replica, uint64_t now);
  void append(Link& link, WorkRequest& work, uint64_t now);
  void add_fence(Link& link, uint64_t now);
  void time(WorkRequest& work);
  void untime(WorkRequest& work);
  bool overdue(uint64_t now) const { return oldest_ != kNone && work_requests_[oldest_].deadline <= now; }
  bool looks_once_more(uint64_t now);
  void reap(uint64_t now);
  void take_back(WorkRequest& work);
  void completed(WorkRequest& work, bool succeeded);
  void finish_fenced(WorkRequest& fence, bool succeeded);
  void finish(WorkRequest& part, bool succeeded);
  void abandon_part(WorkRequest& part);
  void decide(WorkRequest& part, bool succeeded);
  bool still_kept(const Operation& operation) const;
  void fail_chain(uint16_t first);

  Volume& volume_;
  LaneStatistics& statistics_;
  OperationListener& listener_;
  CqRef cq_;
  const uint64_t timeout_;
  uint64_t reap_at_ = 0;        // the first one of a link
  uint64_t excused_until_ = 0;  // nothing overdue before it counts against its server
  const Acknowledge acknowledge_;
  uint8_t* const scratch_;
  BackupPort* const backup_;
  PageCodec codec_;
  std::vector<Link> links_;
  std::vector<uint16_t> known_;  // servers connected, for the slow paths; reserved up front
  uint32_t failures_seen_ = 0;
  uint32_t leaving_ = 0;                    // links to be released
  uint32_t connected_ = 0;                  // links, ever
  std::vector<Operation> operations_;       // kOperations
  std::vector<WorkRequest> work_requests_;  // as many, then kCopies, then kFences
  IndexStack<kOperations> free_;
  IndexStack<kCopies> free_copies_;
  IndexStack<kFences> free_fences_;
  std::vector<uint16_t> dirty_;     // servers with a chain; reserved up front
  std::vector<uint16_t> stranded_;  // WRITEs whose servers failed while they were chained; reserved up front
  uint16_t oldest_ = kNone;
  uint16_t newest_ = kNone;
  uint32_t outstanding_ = 0;
  unsigned epoch_ = 0;  // parity
  std::array<uint32_t, 2> in_flight_{};
  uint64_t now_ = 0;
  std::vector<ServerStatistics> server_statistics_;  // kMaxServers
};

}  // namespace rdmakit::volume
