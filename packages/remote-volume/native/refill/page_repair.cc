#include "refill/page_repair.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rdmakit::volume {

// ---- hot path begins: claims hold up the lanes, so the rules are theirs ----

void PageRepair::begin(Operation& read) {
  operation_ = &read;
  offset_ = read.offset;
  length_ = read.length;
  memory_ = read.memory;
  cancelled_ = given_up_ = failed_ = under_way_ = waits_for_page_ = held_ = false;
  lost_ = 0;
  // A packed page is one by itself, and that it is here says that it is wrong.
  stage_ = read.packed == kRaw ? Stage::search : Stage::claim;
  page_ = (offset_ + kPage - 1) / kPage;
  end_ = (offset_ + length_) / kPage;
}

Operation* PageRepair::next(std::vector<Operation*>& wrong, bool cancel, uint64_t now, bool& moved) {
  if (!busy()) {
    if (wrong.empty()) return nullptr;
    begin(*wrong.back());
    wrong.pop_back();
  }
  cancelled_ |= cancel;
  waits_for_page_ = false;
  while (stage_ != Stage::ended && !under_way_ && advance(now)) moved = true;
  if (stage_ != Stage::ended) return nullptr;
  moved = true;
  return std::exchange(operation_, nullptr);
}

// False: it waits for a page, or for the backup to have it.
bool PageRepair::advance(uint64_t now) {
  if (cancelled_) {
    release(PageState::written);
    end();
    return true;
  }
  switch (stage_) {
    case Stage::search:
      if (page_ >= end_) {
        end();
      } else if (given_claims_ ? rdma_.codec().right_slot(page_, memory_of(page_))
                               : volume_.checksums().right(page_, memory_of(page_))) {
        page_++;
      } else {
        stage_ = Stage::claim;
      }
      return true;
    case Stage::claim:
      return claim();
    case Stage::inspect:
      return inspect(now);
    case Stage::repair_write:
      write_right_bytes(now);
      return true;
    case Stage::ended:
      break;
  }
  return false;
}

bool PageRepair::claim() {
  if (!given_claims_) {
    switch (volume_.pages().get(page_)) {
      case PageState::unset:  // trimmed meanwhile
        std::memset(memory_of(page_), 0, kPage);
        next_page(PageState::unset);
        return true;
      case PageState::lost:
        failed_ = true;
        next_page(PageState::lost);
        return true;
      case PageState::claimed:
        waits_for_page_ = true;
        return false;
      case PageState::written:
        if (volume_.pages().claim(page_, 1, PageState::written) == 0) return true;
    }
    held_ = true;
  }
  generation_ = volume_.generation(page_ * kPage);
  packed_ = volume_.lengths().get(page_);
  inspected_count_ = wrong_count_ = repairs_ = 0;
  from_backup_ = backup_wrong_ = false;
  stage_ = Stage::inspect;
  return true;
}

// The place is read each time: the earlier one may have been given back by now.
bool PageRepair::inspect(uint64_t now) {
  const SlabPlace place = volume_.place(page_ * kPage);
  const auto seen = [this](uint16_t server) {
    return std::find(inspected_.begin(), inspected_.begin() + inspected_count_, server) !=
           inspected_.begin() + inspected_count_;
  };
  bool away = false;
  for (const Replica& replica : place.all()) {
    if (!replica.complete() || seen(replica.server) || inspected_count_ == kMaxReplicas) continue;
    if (!rdma_.usable(replica.server)) {
      away = true;
      continue;
    }
    inspected_[inspected_count_++] = replica.server;
    aim(Operation::Kind::inspect);
    rdma_.chain(*operation_, replica, now);
    return true;
  }
  if (away && rdma_.waits(place)) {
    waits_for_page_ = true;
    return false;
  }
  return inspect_backup();
}

// Under the claim the file gets no new version of the page: only the queued ones still arrive.
bool PageRepair::inspect_backup() {
  if (!from_backup_ && rdma_.backed_up()) {
    const BackupState state = rdma_.backup()->map().get(page_);
    if (state == BackupState::queued) {
      waits_for_page_ = true;
      rdma_.backup()->need();
      return false;
    }
    if (state == BackupState::held) {
      from_backup_ = true;
      aim(Operation::Kind::inspect);
      rdma_.read_backup(*operation_);
      return true;
    }
  }
  give_page_up();
  return true;
}

// True if the inspected pages are right. Pages come from the backup raw, and then go to the replicas raw.
bool PageRepair::right() {
  if (!from_backup_) return rdma_.codec().right_slot(page_, memory_of(page_));
  if (!volume_.checksums().right(page_, memory_of(page_))) return false;
  if (packed_ == kRaw) return true;
  volume_.checksums().note(page_ * kPage, kPage, memory_of(page_));
  volume_.lengths().set(page_, 1, kRaw);
  packed_ = kRaw;
  return true;
}

void PageRepair::write_right_bytes(uint64_t now) {
  const SlabPlace place = volume_.place(page_ * kPage);
  while (repairs_ < wrong_count_ && (held_ || given_claims_)) {
    const Replica* const replica = place.find(wrong_[repairs_]);
    if (replica != nullptr && rdma_.usable(replica->server)) {
      aim(Operation::Kind::repair_write);
      rdma_.chain(*operation_, *replica, now);
      return;
    }
    repairs_++;
  }
  if (!given_claims_) rdma_.codec().unpack(memory_of(page_), packed_);
  next_page(PageState::written);
}

// The operation is for the page now.
void PageRepair::aim(Operation::Kind kind) {
  operation_->kind = kind;
  operation_->offset = page_ * kPage;
  operation_->length = kPage;
  operation_->memory = memory_of(page_);
  operation_->packed = kRaw;
  under_way_ = true;
}

void PageRepair::give_page_up() {
  failed_ = true;
  // Without a copy that could be looked at nothing is known to be wrong.
  if (wrong_count_ == 0 && !backup_wrong_) return next_page(PageState::written);
  lost_ |= 1u << (page_ - offset_ / kPage);
  listener_.page_wrong({page_, wrong_count_ == 0 ? kBackupServer : wrong_[0], false});
  next_page(PageState::lost);
}

void PageRepair::next_page(PageState to) {
  release(to);
  page_++;
  stage_ = Stage::search;
}

void PageRepair::release(PageState to) {
  if (held_) volume_.settle(page_, 1, generation_, to);
  held_ = false;
}

void PageRepair::end() {
  failed_ |= cancelled_;
  operation_->kind = Operation::Kind::read;
  operation_->offset = offset_;
  operation_->length = length_;
  operation_->memory = memory_;
  stage_ = Stage::ended;
}

bool PageRepair::operation_decided(Operation& operation, bool succeeded) {
  if (succeeded || !operation.abandoned) return false;
  // It may be long until its memory is free; the page must not wait for that.
  release(PageState::written);
  if (stage_ != Stage::inspect) return false;
  cancelled_ = given_up_ = true;
  end();
  stage_ = Stage::inspect;  // until it is over
  return true;
}

void PageRepair::operation_over(Operation& operation) {
  under_way_ = false;
  if (stage_ == Stage::repair_write) {
    if (operation.kept) {
      statistics_.pages_repaired.add();
      listener_.page_wrong({page_, wrong_[repairs_], true});
    }
    repairs_++;
  } else if (operation.kept && !cancelled_) {
    if (right()) {
      stage_ = Stage::repair_write;
    } else {
      statistics_.pages_wrong.add();
      if (from_backup_) {
        backup_wrong_ = true;
      } else {
        wrong_[wrong_count_++] = inspected_[inspected_count_ - 1];
      }
    }
  }
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
