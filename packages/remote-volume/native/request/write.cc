// WRITE, WRITE_ZEROES and TRIM: payload -> slab, or only the page map.
#include <algorithm>

#include "pages/zero_pages.h"
#include "request/request_executor.h"

namespace rdmakit::volume {

// ---- hot path begins: no allocation, no log, no lock, no system call ----

void RequestExecutor::start(Operation& operation) {
  const size_t paced = paced_;
  if (advance(operation)) return;
  waiting_.push_back(&operation);
  (paced_ > paced ? statistics_.turns_waited_for : statistics_.pages_waited_for).add();
}

bool RequestExecutor::retry_waiting() {
  size_t kept = 0;
  starved_ = 0;
  if (rdma_.backup() != nullptr) rdma_.backup()->next_round();
  // This process stood still (SIGSTOP, a host without a free processor), and who brings places with it.
  const bool stood_still = now_ - retried_at_ > rdma_.timeout() / 4;
  retried_at_ = now_;
  for (Operation* operation : waiting_) {
    if (stood_still && operation->place_deadline != 0) operation->place_deadline = now_ + rdma_.timeout();
    // Whoever has the answer, an error, may have written these pages anew, and so may who has closed.
    if (client_left_ || slots_[operation->request].error != 0) {
      finish_unposted(*operation, false);
    } else if (!advance(*operation)) {
      waiting_[kept++] = operation;
    }
  }
  // Each waits for an operation, and nothing is under way that could give one back.
  if (starved_ == kOperations) finish_unposted(*waiting_[--kept], false);
  const bool moved = kept < waiting_.size();
  waiting_.resize(kept);
  return moved;
}

// Posts as much as possible of a part of a WRITE (or of an edge of zeros). True: the operation is posted or
// over. False: it waits, for a page that is being filled or for a free operation; call again.
//
// Whole pages of zeros become unset, as by WRITE_ZEROES. The usual case, whole pages of data, is one look at
// the page map, one claim and one work request. See PageMap for why the others are safe. Operations taken
// here are posted at once, so the reserve that only this function touches comes back; or they start anew,
// each for pages that one claim covered, and then need no other one.
bool RequestExecutor::advance(Operation& operation) {
  if (operation.kind == Operation::Kind::zero_pages) return clear_claimed(operation);
  for (;;) {
    WriteStep step;
    step.page = operation.offset / kPage;
    step.head = operation.offset % kPage;
    step.limit = std::min<uint64_t>(operation.length, volume_.left_in_slab(operation.offset));
    Progress progress = skip_zeroes(operation, step);
    if (progress == Progress::proceed) progress = find_place(operation, step);
    if (progress == Progress::proceed) progress = claim_and_post(operation, step);
    if (progress != Progress::again) return progress == Progress::over;
  }
}

inline bool RequestExecutor::clear_claimed(Operation& operation) {
  const uint64_t cleared =
      volume_.clear_until_claimed(operation.offset / kPage, operation.length / kPage) * kPage;
  operation.offset += cleared;
  operation.length -= static_cast<uint32_t>(cleared);
  if (operation.length > 0) return false;
  finish_unposted(operation, true);
  return true;
}

// Whole pages of zeros at the beginning become unset; the step ends where the next ones begin.
inline RequestExecutor::Progress RequestExecutor::skip_zeroes(Operation& operation, WriteStep& step) {
  if (operation.kind != Operation::Kind::write) return Progress::proceed;
  const uint64_t data = bytes_before_zeroes(operation.memory, step.head, step.limit);
  if (data > 0) {
    step.limit = data;
    return Progress::proceed;
  }
  const uint64_t zeroes = leading_zero_pages(operation.memory, step.limit);
  const uint64_t cleared = volume_.clear_until_claimed(step.page, zeroes, false);
  if (cleared == 0) return Progress::waits;
  statistics_.zero_pages.add(cleared);
  operation.offset += cleared * kPage;
  operation.memory += cleared * kPage;
  operation.length -= static_cast<uint32_t>(cleared * kPage);
  if (operation.length > 0) return Progress::again;
  finish_unposted(operation, true);
  return Progress::over;
}

// A place, a state that can be claimed, and its turn.
inline RequestExecutor::Progress RequestExecutor::find_place(Operation& operation, WriteStep& step) {
  step.state = volume_.pages().get(step.page);
  if (step.state == PageState::unset && operation.kind == Operation::Kind::zero_edge) {
    finish_unposted(operation, true);
    return Progress::over;
  }
  if (volume_.placeless(operation.offset)) {
    if (!volume_.place_spare(operation.offset))
      return give_up_placing(operation) ? Progress::over : Progress::waits;
    operation.place_deadline = 0;
    return Progress::again;
  }
  step.place = volume_.place(operation.offset);
  if (!step.place.mapped() && volume_.placed_since(operation.offset)) return Progress::again;
  step.part_of_page = step.head != 0 || step.limit < kPage;
  if ((rdma_.live(step.place) == nullptr && !rdma_.backed_up()) ||
      (step.state == PageState::lost && step.part_of_page)) {
    if (step.state != PageState::lost && rdma_.waits(step.place)) return Progress::waits;
    finish_unposted(operation, false);
    return Progress::over;
  }
  if (step.state == PageState::claimed) return Progress::waits;
  if (const uint64_t turn = volume_.turn(step.place, now_); turn != 0) {
    paced_++;
    wait_for_turn(turn);
    return Progress::waits;
  }
  if (step.state == PageState::unset && step.part_of_page)
    // Again: it waits for its own fill now, or lost the race for the claim.
    return fill_with_zeroes(step.page) ? Progress::again : Progress::waits;
  return Progress::proceed;
}

// Claims and posts as much of the rest of the operation as one claim covers; `over` when that is all of it.
inline RequestExecutor::Progress RequestExecutor::claim_and_post(Operation& operation,
                                                                 const WriteStep& step) {
  PageMap& pages = volume_.pages();
  const uint64_t span =
      step.state == PageState::written ? (step.head + step.limit + kPage - 1) / kPage : step.limit / kPage;
  // Look before claiming, for a claim must be posted.
  if (!rdma_.has_room(step.place, span)) return Progress::waits;
  // Where there is no operation for a rest, all of it goes as it is.
  const bool may_split = rdma_.available() > 0;
  const bool whole = may_split && operation.kind == Operation::Kind::write && !step.part_of_page;
  const PageCodec::Fold fold =
      whole ? rdma_.codec().fold(operation.memory, span) : PageCodec::Fold{span, kRaw};
  const uint64_t run = pages.claim(step.page, fold.pages, step.state);
  if (run == 0) return Progress::again;
  if (!volume_.hold(operation.offset)) {
    pages.settle(step.page, run, step.state);
    return Progress::again;
  }
  const uint64_t bytes = std::min(step.limit, run * kPage - step.head);
  // Read it again: a replica may have come before the claim.
  const SlabPlace place = volume_.place(operation.offset);
  if (bytes < operation.length && !may_split) {
    volume_.settle(step.page, run, place.generation, step.state);
    starved_++;
    return Progress::waits;
  }
  const BackupPort::Admission admission = rdma_.admit(place, operation.offset, bytes);
  if (admission != BackupPort::Admission::yes) {
    volume_.settle(step.page, run, place.generation, step.state);
    if (admission == BackupPort::Admission::wait || rdma_.waits(place)) return Progress::waits;
    finish_unposted(operation, false);
    return Progress::over;
  }
  Operation& posted = bytes < operation.length ? split(operation, bytes) : operation;
  posted.length = static_cast<uint32_t>(bytes);
  posted.claimed_from = step.state;
  volume_.write_counters().add(step.page, run);
  rdma_.codec().note(posted, fold.packed);
  rdma_.chain_write(posted, place, now_);
  rdma_.codec().pack(posted);
  volume_.touch(posted.offset, now_);
  return &posted == &operation ? Progress::over : Progress::again;
}

// An operation for the first `bytes`; the rest stays.
inline Operation& RequestExecutor::split(Operation& operation, uint64_t bytes) {
  Operation& first = rdma_.take(operation.kind);
  first.request = operation.request;
  first.offset = operation.offset;
  first.memory = operation.memory;
  first.chunk = operation.chunk;
  if (operation.chunk != kNone) pins_.pin(operation.chunk);
  slots_[operation.request].outstanding++;
  operation.offset += bytes;
  operation.memory += bytes;
  operation.length -= static_cast<uint32_t>(bytes);
  return first;
}

// There is no spare place for the slab of a first WRITE. False: it waits for one.
bool RequestExecutor::give_up_placing(Operation& operation) {
  if (operation.place_deadline == 0) {
    operation.place_deadline = now_ + rdma_.timeout();
    operation.place_refusals = volume_.refusals();
  }
  // A client that keeps discarding pages, but no whole slab, must not delay the failure for ever.
  const uint32_t refusals = volume_.refusals() - operation.place_refusals;
  const bool full = volume_.exhausted() || refusals >= 2;
  if (!full && now_ < operation.place_deadline) return false;
  finish_unposted(operation, false, full || refusals > 0 ? ENOSPC : EIO);
  return true;
}

// Before a part of an unset page is written, all of it must be zeros at the server. False: no operation
// is free, or the backup must take it and cannot yet. True: look at the page again.
bool RequestExecutor::fill_with_zeroes(uint64_t page) {
  if (rdma_.available() == 0) {
    starved_++;
    return false;
  }
  if (!rdma_.has_room(volume_.place(page * kPage), 1)) return false;
  if (volume_.pages().claim(page, 1, PageState::unset) == 0) return true;
  if (!volume_.hold(page * kPage)) {
    volume_.pages().settle(page, 1, PageState::unset);
    return true;
  }
  const SlabPlace place = volume_.place(page * kPage);
  const BackupPort::Admission admission = rdma_.admit(place, page * kPage, kPage);
  if (admission != BackupPort::Admission::yes) {
    volume_.settle(page, 1, place.generation, PageState::unset);
    return admission == BackupPort::Admission::refused;
  }
  Operation& fill = rdma_.take(Operation::Kind::zero_fill);
  fill.offset = page * kPage;
  fill.length = kPage;
  fill.memory = arena_.zeroes();
  fill.claimed_from = PageState::unset;
  volume_.write_counters().add(page, 1);
  rdma_.codec().note(fill, kRaw);
  rdma_.chain_write(fill, place, now_);
  return true;
}

// Whole pages only: TRIM may leave its edges as they are. It waits for claims (see PageMap).
void RequestExecutor::clear_pages(uint16_t index) {
  const Request& request = slots_[index].request;
  const uint64_t first = (request.offset + kPage - 1) / kPage;
  const uint64_t end = (request.offset + request.length) / kPage;
  if (first >= end) return;
  const uint64_t cleared = volume_.clear_until_claimed(first, end - first, request.keeps_place);
  if (first + cleared == end) return;
  Operation& operation = rdma_.take(Operation::Kind::zero_pages);
  operation.request = index;
  operation.offset = (first + cleared) * kPage;
  operation.length = static_cast<uint32_t>((end - first - cleared) * kPage);
  slots_[index].outstanding++;
  start(operation);
}

// Whole pages cost no network.
void RequestExecutor::write_zeroes(uint16_t index) {
  const Request& request = slots_[index].request;
  clear_pages(index);
  const uint64_t end = request.offset + request.length;
  const uint64_t first_page_end = (request.offset / kPage + 1) * kPage;
  if (request.offset % kPage != 0 || end < first_page_end)
    zero_edge(index, request.offset, std::min(end, first_page_end) - request.offset);
  const uint64_t last_page = end / kPage * kPage;
  if (end % kPage != 0 && last_page > request.offset) zero_edge(index, last_page, end - last_page);
}

void RequestExecutor::zero_edge(uint16_t index, uint64_t offset, uint64_t length) {
  Operation& operation = rdma_.take(Operation::Kind::zero_edge);
  operation.request = index;
  operation.offset = offset;
  operation.length = static_cast<uint32_t>(length);
  operation.memory = arena_.zeroes();
  slots_[index].outstanding++;
  start(operation);
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
