#include "rdma/rdma_queue.h"

#include <cerrno>
#include <cstdio>

#include "rdmakit/invariant.h"

namespace rdmakit::volume {

namespace {
constexpr uint32_t kFenceBytes = 8;
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
      abandon_part(operation);
    }
  }
  // Writes that completed and wait for their fence left the order of deadlines before.
  for (Operation& operation : operations_) {
    if (operation.server == server && operation.stage == Operation::Stage::posted && operation.completed &&
        operation.kind != Operation::Kind::fence && !operation.reads())
      abandon_part(operation);
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
  part.abandoned = part.flushing = part.completed = false;
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
  volume_.limiter(replica.server).charge(length, now);
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

// ---- hot path ends ----

}  // namespace rdmakit::volume
