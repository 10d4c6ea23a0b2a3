#include "rdma/rdma_queue.h"

#include <cerrno>
#include <cstdio>

#include "rdmakit/invariant.h"

namespace rdmakit::volume {

namespace {
constexpr uint16_t kFirstCopy = kOperations;
constexpr uint16_t kFirstFence = kOperations + kCopies;
constexpr uint32_t kFenceBytes = 8;
constexpr int kPollBatch = 32;
// After a deadline, a look is late; and so long late completions are waited for.
constexpr uint64_t kLate = 50'000'000;
}  // namespace

RdmaQueue::RdmaQueue(Volume& volume, LaneStatistics& statistics, OperationListener& listener, CqRef cq,
                     uint64_t timeout_ns, Acknowledge acknowledge, uint8_t* scratch, BackupPort* backup)
    : volume_(volume),
      statistics_(statistics),
      listener_(listener),
      cq_(std::move(cq)),
      timeout_(timeout_ns),
      acknowledge_(acknowledge),
      scratch_(scratch),
      backup_(backup),
      codec_(volume, statistics),
      links_(kMaxServers),
      operations_(kFirstFence + kFences),
      server_statistics_(kMaxServers) {
  known_.reserve(kMaxServers);
  dirty_.reserve(kMaxServers);
  stranded_.reserve(kOperations);
  for (size_t i = 0; i < operations_.size(); i++) {
    Operation& operation = operations_[i];
    operation.index = static_cast<uint16_t>(i);
    operation.wr.wr_id = i;
    operation.wr.sg_list = &operation.sge;
    operation.wr.num_sge = 1;
    operation.wr.send_flags = IBV_SEND_SIGNALED;
  }
}

// ---- control ----

int RdmaQueue::connect(uint32_t server, QpRef&& qp, MrRef&& mr) {
  if (volume_.failed(server)) return EHOSTDOWN;
  Link& link = links_[server];
  if (link.qp) return EEXIST;
  link.fenced = qp->context->device->transport_type == IBV_TRANSPORT_IWARP;
  link.qp = std::move(qp);
  link.mr = std::move(mr);
  link.usable = true;
  known_.push_back(static_cast<uint16_t>(server));
  return 0;
}

void RdmaQueue::fail(uint32_t server, const char* reason) {
  Link& link = links_[server];
  if (!link.usable) return;
  link.usable = false;
  link.qp.handle()->verbs->move_to_error(link.qp.get());
  // Known to all lanes before anything is answered that this server missed.
  listener_.server_failed(server, reason);
  for (uint16_t i = oldest_; i != kNone;) {
    Operation& operation = operations_[i];
    i = operation.newer;
    if (operation.server != server || operation.flushing) continue;
    untime(operation);
    if (operation.kind == Operation::Kind::fence) continue;
    if (operation.reads() && listener_.may_move(operation)) {
      operation.flushing = true;
      operation.deadline = now_ + timeout_;
      time(operation);
    } else {
      doom(operation);
    }
  }
  // Writes that completed and wait for their fence left the order of deadlines before.
  for (Operation& operation : operations_) {
    if (operation.server == server && operation.stage == Operation::Stage::posted && operation.completed &&
        operation.kind != Operation::Kind::fence && !operation.reads())
      doom(operation);
  }
  const uint16_t chain = link.chain_head;
  link.chain_head = link.chain_tail = link.last_write = link.first_fenced = kNone;
  fail_chain(chain);
}

void RdmaQueue::disconnect(uint32_t server) {
  Link& link = links_[server];
  RDMAKIT_INVARIANT(volume_.failed(server), "server %u is disconnected and has not failed", server);
  if (!link.qp || link.leaving) return;
  link.leaving = true;
  leaving_++;
}

bool RdmaQueue::let_go(QpRef& qp, MrRef& mr) {
  for (const uint16_t server : known_) {
    Link& link = links_[server];
    if (!link.leaving || link.usable || link.outstanding > 0) continue;
    RDMAKIT_INVARIANT(link.chain_head == kNone, "server %u failed with operation %u in its chain", server,
                      link.chain_head);
    qp = std::move(link.qp);
    mr = std::move(link.mr);
    if (link.dirty) std::erase(dirty_, server);
    std::erase(known_, server);  // and so this loop is over
    link = Link();
    server_statistics_[server].clear();
    leaving_--;
    return true;
  }
  return false;
}

void RdmaQueue::fail_all(const char* reason) {
  for (const uint16_t server : known_) fail(server, reason);
}

void RdmaQueue::adopt_failures(uint64_t now) {
  now_ = now;
  codec_.turn(now, outstanding_ > 0);
  const uint32_t failures = volume_.failures();
  if (failures == failures_seen_) return;
  failures_seen_ = failures;
  for (const uint16_t server : known_) {
    if (volume_.failed(server)) fail(server, "declared failed elsewhere");
  }
}

void RdmaQueue::abandon() {
  for (const uint16_t server : known_) {
    Link& link = links_[server];
    if (link.outstanding > 0) link.qp.handle()->verbs->move_to_error(link.qp.get());
  }
}

void RdmaQueue::drop_resources() {
  RDMAKIT_INVARIANT(outstanding_ == 0 && oldest_ == kNone && in_flight_[0] + in_flight_[1] == 0 &&
                        free_copies_.size() == kCopies && free_fences_.size() == kFences,
                    "%u outstanding, %u and %u in flight, %zu copies and %zu fences are free", outstanding_,
                    in_flight_[0], in_flight_[1], free_copies_.size(), free_fences_.size());
  links_.clear();
  cq_ = CqRef();
}

// ---- hot path begins: no allocation, no log, no lock, no system call but the device's own ----

Operation& RdmaQueue::take(Operation::Kind kind) {
  Operation& operation = operations_[free_.pop()];
  operation.kind = kind;
  operation.stage = Operation::Stage::waiting;
  operation.request = operation.chunk = kNone;
  operation.packed = kRaw;
  operation.flushing = false;
  operation.place_deadline = 0;
  operation.again = false;
  return operation;
}

void RdmaQueue::give_back(Operation& operation) {
  operation.stage = Operation::Stage::free;
  free_.push(operation.index);
}

void RdmaQueue::begin(Operation& operation) {
  operation.parts = operation.awaited = 0;
  operation.aimed = operation.kept = operation.backed = operation.acknowledged = false;
  operation.keepers = 0;
  if (backup_ != nullptr) backup_->begin(operation);
}

void RdmaQueue::chain_read(Operation& operation, const Replica& replica, uint64_t now) {
  begin(operation);
  operation.aimed = true;
  chain_part(operation, operation, replica, now);
}

void RdmaQueue::chain_write(Operation& operation, const Replica& replica, uint64_t now) {
  begin(operation);
  operation.aimed = true;
  chain_part(operation, operation, replica, now);
}

void RdmaQueue::chain_write(Operation& operation, const SlabPlace& place, uint64_t now) {
  begin(operation);
  operation.generation = place.generation;
  operation.primary = operation.index;
  bool live = false;
  for (uint32_t i = 0; i < place.count; i++) {
    const Replica& replica = place.replicas[i];
    if (!usable(replica.server)) {
      // It misses this write. A lane that was never connected to it must not leave it in the belief that it
      // has everything.
      listener_.server_failed(replica.server, "a lane has no connection to it");
      continue;
    }
    Operation* part = &operation;
    if (operation.parts > 0) {
      part = &operations_[kFirstCopy + free_copies_.pop()];
      part->kind = operation.kind;
      part->offset = operation.offset;
      part->length = operation.length;
      part->memory = operation.memory;
      part->packed = operation.packed;
    }
    chain_part(*part, operation, replica, now);
    live |= replica.live;
  }
  if (backup_ != nullptr) back_up(operation, live);
  if (operation.parts == 0) stranded_.push_back(operation.index);
}

void RdmaQueue::chain_part(Operation& part, Operation& operation, const Replica& replica, uint64_t now) {
  Link& link = links_[replica.server];
  const bool reads = part.reads();
  operation.parts++;
  operation.awaited++;
  part.primary = operation.index;
  part.server = replica.server;
  part.live = replica.live;
  part.doomed = part.flushing = part.completed = false;
  part.fence = part.next_fenced = kNone;
  part.epoch = static_cast<uint8_t>(epoch_);
  in_flight_[epoch_]++;
  const uint32_t length = part.wire_length();
  part.sge = {reinterpret_cast<uint64_t>(part.memory), length, link.mr->lkey};
  part.wr.opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  part.wr.wr.rdma.remote_addr = replica.address + volume_.within_slab(part.offset);
  part.wr.wr.rdma.rkey = replica.remote_key;
  if (!link.dirty) {
    link.dirty = true;
    dirty_.push_back(part.server);
  }
  append(link, part, now);
  volume_.pace(replica.server).charge(length, now);
  if (length < part.length) statistics_.bytes_spared.add(part.length - length);
  ServerStatistics& server = server_statistics_[replica.server];
  if (reads) {
    statistics_.rdma_reads.add();
    server.reads.add();
    server.bytes_read.add(length);
  } else {
    statistics_.rdma_writes.add();
    server.writes.add();
    server.bytes_written.add(length);
    link.last_write = part.index;
    if (link.fenced) {
      part.next_fenced = link.first_fenced;
      link.first_fenced = part.index;
    }
  }
}

void RdmaQueue::append(Link& link, Operation& operation, uint64_t now) {
  operation.stage = Operation::Stage::chained;
  operation.deadline = now + timeout_;
  operation.wr.next = nullptr;
  if (link.chain_head == kNone) {
    link.chain_head = operation.index;
  } else {
    operations_[link.chain_tail].wr.next = &operation.wr;
  }
  link.chain_tail = operation.index;
}

void RdmaQueue::add_fence(Link& link, uint64_t now) {
  const Operation& last = operations_[link.last_write];
  Operation& fence = operations_[kFirstFence + free_fences_.pop()];
  fence.kind = Operation::Kind::fence;
  fence.server = last.server;
  fence.completed = false;
  fence.next_fenced = link.first_fenced;
  // The last bytes written: at least as long as a page edge, and readable where they were writable.
  const uint32_t length = last.wire_length() < kFenceBytes ? last.wire_length() : kFenceBytes;
  fence.sge = {reinterpret_cast<uint64_t>(scratch_), length, link.mr->lkey};
  fence.wr.opcode = IBV_WR_RDMA_READ;
  fence.wr.wr.rdma = last.wr.wr.rdma;
  for (uint16_t i = link.first_fenced; i != kNone; i = operations_[i].next_fenced)
    operations_[i].fence = fence.index;
  link.first_fenced = kNone;
  append(link, fence, now);
  statistics_.rdma_fences.add();
}

void RdmaQueue::flush(uint64_t now) {
  now_ = now;
  if (backup_ != nullptr) backup_->flush();
  if (!stranded_.empty()) end_stranded();
  if (dirty_.empty()) return;
  codec_.posted();
  // By index: an answer given here (fail_chain) never chains anything, but be safe against growth.
  for (size_t i = 0; i < dirty_.size(); i++) {
    const uint16_t server = dirty_[i];
    Link& link = links_[server];
    link.dirty = false;
    if (link.chain_head == kNone) continue;  // failed since
    if (link.fenced && link.last_write != kNone) add_fence(link, now);
    const uint16_t head = link.chain_head;
    link.chain_head = link.chain_tail = link.last_write = kNone;
    ibv_send_wr* refused = nullptr;
    const int error = ibv_post_send(link.qp.get(), &operations_[head].wr, &refused);
    const uint16_t stop = error == 0 ? kNone : static_cast<uint16_t>(refused->wr_id);
    for (uint16_t index = head; index != stop;) {
      Operation& operation = operations_[index];
      operation.stage = Operation::Stage::posted;
      outstanding_++;
      link.outstanding++;
      time(operation);
      index = operation.wr.next == nullptr ? kNone : static_cast<uint16_t>(operation.wr.next->wr_id);
    }
    server_statistics_[server].outstanding.set(link.outstanding);
    if (error != 0) {
      char reason[64];
      snprintf(reason, sizeof reason, "post refused with errno %d", error);
      fail(server, reason);
      fail_chain(stop);
    }
  }
  dirty_.clear();
  statistics_.outstanding_operations.set(outstanding_);
}

int RdmaQueue::poll() {
  if (outstanding_ == 0) return 0;
  ibv_wc completions[kPollBatch];
  const int count = ibv_poll_cq(cq_.get(), kPollBatch, completions);
  for (int i = 0; i < count; i++) {
    const ibv_wc& wc = completions[i];
    if (wc.wr_id >= operations_.size()) continue;
    Operation& operation = operations_[wc.wr_id];
    if (operation.stage != Operation::Stage::posted || operation.completed) continue;
    const uint16_t server = operation.server;
    Link& link = links_[server];
    RDMAKIT_INVARIANT(outstanding_ > 0 && link.outstanding > 0 && link.outstanding <= outstanding_,
                      "operation %u: %u of server %u, %u of all", operation.index, link.outstanding, server,
                      outstanding_);
    outstanding_--;
    link.outstanding--;
    untime(operation);
    if (wc.status != IBV_WC_SUCCESS && link.usable) {
      // Over for this one already: fail() must not look at it again.
      operation.completed = true;
      operation.succeeded = false;
      char reason[64];
      snprintf(reason, sizeof reason, "work completion status %d, vendor error %u", wc.status, wc.vendor_err);
      fail(server, reason);
    }
    // Once a server has failed nothing of it counts as done.
    completed(operation, wc.status == IBV_WC_SUCCESS && usable(server));
    server_statistics_[server].outstanding.set(link.outstanding);
  }
  if (count > 0) statistics_.outstanding_operations.set(outstanding_);
  return count;
}

void RdmaQueue::completed(Operation& operation, bool succeeded) {
  if (operation.kind == Operation::Kind::fence) {
    finish_fenced(operation, succeeded);
  } else if (operation.fence != kNone) {
    operation.completed = true;
    operation.succeeded = succeeded;
  } else {
    finish(operation, succeeded);
  }
}

void RdmaQueue::finish_fenced(Operation& fence, bool succeeded) {
  for (uint16_t i = fence.next_fenced; i != kNone;) {
    Operation& operation = operations_[i];
    i = operation.next_fenced;
    operation.fence = operation.next_fenced = kNone;
    // Completions of a queue pair are in order, so a write is over before its fence; should one not
    // be, it ends with its own completion.
    if (operation.completed) finish(operation, succeeded && operation.succeeded);
  }
  fence.stage = Operation::Stage::free;
  fence.next_fenced = kNone;
  free_fences_.push(static_cast<uint16_t>(fence.index - kFirstFence));
}

// A part is over.
void RdmaQueue::finish(Operation& part, bool succeeded) {
  Operation& operation = operations_[part.primary];
  RDMAKIT_INVARIANT(in_flight_[part.epoch] > 0 && operation.parts > 0 && operation.awaited <= operation.parts,
                    "operation %u of %u: %u in flight, %u parts, %u awaited", part.index, operation.index,
                    in_flight_[part.epoch], operation.parts, operation.awaited);
  part.stage = Operation::Stage::over;
  in_flight_[part.epoch]--;
  if (!part.doomed) decide(part, succeeded);
  if (&part != &operation) {
    part.stage = Operation::Stage::free;
    free_copies_.push(static_cast<uint16_t>(part.index - kFirstCopy));
  }
  if (--operation.parts == 0) listener_.operation_over(operation);
}

// The server of a part has failed; what its completion will say does not count.
void RdmaQueue::doom(Operation& part) {
  if (part.doomed) return;
  part.doomed = true;
  decide(part, false);
}

void RdmaQueue::decide(Operation& part, bool succeeded) {
  Operation& operation = operations_[part.primary];
  RDMAKIT_INVARIANT(operation.awaited > 0 && operation.keepers < kMaxReplicas,
                    "operation %u of %u: %u awaited, %u have it", part.index, operation.index,
                    operation.awaited, operation.keepers);
  operation.awaited--;
  if (succeeded) {
    const uint64_t slab = part.wr.wr.rdma.remote_addr - volume_.within_slab(part.offset);
    operation.keeper[operation.keepers++] = {slab, part.server, part.live};
  } else {
    // In its place among those that failed, before anything that it missed is answered.
    listener_.server_failed(part.server, "an operation failed");
  }
  if (operation.awaited == 0) {
    operation.kept = still_kept(operation);
    if (!operation.kept && keep(operation)) return;
    listener_.operation_decided(operation, operation.kept);
  } else if (acknowledge_ == Acknowledge::one && !operation.acknowledged && still_kept(operation)) {
    operation.kept = operation.acknowledged = true;
    listener_.operation_acknowledged(operation);
  }
}

// Who had it first may have failed since, and be trusted less then than those that failed later; or the
// record does not name it any more.
bool RdmaQueue::still_kept(const Operation& operation) const {
  if (operation.backed) return true;
  if (operation.keepers == 0) return false;
  if (operation.aimed) return !volume_.failed(operation.keeper[0].server);
  const SlabPlace place = volume_.place(operation.offset);
  for (uint32_t i = 0; i < operation.keepers; i++) {
    if (volume_.counts(place, operation.generation, operation.keeper[i])) return true;
  }
  return false;
}

void RdmaQueue::time(Operation& operation) {
  operation.timed = true;
  operation.newer = kNone;
  operation.older = newest_;
  (newest_ == kNone ? oldest_ : operations_[newest_].newer) = operation.index;
  newest_ = operation.index;
}

void RdmaQueue::untime(Operation& operation) {
  if (!operation.timed) return;
  operation.timed = false;
  (operation.older == kNone ? oldest_ : operations_[operation.older].newer) = operation.newer;
  (operation.newer == kNone ? newest_ : operations_[operation.newer].older) = operation.older;
}

void RdmaQueue::check_deadlines(uint64_t now) {
  now_ = now;
  if (overdue(now) && stood_still(now)) return;
  while (overdue(now)) {
    Operation& operation = operations_[oldest_];
    if (operation.flushing) {
      // Not even its flush came: the device is broken, and the request has waited for long enough.
      untime(operation);
      doom(operation);
    } else {
      fail(operation.server, "no completion within the operation timeout");
    }
  }
}

// Whoever looks long after a deadline stood still (a process that was stopped, a machine without a processor
// to spare): completions lie there that came in time, in the queue or on their way to it.
bool RdmaQueue::stood_still(uint64_t now) {
  if (now < excused_until_) return true;
  const bool excused = now - excused_until_ < timeout_;  // once, and not again for each look after it
  if (excused || now - operations_[oldest_].deadline < kLate) return false;
  excused_until_ = now + kLate;
  return true;
}

// ---- hot path ends ----

// Ends operations that never reached the device, from `first` along the chain.
void RdmaQueue::fail_chain(uint16_t first) {
  for (uint16_t index = first; index != kNone;) {
    Operation& operation = operations_[index];
    index = operation.wr.next == nullptr ? kNone : static_cast<uint16_t>(operation.wr.next->wr_id);
    operation.stage = Operation::Stage::posted;
    if (operation.kind == Operation::Kind::fence) {
      finish_fenced(operation, false);
    } else {
      // Not under a fence any more: a fence of the same chain comes after it and is refused too, or
      // was not made yet. It still is in that fence's list, so it is marked as over and ends there.
      if (operation.fence != kNone) {
        operation.completed = true;
        operation.succeeded = false;
      } else {
        operation.next_fenced = kNone;
        finish(operation, false);
      }
    }
  }
}

}  // namespace rdmakit::volume
