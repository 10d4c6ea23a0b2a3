// Applies completions, flushes and deadlines to the work requests of a lane and their operations and fences,
// and decides which servers have failed.
#include <cstdio>

#include "rdma/rdma_queue.h"
#include "rdmakit/invariant.h"

namespace rdmakit::volume {

constexpr int kPollBatch = 32;
// How long a lane goes on looking for completions once it has seen that one is overdue.
constexpr uint64_t kLastLook = 50'000'000;

// ---- hot path begins: no allocation, no log, no lock, no system call but the device's own ----

int RdmaQueue::poll() {
  if (outstanding_ == 0) return 0;
  ibv_wc completions[kPollBatch];
  const int count = ibv_poll_cq(cq_.get(), kPollBatch, completions);
  for (int i = 0; i < count; i++) {
    const ibv_wc& wc = completions[i];
    const uint16_t index = index_of(wc.wr_id);
    if (index >= work_requests_.size()) continue;
    WorkRequest& work = work_requests_[index];
    // The id also differs where a queue pair was reaped and its request has a new use.
    if (!work.posted || work.completed || work.wr.wr_id != wc.wr_id) continue;
    const uint16_t server = work.server;
    Link& link = links_[server];
    take_back(work);
    if (wc.status != IBV_WC_SUCCESS && link.usable) {
      // Over for this one already: fail() must not look at it again.
      work.completed = true;
      work.succeeded = false;
      char reason[64];
      snprintf(reason, sizeof reason, "work completion status %d, vendor error %u", wc.status, wc.vendor_err);
      fail(server, reason);
    }
    // Once a server has failed nothing of it counts as done.
    completed(work, wc.status == IBV_WC_SUCCESS && usable(server));
    server_statistics_[server].outstanding.set(link.outstanding);
  }
  if (count > 0) statistics_.outstanding_operations.set(outstanding_);
  return count;
}

void RdmaQueue::take_back(WorkRequest& work) {
  Link& link = links_[work.server];
  RDMAKIT_INVARIANT(outstanding_ > 0 && link.outstanding > 0 && link.outstanding <= outstanding_,
                    "work request %u: %u of server %u, %u of all", work.index, link.outstanding, work.server,
                    outstanding_);
  outstanding_--;
  link.outstanding--;
  untime(work);
}

void RdmaQueue::completed(WorkRequest& work, bool succeeded) {
  if (work.kind == WorkRequest::Kind::fence) {
    finish_fenced(work, succeeded);
  } else if (work.fence != kNone) {
    work.completed = true;
    work.succeeded = succeeded;
  } else {
    finish(work, succeeded);
  }
}

void RdmaQueue::finish_fenced(WorkRequest& fence, bool succeeded) {
  for (uint16_t i = fence.next_fenced; i != kNone;) {
    WorkRequest& write = work_requests_[i];
    i = write.next_fenced;
    write.fence = write.next_fenced = kNone;
    // Completions of a queue pair are in order, so a write is over before its fence; should one not
    // be, it ends with its own completion.
    if (write.completed) finish(write, succeeded && write.succeeded);
  }
  fence.posted = false;
  fence.next_fenced = kNone;
  free_fences_.push(static_cast<uint16_t>(fence.index - kFirstFence));
}

// A part is over.
void RdmaQueue::finish(WorkRequest& part, bool succeeded) {
  Operation& operation = operations_[part.operation];
  RDMAKIT_INVARIANT(in_flight_[part.epoch] > 0 && operation.parts > 0 && operation.awaited <= operation.parts,
                    "work request %u of operation %u: %u in flight, %u parts, %u awaited", part.index,
                    operation.index, in_flight_[part.epoch], operation.parts, operation.awaited);
  part.posted = false;
  in_flight_[part.epoch]--;
  if (!part.abandoned) decide(part, succeeded);
  if (part.index >= kFirstCopy) free_copies_.push(static_cast<uint16_t>(part.index - kFirstCopy));
  if (--operation.parts == 0) listener_.operation_over(operation);
}

// The server of a part has failed; what its completion will say does not count.
void RdmaQueue::abandon_part(WorkRequest& part) {
  if (part.abandoned) return;
  part.abandoned = operations_[part.operation].abandoned = true;
  decide(part, false);
}

void RdmaQueue::decide(WorkRequest& part, bool succeeded) {
  Operation& operation = operations_[part.operation];
  RDMAKIT_INVARIANT(operation.awaited > 0 && operation.keepers < kMaxReplicas,
                    "work request %u of operation %u: %u awaited, %u have it", part.index, operation.index,
                    operation.awaited, operation.keepers);
  operation.awaited--;
  if (succeeded) {
    const uint64_t slab = part.wr.wr.rdma.remote_addr - volume_.within_slab(operation.offset);
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

// The server that had it first may have failed since, and then be less trusted than servers that failed
// later; or the record may no longer name it.
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

void RdmaQueue::time(WorkRequest& work) {
  work.timed = true;
  work.newer = kNone;
  work.older = newest_;
  (newest_ == kNone ? oldest_ : work_requests_[newest_].newer) = work.index;
  newest_ = work.index;
}

void RdmaQueue::untime(WorkRequest& work) {
  if (!work.timed) return;
  work.timed = false;
  (work.older == kNone ? oldest_ : work_requests_[work.older].newer) = work.newer;
  (work.newer == kNone ? newest_ : work_requests_[work.newer].older) = work.older;
}

bool RdmaQueue::check_deadlines(uint64_t now) {
  now_ = now;
  bool ended = reap_at_ != 0 && now >= reap_at_;
  if (ended) reap(now);
  if (overdue(now) && looks_once_more(now)) return ended;
  while (overdue(now)) {
    ended = true;
    WorkRequest& work = work_requests_[oldest_];
    if (work.flushing) {
      // Not even its flush came: the device is broken, and the request has waited for long enough.
      untime(work);
      abandon_part(work);
    } else {
      fail(work.server, "no completion within the operation timeout");
    }
  }
  return ended;
}

// A driver may forget requests that it took when the connection had broken: siw does, whether it refuses its
// doorbell or not. A queue pair in the error state sends and places nothing any more
// (draft-hilland-rddp-verbs, Error State), so after the time that a completion may take they are over. Or no
// epoch would end, and no slab could be repaired. Only over iWARP: a device of another kind is not known to
// do so, and may be broken.
void RdmaQueue::reap(uint64_t now) {
  reap_at_ = 0;
  for (const uint16_t server : known_) {
    Link& link = links_[server];
    if (link.reap_at == 0 || link.outstanding == 0) continue;
    if (link.reap_at > now) {
      if (reap_at_ == 0 || link.reap_at < reap_at_) reap_at_ = link.reap_at;
      continue;
    }
    // Fences come last, as in the order of completions.
    for (WorkRequest& work : work_requests_) {
      if (!work.posted || work.completed || work.server != server) continue;
      take_back(work);
      completed(work, false);
    }
    RDMAKIT_INVARIANT(link.outstanding == 0, "server %u: %u are outstanding behind its end", server,
                      link.outstanding);
    server_statistics_[server].outstanding.set(0);
  }
  statistics_.outstanding_operations.set(outstanding_);
}

// A deadline says how long the device had, and not how long the lane looked: its thread may not have run (a
// stopped process, a machine without a free processor), before it posted the work or after. Completions that
// arrived in time may be in the queue, more than one look takes, or on their way to it.
bool RdmaQueue::looks_once_more(uint64_t now) {
  if (now < excused_until_) return true;
  if (now - excused_until_ < timeout_) return false;  // once, and not again for each look after it
  excused_until_ = now + kLastLook;
  return true;
}

// ---- hot path ends ----

// Ends work requests that never reached the device, from `first` along the chain.
void RdmaQueue::fail_chain(uint16_t first) {
  for (uint16_t index = first; index != kNone;) {
    WorkRequest& work = work_requests_[index];
    index = index_of(work.wr.next);
    work.posted = true;
    if (work.kind == WorkRequest::Kind::fence) {
      finish_fenced(work, false);
    } else {
      // Not under a fence any more: a fence of the same chain comes after it and is refused too, or
      // was not made yet. It still is in that fence's list, so it is marked as over and ends there.
      if (work.fence != kNone) {
        work.completed = true;
        work.succeeded = false;
      } else {
        work.next_fenced = kNone;
        finish(work, false);
      }
    }
  }
}

}  // namespace rdmakit::volume
