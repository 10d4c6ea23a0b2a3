#include "rdma/rdma_queue.h"

#include <cerrno>
#include <cstdio>

#include "rdmakit/invariant.h"
#include "rdmakit/post_error.h"

namespace rdmakit::volume {

constexpr uint32_t kFenceBytes = 8;

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
      operations_(kOperations),
      work_requests_(kFirstFence + kFences),
      server_statistics_(kMaxServers) {
  known_.reserve(kMaxServers);
  dirty_.reserve(kMaxServers);
  stranded_.reserve(kOperations);
  for (size_t i = 0; i < operations_.size(); i++) operations_[i].index = static_cast<uint16_t>(i);
  for (size_t i = 0; i < work_requests_.size(); i++) {
    WorkRequest& work = work_requests_[i];
    work.index = static_cast<uint16_t>(i);
    work.wr.sg_list = &work.sge;
    work.wr.num_sge = 1;
    work.wr.send_flags = IBV_SEND_SIGNALED;
  }
}

// ---- control ----

int RdmaQueue::connect(uint32_t server, QpRef&& qp, MrRef&& mr) {
  if (volume_.failed(server)) return EHOSTDOWN;
  Link& link = links_[server];
  if (link.qp) return EEXIST;
  link.fenced = qp->context->device->transport_type == IBV_TRANSPORT_IWARP;
  link.serial = ++connected_;
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
  const bool stopped = link.qp.handle()->verbs->move_to_error(link.qp.get()) == 0;
  // Known to all lanes before anything is answered that this server missed.
  listener_.server_failed(server, reason);
  for (uint16_t i = oldest_; i != kNone;) {
    WorkRequest& work = work_requests_[i];
    i = work.newer;
    if (work.server != server || work.flushing) continue;
    untime(work);
    if (work.kind == WorkRequest::Kind::fence) continue;
    if (work.kind == WorkRequest::Kind::read && listener_.may_move(operations_[work.operation])) {
      work.flushing = true;
      work.deadline = now_ + timeout_;
      time(work);
    } else {
      abandon_part(work);
    }
  }
  // Writes that completed and wait for their fence left the order of deadlines before.
  for (WorkRequest& work : work_requests_) {
    if (work.server == server && work.posted && work.completed && work.kind == WorkRequest::Kind::write)
      abandon_part(work);
  }
  if (link.fenced && stopped && link.outstanding > 0) {
    link.reap_at = now_ + timeout_;
    if (reap_at_ == 0) reap_at_ = link.reap_at;
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
    RDMAKIT_INVARIANT(link.chain_head == kNone, "server %u failed with work request %u in its chain", server,
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
  operation.request = operation.chunk = kNone;
  operation.packed = kRaw;
  operation.place_deadline = 0;
  operation.again = false;
  return operation;
}

void RdmaQueue::give_back(Operation& operation) { free_.push(operation.index); }

void RdmaQueue::begin(Operation& operation) {
  operation.parts = operation.awaited = 0;
  operation.abandoned = operation.aimed = operation.kept = operation.backed = operation.acknowledged = false;
  operation.keepers = 0;
  if (backup_ != nullptr) backup_->begin(operation);
}

void RdmaQueue::chain(Operation& operation, const Replica& replica, uint64_t now) {
  begin(operation);
  operation.aimed = true;
  chain_part(work_requests_[operation.index], operation, replica, now);
}

void RdmaQueue::chain_write(Operation& operation, const SlabPlace& place, uint64_t now) {
  begin(operation);
  operation.generation = place.generation;
  bool live = false;
  for (const Replica& replica : place.all()) {
    if (!usable(replica.server)) {
      // It misses this write. A lane that was never connected to it must not leave it in the belief that it
      // has everything.
      listener_.server_failed(replica.server, "a lane has no connection to it");
      continue;
    }
    const size_t part = operation.parts == 0 ? operation.index : size_t{kFirstCopy} + free_copies_.pop();
    chain_part(work_requests_[part], operation, replica, now);
    live |= replica.live;
  }
  if (backup_ != nullptr) back_up(operation, live);
  if (operation.parts == 0) stranded_.push_back(operation.index);
}

void RdmaQueue::chain_part(WorkRequest& part, Operation& operation, const Replica& replica, uint64_t now) {
  Link& link = links_[replica.server];
  const bool reads = operation.reads();
  operation.parts++;
  operation.awaited++;
  part.kind = reads ? WorkRequest::Kind::read : WorkRequest::Kind::write;
  part.operation = operation.index;
  part.server = replica.server;
  part.live = replica.live;
  part.abandoned = part.flushing = part.completed = false;
  part.fence = part.next_fenced = kNone;
  part.epoch = static_cast<uint8_t>(epoch_);
  in_flight_[epoch_]++;
  const uint32_t length = operation.wire_length();
  part.sge = {reinterpret_cast<uint64_t>(operation.memory), length, link.mr->lkey};
  part.wr.opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  part.wr.wr.rdma.remote_addr = replica.address + volume_.within_slab(operation.offset);
  part.wr.wr.rdma.rkey = replica.remote_key;
  if (!link.dirty) {
    link.dirty = true;
    dirty_.push_back(part.server);
  }
  append(link, part, now);
  volume_.limiter(replica.server).charge(length, now);
  if (length < operation.length) statistics_.bytes_spared.add(operation.length - length);
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

void RdmaQueue::append(Link& link, WorkRequest& work, uint64_t now) {
  work.deadline = now + timeout_;
  work.wr.wr_id = uint64_t{link.serial} << 16 | work.index;
  work.wr.next = nullptr;
  if (link.chain_head == kNone) {
    link.chain_head = work.index;
  } else {
    work_requests_[link.chain_tail].wr.next = &work.wr;
  }
  link.chain_tail = work.index;
}

void RdmaQueue::add_fence(Link& link, uint64_t now) {
  const WorkRequest& last = work_requests_[link.last_write];
  WorkRequest& fence = work_requests_[kFirstFence + free_fences_.pop()];
  fence.kind = WorkRequest::Kind::fence;
  fence.server = last.server;
  fence.completed = false;
  fence.next_fenced = link.first_fenced;
  // The last bytes written: at least as long as a page edge, and readable where they were writable.
  const uint32_t length = last.sge.length < kFenceBytes ? last.sge.length : kFenceBytes;
  fence.sge = {reinterpret_cast<uint64_t>(scratch_), length, link.mr->lkey};
  fence.wr.opcode = IBV_WR_RDMA_READ;
  fence.wr.wr.rdma = last.wr.wr.rdma;
  for (uint16_t i = link.first_fenced; i != kNone; i = work_requests_[i].next_fenced)
    work_requests_[i].fence = fence.index;
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
    const int result = ibv_post_send(link.qp.get(), &work_requests_[head].wr, &refused);
    const int error = post_error(result, refused);
    const uint16_t stop = error == 0 ? kNone : index_of(refused);
    for (uint16_t index = head; index != stop;) {
      WorkRequest& work = work_requests_[index];
      work.posted = true;
      outstanding_++;
      link.outstanding++;
      time(work);
      index = index_of(work.wr.next);
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
