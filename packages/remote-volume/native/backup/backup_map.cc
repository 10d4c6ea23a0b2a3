#include "backup/backup_map.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "pages/page_map.h"

namespace rdmakit::volume {

namespace {

constexpr uint64_t kBackupMapMagic = 0x7061'6d70'756b'6362;  // "bckupmap"

// First page of the file.
struct BackupMapHeader {
  TableMemory::Header table;
  BackupIdentity about;
  // Zeros of a version that knew none.
  BackupStamp current;  // that the file has
  BackupStamp next;     // or has by now; none: no other
  // Bits: the catch-up is bringing pages; the backup has failed.
  std::atomic<uint64_t> bringing;
};

}  // namespace

int BackupMap::open(uint64_t pages, const std::string& file, const BackupIdentity& about,
                    const BackupStamp& stamp, bool empty, bool prefault) {
  pages_ = pages;
  const uint64_t words = (pages + kPerWord - 1) / kPerWord;
  const size_t bytes = words * sizeof(uint64_t);
  const int error = memory_.open(file, {kBackupMapMagic, pages}, bytes, false, prefault);
  if (error != 0) return error;
  words_ = static_cast<std::atomic<uint64_t>*>(memory_.entries());
  if (file.empty()) return 0;
  open_file(about, stamp, empty, bytes);
  end_queued(bringing_->exchange(0) != 0);
  return 0;
}

void BackupMap::end_queued(bool brought) {
  for (uint64_t i = 0; i * kPerWord < pages_; i++) {
    const uint64_t word = words_[i].load(std::memory_order_relaxed);
    const uint64_t queued = word >> 1 & kLow;
    if (queued == 0) continue;
    words_[i].store(word & ~(queued * 3), std::memory_order_relaxed);
    for (uint64_t left = brought ? 0 : queued; left != 0; left &= left - 1)
      left_queued_.push_back(i * kPerWord + static_cast<uint64_t>(std::countr_zero(left)) / 2);
  }
}

void BackupMap::open_file(const BackupIdentity& about, const BackupStamp& stamp, bool empty, size_t bytes) {
  auto* header = static_cast<BackupMapHeader*>(memory_.header());
  const bool same = !memory_.fresh() && !empty && header->about == about;
  const bool left = stamp == header->current || (header->next.file != 0 && stamp == header->next);
  outdated_ = same && !left;
  if (!same || !left) {
    std::memset(memory_.entries(), 0, bytes);
    header->about = about;
    header->current = header->next = {};
    header->bringing.store(0);
  } else if (stamp != header->current) {
    header->current = stamp;
  }
  current_ = &header->current;
  next_ = &header->next;
  bringing_ = &header->bringing;
}

// ---- hot path begins: no system call, no lock, no allocation ----

uint64_t BackupMap::run(uint64_t first, uint64_t limit, BackupState state) const {
  uint64_t found = 0;
  while (found < limit && get(first + found) == state) found++;
  return found;
}

template <typename Next>
void BackupMap::change(uint64_t page, Next next) {
  std::atomic<uint64_t>& word = words_[page / kPerWord];
  const uint64_t shift = 2 * (page % kPerWord);
  uint64_t old = word.load();
  uint64_t wanted;
  do {
    wanted = (old & ~(uint64_t{3} << shift)) | static_cast<uint64_t>(next(in_word(old, page))) << shift;
    if (wanted == old) return;
  } while (!word.compare_exchange_weak(old, wanted));
}

void BackupMap::queue(uint64_t page) {
  change(page, [](BackupState) { return BackupState::queued; });
}

void BackupMap::mark(uint64_t page) {
  change(page, [](BackupState state) {
    const bool queued = state == BackupState::queued || state == BackupState::queued_stale;
    return queued ? BackupState::queued_stale : BackupState::stale;
  });
}

void BackupMap::finish(uint64_t page, bool kept) {
  change(page, [kept](BackupState state) {
    return kept && state == BackupState::queued ? BackupState::held : BackupState::stale;
  });
}

uint64_t BackupMap::stale(uint64_t word, const PageMap& pages) const {
  const uint64_t bits = words_[word].load();
  return ~(bits | bits >> 1) & pages.in_state(word, PageState::written);
}

uint64_t BackupMap::missing(uint64_t word, const PageMap& pages, PageState state) const {
  const uint64_t bits = words_[word].load();
  return ~(bits ^ bits >> 1) & pages.in_state(word, state);
}

// ---- hot path ends ----

uint64_t BackupMap::count_missing(const PageMap& pages, uint64_t first, uint64_t count) const {
  uint64_t total = 0;
  for (const uint64_t end = first + count; first < end;) {
    const uint64_t position = first % kPerWord;
    const uint64_t here = std::min(end - first, kPerWord - position);
    const uint64_t ones = here == kPerWord ? ~uint64_t{0} : (uint64_t{1} << (2 * here)) - 1;
    const uint64_t word = first / kPerWord;
    const uint64_t bits = words_[word].load();
    const uint64_t missing = ~(bits ^ bits >> 1) & pages.written_or_claimed(word);
    total += static_cast<uint64_t>(std::popcount(missing & ones << (2 * position)));
    first += here;
  }
  return total;
}

uint64_t BackupMap::count_lacking(const PageMap& pages, uint64_t first, uint64_t count,
                                  const std::vector<uint64_t>& claimed) const {
  const auto repeated = std::count_if(claimed.begin(), claimed.end(), [&](uint64_t page) {
    return page >= first && page < first + count &&
           std::binary_search(left_queued_.begin(), left_queued_.end(), page);
  });
  const uint64_t missing = count_missing(pages, first, count);
  return missing - std::min(missing, static_cast<uint64_t>(repeated));
}

}  // namespace rdmakit::volume
