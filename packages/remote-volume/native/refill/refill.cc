#include "refill/refill.h"

#include <algorithm>

#include "base/clock.h"
#include "rdmakit/invariant.h"

namespace rdmakit::volume {

Refill::Refill(Volume& volume, const Arena& arena, RdmaQueue& rdma, uint64_t bytes_per_second,
               LaneStatistics& statistics, OperationListener& listener)
    : volume_(volume),
      arena_(arena),
      rdma_(rdma),
      rate_(bytes_per_second),
      repair_(volume, rdma, statistics, listener, true) {
  turned_.reserve(kChunks);
  wrong_.reserve(kChunks);
}

void Refill::begin(uint32_t slab, uint32_t server) {
  busy_ = true;
  slab_ = slab;
  server_ = server;
  cursor_ = volume_.first_page(slab);
  end_ = cursor_ + volume_.pages_of(slab);
  failure_ = nullptr;
  statistics_.slab.set(slab);
  statistics_.pages.set(end_ - cursor_);
  statistics_.pages_done.set(0);
  statistics_.active.set(1);
}

bool Refill::ended(Outcome& outcome) {
  if (!ended_) return false;
  ended_ = false;
  outcome = {slab_, server_, failure_};
  return true;
}

// ---- hot path begins: claims hold up the lanes, so the rules are theirs ----

bool Refill::step(uint64_t now) {
  waits_for_page_ = waits_for_rate_ = false;
  if (!busy_) return false;
  bool moved = !turned_.empty();
  for (Operation* operation : turned_) turn(*operation, now);
  turned_.clear();
  if (!wrong_.empty() || repair_.busy()) moved |= repair_chunks(now);
  while (failure_ == nullptr && cursor_ < end_ && under_way() < kChunks && free_chunks_.size() > 0) {
    waits_for_rate_ = now < allowed_at_;
    if (waits_for_rate_ || !start_chunk(now)) break;
    moved = true;
  }
  statistics_.pages_done.set(cursor_ - volume_.first_page(slab_));
  if (under_way() == 0 && (failure_ != nullptr || cursor_ == end_)) {
    finish();
    moved = true;
  }
  return moved;
}

// False: it must wait for a page.
bool Refill::start_chunk(uint64_t now) {
  PageMap& pages = volume_.pages();
  const PageState state = pages.get(cursor_);
  if (state == PageState::claimed) {
    waits_for_page_ = true;
    return false;
  }
  if (state != PageState::written) {
    cursor_ += pages.run(cursor_, end_ - cursor_, state);
    return true;
  }
  if (const uint64_t turn = volume_.turn(volume_.place(cursor_ * kPage), now); turn != 0) {
    waits_for_rate_ = true;
    allowed_at_ = std::max(allowed_at_, turn);
    return false;
  }
  uint64_t claimed = pages.claim(cursor_, std::min(kChunkPages, end_ - cursor_), state);
  if (claimed == 0) return true;
  const SlabPlace place = volume_.place(cursor_ * kPage);
  const Replica* target = place.find(server_);
  const Replica* source = rdma_.readable(place);
  const bool sourced = source != nullptr || rdma_.backed_up();
  if (target == nullptr || target->live || !sourced || !rdma_.usable(server_)) {
    volume_.settle(cursor_, claimed, place.generation, state);
    failure_ = sourced ? "the replica is gone" : "no live replica is left to fill it from";
    return true;
  }
  if (source == nullptr) {
    claimed = held_by_backup(claimed, place.generation);
    if (claimed == 0) return !waits_for_page_;
    // As in the file; no replica has the pages any more.
    volume_.lengths().set(cursor_, claimed, kRaw);
  }
  const uint16_t chunk = free_chunks_.pop();
  Operation& operation = rdma_.take(Operation::Kind::read);
  operation.chunk = chunk;
  operation.part = 0;
  operation.offset = cursor_ * kPage;
  operation.length = static_cast<uint32_t>(claimed * kPage);
  operation.memory = arena_.output_chunk(chunk);
  operation.generation = place.generation;
  if (source != nullptr) {
    rdma_.chain(operation, *source, now);
  } else {
    rdma_.read_backup(operation);
  }
  cursor_ += claimed;
  if (rate_ != 0) allowed_at_ = std::max(allowed_at_, now) + operation.length * kSecond / rate_;
  return true;
}

// Returns how many of the claimed pages from the cursor on the backup has; the claims of the others end.
// Pages on their way to the backup are waited for, others are lost.
uint64_t Refill::held_by_backup(uint64_t claimed, uint32_t generation) {
  const BackupMap& map = rdma_.backup()->map();
  const uint64_t held = map.run(cursor_, claimed, BackupState::held);
  if (held == 0 && map.get(cursor_) == BackupState::stale) {
    volume_.settle(cursor_, 1, generation, PageState::lost);
    statistics_.lost.add();
    cursor_++;
    claimed--;
  } else if (held == 0) {
    waits_for_page_ = true;
    rdma_.backup()->need();
  }
  if (held < claimed) volume_.settle(cursor_ + held, claimed - held, generation, PageState::written);
  return held;
}

// A READ is over: its pages go to the replica that is filled.
void Refill::turn(Operation& operation, uint64_t now) {
  const SlabPlace place = volume_.place(operation.offset);
  const Replica* target = place.find(server_);
  if (failure_ == nullptr && (target == nullptr || target->live || !rdma_.usable(server_)))
    failure_ = "the replica is gone";
  if (failure_ != nullptr) {
    end_claim(operation);
    operation.kept = operation.abandoned = false;
    return operation_over(operation);
  }
  operation.kind = Operation::Kind::write;
  rdma_.chain(operation, *target, now);
}

// Bit i of `part`: no replica had the right bytes of the i-th page.
void Refill::end_claim(Operation& operation) {
  if (operation.part == 0) {
    volume_.settle(operation.first_page(), operation.page_count(), operation.generation, PageState::written);
    return;
  }
  for (uint64_t i = 0; i < operation.page_count(); i++)
    volume_.settle(operation.first_page() + i, 1, operation.generation,
                   (operation.part >> i & 1) != 0 ? PageState::lost : PageState::written);
}

// Copies are checked first, or one wrong copy would become two.
bool Refill::repair_chunks(uint64_t now) {
  bool moved = false;
  while (Operation* const read = repair_.next(wrong_, failure_ != nullptr, now, moved)) {
    read->part = static_cast<uint16_t>(repair_.lost());
    turn(*read, now);
  }
  return moved;
}

// The claim ends as soon as the outcome is known: a page that could not be copied is as good as before.
void Refill::operation_decided(Operation& operation, bool succeeded) {
  if (repair_.owns(operation)) {
    if (!repair_.operation_decided(operation, succeeded)) return;
    repair_.let_go();
  }
  if (operation.kind == Operation::Kind::read) {
    if (succeeded) return;
    // Once more, from another live replica if there is one.
    cursor_ = std::min(cursor_, operation.first_page());
  } else if (succeeded) {
    statistics_.bytes.add(operation.length);
  } else if (failure_ == nullptr) {
    failure_ = "its server has failed";
  }
  // It may be long until its memory is free, if ever; the refill must not wait for that.
  if (operation.abandoned) abandoned_++;
  end_claim(operation);
}

void Refill::operation_over(Operation& operation) {
  if (repair_.owns(operation)) return repair_.operation_over(operation);
  if (operation.kind == Operation::Kind::read && operation.kept) {
    const bool right = rdma_.codec().right_slots(operation);
    (right ? turned_ : wrong_).push_back(&operation);
    return;
  }
  if (operation.abandoned) abandoned_--;
  free_chunks_.push(operation.chunk);
  rdma_.give_back(operation);
}

// ---- hot path ends ----

void Refill::finish() {
  RDMAKIT_INVARIANT(busy_ && turned_.empty() && wrong_.empty() && !repair_.busy(), "slab %u at server %u",
                    slab_, server_);
  if (failure_ == nullptr && volume_.promote_replica(slab_, server_) != 0) failure_ = "its server has failed";
  if (failure_ == nullptr) statistics_.slabs.add();
  statistics_.active.set(0);
  busy_ = false;
  ended_ = true;
}

}  // namespace rdmakit::volume
