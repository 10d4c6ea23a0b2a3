#include "backup/backup_catch_up.h"

#include <algorithm>
#include <bit>

#include "backup/backup.h"
#include "base/clock.h"

namespace rdmakit::volume {

// From one pass to the next, and between two looks for something to do.
constexpr uint64_t kCatchUpPause = kSecond / 5;
// While it waits for buffers or for its rate.
constexpr uint64_t kMoment = kSecond / 500;
// Looked at in one step: some 10 µs.
constexpr uint64_t kWordsOfAStep = 4096;

BackupCatchUp::BackupCatchUp(Volume& volume, const Arena& arena, RdmaQueue& rdma, uint64_t bytes_per_second,
                             LaneStatistics& statistics, OperationListener& listener)
    : volume_(volume),
      arena_(arena),
      rdma_(rdma),
      map_(rdma.backup()->map()),
      rate_(bytes_per_second),
      repair_(volume, rdma, statistics, listener, true) {
  wrong_.reserve(kChunks);
}

// ---- hot path begins: claims hold up the lanes, so the rules are theirs ----

bool BackupCatchUp::step(uint64_t now) {
  cancelled_ |= !rdma_.backed_up();
  end_bringing();
  bool moved = repair_chunks(now);
  if (cancelled_) return moved;
  const Backup& backup = rdma_.backup()->backup();
  if (!active_) {
    if (now < next_) return moved;
    next_ = now + kCatchUpPause;
    const uint64_t missed = backup.missed();
    if (missed == seen_ && !again_) return moved;
    seen_ = missed;
    active_ = true;
    again_ = false;
    word_ = 0;
  }
  while (free_chunks_.size() > 0) {
    next_ = now + kMoment;
    rdma_.backup()->next_round();
    if (now < allowed_at_ || !rdma_.backup()->room((kChunks + 1) * kChunkPages)) break;
    uint64_t page = 0;
    const uint64_t from = word_;
    if (!find_stale(page)) {
      moved |= word_ != from;
      break;
    }
    if (!start_chunk(page, now)) break;
    moved = true;
  }
  if (active_ && word_ * BackupMap::kPerWord >= volume_.size() / kPage) {
    active_ = false;
    next_ = now + kCatchUpPause;
  }
  return moved;
}

bool BackupCatchUp::find_stale(uint64_t& page) {
  const uint64_t pages = volume_.size() / kPage;
  const uint64_t words = (pages + BackupMap::kPerWord - 1) / BackupMap::kPerWord;
  for (const uint64_t end = std::min(words, word_ + kWordsOfAStep); word_ < end; word_++) {
    // A WRITE holds them: they are checked when it has ended. This comes first, so that the next look sees
    // pages that are being settled now.
    again_ |= map_.missing(word_, volume_.pages(), PageState::claimed) != 0;
    const uint64_t stale = map_.stale(word_, volume_.pages());
    // An older version of them is on its way; they are stale when that has arrived.
    again_ |= map_.missing(word_, volume_.pages(), PageState::written) != stale;
    if (stale == 0) continue;
    page = word_ * BackupMap::kPerWord + static_cast<uint64_t>(std::countr_zero(stale)) / 2;
    return true;
  }
  return false;
}

// False: nothing can be read of this slab now.
bool BackupCatchUp::start_chunk(uint64_t page, uint64_t now) {
  const SlabPlace before = volume_.place(page * kPage);
  if (rdma_.readable(before) == nullptr) {
    // On to the next slab: what no replica has cannot be brought.
    word_ = (page + volume_.left_in_slab(page * kPage) / kPage) / BackupMap::kPerWord;
    return true;
  }
  const uint64_t left = volume_.left_in_slab(page * kPage) / kPage;
  const uint64_t limit = std::min({kChunkPages, left, volume_.size() / kPage - page});
  const uint64_t run = map_.run(page, limit, BackupState::stale);
  const uint64_t claimed = run == 0 ? 0 : volume_.pages().claim(page, run, PageState::written);
  if (claimed == 0) {
    again_ = true;
    word_++;
    return true;
  }
  const SlabPlace place = volume_.place(page * kPage);
  const Replica* source = rdma_.readable(place);
  const bool stale = map_.run(page, claimed, BackupState::stale) == claimed;
  if (source == nullptr || !stale) {
    volume_.settle(page, claimed, place.generation, PageState::written);
    again_ = true;
    return false;
  }
  Operation& operation = rdma_.take(Operation::Kind::read);
  const uint16_t chunk = free_chunks_.pop();
  operation.chunk = static_cast<uint16_t>(Refill::kBuffers + chunk);
  operation.offset = page * kPage;
  operation.length = static_cast<uint32_t>(claimed * kPage);
  operation.memory = arena_.output_chunk(operation.chunk);
  operation.generation = place.generation;
  rdma_.chain(operation, *source, now);
  if (rate_ != 0) allowed_at_ = std::max(allowed_at_, now) + operation.length * kSecond / rate_;
  return true;
}

// A wrong page on the replica that was read must not get into the file.
bool BackupCatchUp::repair_chunks(uint64_t now) {
  bool moved = false;
  while (Operation* const read = repair_.next(wrong_, cancelled_, now, moved)) {
    if (!repair_.failed()) {
      bring(*read);
    } else if (!repair_.given_up()) {  // else its claim has ended
      again_ = true;
      for (uint64_t i = 0; i < read->page_count(); i++)
        volume_.settle(read->first_page() + i, 1, read->generation,
                       (repair_.lost() >> i & 1) != 0 ? PageState::lost : PageState::written);
    }
    give_back(*read);
  }
  return moved;
}

void BackupCatchUp::bring(Operation& operation) {
  rdma_.codec().unpack_slots(operation);
  // From here on a page is claimed and queued, as that of a WRITE; but this one was answered long ago.
  rdma_.backup()->begin_bringing();
  rdma_.backup()->offer(operation);
  pages_.add(operation.page_count());
  volume_.settle(operation.first_page(), operation.page_count(), operation.generation, PageState::written);
}

// Also after the claim of a page has ended a refill or a repair may claim it while it is queued.
void BackupCatchUp::end_bringing() {
  if (map_.bringing() && rdma_.backup()->queued() == 0) rdma_.backup()->end_bringing();
}

void BackupCatchUp::operation_decided(Operation& operation, bool succeeded) {
  const bool repaired = repair_.owns(operation);
  if (repaired ? !repair_.operation_decided(operation, succeeded) : succeeded) return;
  again_ = true;
  volume_.settle(operation.first_page(), operation.page_count(), operation.generation, PageState::written);
}

void BackupCatchUp::operation_over(Operation& operation) {
  if (repair_.owns(operation)) return repair_.operation_over(operation);
  if (operation.kept) {
    if (!rdma_.codec().right_slots(operation)) {
      wrong_.push_back(&operation);
      return;
    }
    bring(operation);
  }
  give_back(operation);
}

void BackupCatchUp::give_back(Operation& operation) {
  free_chunks_.push(static_cast<uint16_t>(operation.chunk - Refill::kBuffers));
  rdma_.give_back(operation);
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
