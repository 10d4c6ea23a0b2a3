// The RDMA side of a lane: one completion queue, one queue pair per server, a fixed set of operations.
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
// its completion (or flush) arrives, never before: until then the device may touch the memory.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/index_stack.h"
#include "engine/operation.h"
#include "engine/statistics.h"
#include "engine/volume.h"
#include "rdmakit/handle.h"

namespace rdmakit::nbd {

// Who uses the queue. Called on the lane's thread, from poll(), flush() and fail(). It must not chain
// operations from inside a call.
class OperationListener {
 public:
  // The operation is over and its memory is free. It must give the operation back.
  virtual void operation_finished(Operation& operation, bool succeeded) = 0;
  // The server has just failed. Its operations follow one by one as they come back.
  virtual void server_failed(uint32_t server, const char* reason) = 0;
  // For each posted operation of a server that has just failed.
  virtual void operation_doomed(Operation& operation) = 0;

 protected:
  ~OperationListener() = default;
};

class RdmaQueue {
 public:
  RdmaQueue(Volume& volume, LaneStatistics& statistics, OperationListener& listener, CqRef cq,
            uint64_t timeout_ns, uint8_t* scratch);

  // ---- control, on the lane's thread ----
  // Moves the references in. EEXIST, EHOSTDOWN.
  int connect(uint32_t server, QpRef&& qp, MrRef&& mr);
  // Reason: a static or short-lived text, passed on to the listener. Idempotent.
  void fail(uint32_t server, const char* reason);
  // Looks which servers others declared failed.
  void adopt_failures();
  // Moves every queue pair with something outstanding to error.
  void abandon();
  // Only when nothing is outstanding, and never to be used again.
  void drop_resources();

  // ---- hot path ----
  bool usable(uint32_t server) const { return server < kMaxServers && links_[server].usable; }
  size_t available() const { return free_.size(); }
  Operation& take(Operation::Kind kind);
  void give_back(Operation& operation);
  // Puts the operation into its server's chain. kind, memory, length, offset are set.
  void chain(Operation& operation, const SlabPlace& place, uint64_t address, uint64_t now);
  void flush(uint64_t now);
  // Completions handled.
  int poll();
  // Fails the servers of overdue operations.
  void check_deadlines(uint64_t now);
  // 0: nothing is outstanding.
  uint64_t next_deadline() const { return oldest_ == kNone ? 0 : operations_[oldest_].deadline; }
  uint32_t outstanding() const { return outstanding_; }
  ibv_cq* cq() const { return cq_.get(); }

 private:
  struct Link {
    QpRef qp;
    MrRef mr;
    bool usable = false;  // connected and not failed
    bool fenced = false;  // completion is not placement (iWARP)
    bool dirty = false;   // in dirty_
    uint32_t outstanding = 0;
    uint16_t chain_head = kNone;
    uint16_t chain_tail = kNone;
    uint16_t last_write = kNone;  // in the chain
    uint16_t first_fenced = kNone;
  };

  void append(Link& link, Operation& operation, uint64_t now);
  void add_fence(Link& link, uint64_t now);
  void time(Operation& operation);
  void untime(Operation& operation);
  void completed(Operation& operation, bool succeeded);
  void finish_fenced(Operation& fence, bool succeeded);
  void finish(Operation& operation, bool succeeded);
  void fail_chain(uint16_t first);

  Volume& volume_;
  LaneStatistics& statistics_;
  OperationListener& listener_;
  CqRef cq_;
  const uint64_t timeout_;
  uint8_t* const scratch_;
  std::vector<Link> links_;
  std::vector<uint16_t> known_;  // servers connected, for the slow paths; reserved up front
  uint32_t failures_seen_ = 0;
  std::vector<Operation> operations_;  // kOperations, then kFences
  IndexStack<kOperations> free_;
  IndexStack<kFences> free_fences_;
  std::vector<uint16_t> dirty_;  // servers with a chain; reserved up front
  uint16_t oldest_ = kNone;
  uint16_t newest_ = kNone;
  uint32_t outstanding_ = 0;
};

}  // namespace rdmakit::nbd
