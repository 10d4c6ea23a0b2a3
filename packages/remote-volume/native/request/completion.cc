// How operations end: the answer to the request, the end of the claim, and the memory, each at its time.
//
//   WRITE   acknowledged (--ack one)  the request has its answer, the pages stay claimed
//           decided                   the claim ends, the request has its answer
//           over                      the memory is free; or, if no server has it and one may come back, it
//                                     restarts
//   READ    decided                   no server can serve it: the request has its answer
//           over                      the data are there; or, if its server failed, it moves to another one;
//                                     or they are not what was written (PageRepair)
#include <algorithm>

#include "rdmakit/invariant.h"
#include "request/request_executor.h"

namespace rdmakit::volume {

// ---- hot path begins: no allocation, no log, no lock, no system call ----

void RequestExecutor::operation_acknowledged(Operation& operation, uint64_t now) {
  now_ = now;
  answer(operation, true);
}

void RequestExecutor::operation_decided(Operation& operation, bool succeeded, uint64_t now) {
  now_ = now;
  if (operation.kind == Operation::Kind::ahead) {
    ahead_.operation_decided(operation, succeeded);
    end_waits();
    return;
  }
  if (repair_.owns(operation)) {
    if (!repair_.operation_decided(operation, succeeded)) return;
    fail_request(operation.request, EIO, operation.offset);
    answer_if_ready(operation.request);
    return;
  }
  if (operation.kind == Operation::Kind::read) {
    if (succeeded || (!operation.abandoned && may_move(operation))) return;
    fail_request(operation.request, EIO, operation.offset);
    answer_if_ready(operation.request);
    return;
  }
  // An acknowledged WRITE that has no copy is lost; an unacknowledged one leaves the pages as they were.
  const PageState to = succeeded                ? PageState::written
                       : operation.acknowledged ? PageState::lost
                                                : operation.claimed_from;
  operation.again = !succeeded && may_start_anew(operation);
  // The result, whatever it is, differs from the recorded one.
  if (!succeeded) rdma_.codec().forget(operation);
  if (succeeded) rdma_.codec().keep(operation);
  if (!volume_.settle(operation.first_page(), operation.page_count(), operation.generation, to))
    succeeded = false;
  if (!operation.again) answer(operation, succeeded);
}

void RequestExecutor::operation_over(Operation& operation) {
  if (operation.kind == Operation::Kind::ahead) {
    ahead_.operation_over(operation);
    end_waits();
  } else if (repair_.owns(operation)) {
    repair_.operation_over(operation);
    if (!open_) repair_reads();  // cancelled: nothing is chained
  } else if (operation.again) {
    start_anew(operation);
  } else if (operation.kind != Operation::Kind::read) {
    if (operation.chunk != kNone) pins_.unpin(operation.chunk);
    rdma_.give_back(operation);
  } else if (!operation.kept && !operation.abandoned && may_move(operation)) {
    moving_.push_back(&operation);
  } else if (operation.kept && open_ && !rdma_.codec().unpack(operation)) {
    wrong_.push_back(&operation);
  } else {
    finish_read(operation, operation.kept);
  }
}

// READs that waited for read-ahead.
void RequestExecutor::end_waits() {
  ahead_.end_waits([this](Operation& read, bool served) {
    if (served || !may_move(read)) {
      finish_read(read, served);
    } else {
      moving_.push_back(&read);  // its own way
    }
  });
}

bool RequestExecutor::may_move(const Operation& operation) const {
  if (operation.kind == Operation::Kind::ahead || !open_ || slots_[operation.request].error != 0)
    return false;
  if (repair_.owns(operation)) return true;
  const SlabPlace place = volume_.place(operation.offset);
  return place.generation == operation.generation &&
         (rdma_.readable(place) != nullptr || rdma_.backed_up() || rdma_.waits(place));
}

// A WRITE that no server has, and that is not answered yet.
bool RequestExecutor::may_start_anew(const Operation& operation) const {
  return open_ && operation.request != kNone && slots_[operation.request].error == 0 &&
         rdma_.waits(volume_.place(operation.offset));
}

void RequestExecutor::start_anew(Operation& operation) {
  operation.again = false;
  if (!open_) return finish_unposted(operation, false);
  // A device that still reads this memory sends it to a server that has failed.
  if (operation.packed != kRaw) rdma_.codec().unpack(operation.memory, operation.packed);
  operation.packed = kRaw;
  operation.place_deadline = 0;
  waiting_.push_back(&operation);
}

// Once for each operation; it does not belong to its request any more.
void RequestExecutor::answer(Operation& operation, bool succeeded, int error) {
  const uint16_t index = operation.request;
  if (index == kNone) return;
  RDMAKIT_INVARIANT(slots_[index].used && slots_[index].outstanding > 0, "operation %u of slot %u",
                    operation.index, index);
  operation.request = kNone;
  slots_[index].outstanding--;
  if (!succeeded) fail_request(index, error, operation.offset);
  answer_if_ready(index);
  release_if_done(index);
}

void RequestExecutor::finish_unposted(Operation& operation, bool succeeded, int error) {
  answer(operation, succeeded, error);
  if (operation.chunk != kNone) pins_.unpin(operation.chunk);
  rdma_.give_back(operation);
}

void RequestExecutor::finish_read(Operation& operation, bool succeeded) {
  const uint16_t index = operation.request;
  RequestSlot& slot = slots_[index];
  RDMAKIT_INVARIANT(slot.used && slot.outstanding > 0 && slot.pending[operation.part] > 0,
                    "operation %u, part %u of slot %u, of which %u are outstanding", operation.index,
                    operation.part, index, slot.outstanding);
  slot.outstanding--;
  slot.pending[operation.part]--;
  if (!succeeded) fail_request(index, EIO, operation.offset);
  update_parts(slot);
  answer_if_ready(index);
  release_if_done(index);
  rdma_.give_back(operation);
}

// READs whose server failed, to another replica or to the backup. Their pages may have changed since; that
// was while the request was open, so whatever a live replica holds is right.
bool RequestExecutor::move_reads() {
  size_t kept = 0;
  for (Operation* operation : moving_) {
    if (!move_read(*operation)) moving_[kept++] = operation;
  }
  const bool moved = kept < moving_.size();
  moving_.resize(kept);
  return moved;
}

// False: it must wait for a server, or for a page that is on its way to the backup.
bool RequestExecutor::move_read(Operation& operation) {
  const SlabPlace place = volume_.place(operation.offset);
  const bool open = place.generation == operation.generation && slots_[operation.request].error == 0;
  const Replica* replica = rdma_.readable(place);
  if (open && replica == nullptr && rdma_.waits(place)) return false;
  if (!open || (replica == nullptr && !rdma_.backed_up())) {
    finish_read(operation, false);
    return true;
  }
  if (replica == nullptr) {
    const uint64_t end = operation.first_page() + operation.page_count();
    for (uint64_t page = operation.first_page(); page < end;) {
      uint64_t run = end - page;
      const Backed backed = look_at_backup(place, page, run);
      const PageState state = volume_.pages().get(page);
      // Trimmed meanwhile, and nothing brings the page to the file any more.
      const bool gone = (state == PageState::unset || state == PageState::lost) &&
                        rdma_.backup()->map().get(page) == BackupState::stale;
      if (backed == Backed::queued && !gone) return false;
      if (backed != Backed::held) {
        finish_read(operation, false);
        return true;
      }
      page += run;
    }
  }
  read_from(operation, replica);
  return true;
}

// Of a WRITE whose parts are all done: where a page of it has no copy any more, and none may come back;
// kNowhere: all have one. A part that is done was with a server that had not failed, or in the backup, so the
// caller asks only after a failure since the WRITE began. A server that is waited for has the part: if that
// does not come back, it is lost after the answer.
uint64_t RequestExecutor::first_lost(const Request& request) const {
  const PageMap& pages = volume_.pages();
  const uint64_t end = request.offset + request.length;
  for (uint64_t offset = request.offset; offset < end;) {
    const uint64_t slab_end = std::min(end, offset + volume_.left_in_slab(offset));
    // Before the states of its pages, as for a READ (look_at_pages).
    const SlabPlace place = volume_.place(offset);
    // A slab without a place that is not lost has been empty since.
    const bool servers_have_it = rdma_.readable(place) != nullptr || rdma_.waits(place) ||
                                 (!place.mapped() && volume_.placed_since(offset));
    const uint64_t end_page = (slab_end + kPage - 1) / kPage;
    for (uint64_t page = offset / kPage; page < end_page; page++) {
      page += pages.run(page, end_page - page, PageState::unset);
      if (page == end_page) break;
      const PageState state = pages.get(page);
      if (state == PageState::unset) continue;
      if (state == PageState::lost || (!servers_have_it && !backup_has(page, state)))
        return std::max(offset, page * kPage);
    }
    offset = slab_end;
  }
  return RequestSlot::kNowhere;
}

// Whoever has claimed a page brings it to the backup where no server can have it.
inline bool RequestExecutor::backup_has(uint64_t page, PageState state) const {
  if (!rdma_.backed_up()) return false;
  const BackupState backed = rdma_.backup()->map().get(page);
  return state == PageState::claimed || backed == BackupState::held || backed == BackupState::queued;
}

// READs whose data are wrong, one after the other. Other READs continue meanwhile.
bool RequestExecutor::repair_reads() {
  bool moved = false;
  while (Operation* const read = repair_.next(wrong_, false, now_, moved))
    finish_read(*read, !repair_.failed());
  return moved;
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
