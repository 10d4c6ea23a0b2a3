#include "pages/page_map.h"

#include <algorithm>
#include <bit>

#include "rdmakit/invariant.h"

namespace rdmakit::volume {

namespace {

constexpr uint64_t kPageMapMagic = 0x70616d6567617072;  // "rpagemap"

// First page of the file.
struct PageMapHeader {
  TableMemory::Header table;
  std::atomic<uint64_t> resyncing;  // zero of a version that knew none
};

// Low bit of each page whose 2 bits equal `state`.
uint64_t equal(uint64_t word, PageState state, uint64_t low) {
  const uint64_t different = word ^ (static_cast<uint64_t>(state) * low);
  return ~(different | different >> 1) & low;
}

// Length of the run of set low bits from `position` on (in pages).
uint64_t run_from(uint64_t bits, uint64_t position, uint64_t low) {
  const uint64_t gaps = (~bits & low) >> (2 * position);
  const uint64_t rest = 32 - position;
  return gaps == 0 ? rest : std::min<uint64_t>(std::countr_zero(gaps) / 2, rest);
}

// Both bits of `count` pages from `position` on.
uint64_t mask_of(uint64_t position, uint64_t count) {
  const uint64_t ones = count == 32 ? ~uint64_t{0} : (uint64_t{1} << (2 * count)) - 1;
  return ones << (2 * position);
}

}  // namespace

int PageMap::open(uint64_t pages, const std::string& file, bool prefault,
                  const std::function<PageState(uint64_t page)>& left_claimed) {
  pages_ = pages;
  const uint64_t words = (pages + kPerWord - 1) / kPerWord;
  const size_t bytes = words * sizeof(uint64_t);
  const int error = memory_.open(file, {kPageMapMagic, pages}, bytes, false, prefault);
  if (error != 0) return error;
  words_ = static_cast<std::atomic<uint64_t>*>(memory_.entries());
  if (file.empty()) return 0;
  resyncing_ = &static_cast<PageMapHeader*>(memory_.header())->resyncing;
  // Only a damaged file has pages beyond the end, which other code does not expect.
  if (pages % kPerWord != 0) words_[words - 1].fetch_and(mask_of(0, pages % kPerWord));
  // It may be claimed by the WRITE of its resync. One that is unset or lost by now reads alike everywhere.
  const uint64_t resyncing = resyncing_->load();
  if (resyncing > 0 && resyncing <= pages) claim(resyncing - 1, 1, PageState::written);
  end_resync();
  for (uint64_t i = 0; i < words; i++) {
    const uint64_t word = words_[i].load(std::memory_order_relaxed);
    for (uint64_t left = equal(word, PageState::claimed, kLow); left != 0; left &= left - 1) {
      const uint64_t page = i * kPerWord + static_cast<uint64_t>(std::countr_zero(left)) / 2;
      const PageState to = left_claimed(page);
      if (to != PageState::claimed) settle(page, 1, to);
    }
  }
  return 0;
}

// On record first: between the two the page is there twice, and never not at all.
void PageMap::begin_resync(uint64_t page) {
  resyncing_->store(page + 1);
  settle(page, 1, PageState::written);
}

void PageMap::end_resync() {
  if (resyncing_ != nullptr) resyncing_->store(0);
}

template <typename Change>
void PageMap::for_each_word(uint64_t first, uint64_t count, Change change) const {
  while (count > 0) {
    const uint64_t position = first % kPerWord;
    const uint64_t here = std::min(count, kPerWord - position);
    change(words_[first / kPerWord], mask_of(position, here));
    first += here;
    count -= here;
  }
}

// ---- hot path begins: called for each page request; no system call, no lock, no allocation ----

// chosen: word -> low bit of each page that belongs to the run.
template <typename Chosen>
uint64_t PageMap::run_while(uint64_t first, uint64_t limit, Chosen chosen) const {
  uint64_t found = 0;
  while (found < limit) {
    const uint64_t position = (first + found) % kPerWord;
    const uint64_t word = words_[(first + found) / kPerWord].load();
    const uint64_t here = run_from(chosen(word), position, kLow);
    found += here;
    if (here < kPerWord - position) break;
  }
  return std::min(found, limit);
}

uint64_t PageMap::run(uint64_t first, uint64_t limit, PageState state) const {
  return run_while(first, limit, [state](uint64_t word) { return equal(word, state, kLow); });
}

uint64_t PageMap::run_of_others(uint64_t first, uint64_t limit, PageState state) const {
  return run_while(first, limit, [state](uint64_t word) { return ~equal(word, state, kLow) & kLow; });
}

uint64_t PageMap::claim(uint64_t first, uint64_t limit, PageState from) {
  uint64_t claimed = 0;
  while (claimed < limit) {
    const uint64_t position = (first + claimed) % kPerWord;
    auto& word = words_[(first + claimed) / kPerWord];
    uint64_t old = word.load(std::memory_order_acquire);
    uint64_t here;
    uint64_t wanted;
    do {
      here = std::min(run_from(equal(old, from, kLow), position, kLow), limit - claimed);
      if (here == 0) return claimed;
      const uint64_t mask = mask_of(position, here);
      wanted = (old & ~mask) | (static_cast<uint64_t>(PageState::claimed) * kLow & mask);
    } while (!word.compare_exchange_weak(old, wanted));
    claimed += here;
    if (here < kPerWord - position) break;
  }
  return claimed;
}

void PageMap::settle(uint64_t first, uint64_t count, PageState to) {
  // The bits are ours alone while claimed, so flipping them needs no loop.
  const uint64_t flip = (static_cast<uint64_t>(PageState::claimed) ^ static_cast<uint64_t>(to)) * kLow;
  for_each_word(first, count, [flip](std::atomic<uint64_t>& word, uint64_t mask) {
    const uint64_t old = word.fetch_xor(flip & mask);
    RDMAKIT_INVARIANT((equal(old, PageState::claimed, kLow) & mask) == (mask & kLow),
                      "pages %016llx of a claim are %016llx", static_cast<unsigned long long>(mask),
                      static_cast<unsigned long long>(old));
  });
}

uint64_t PageMap::clear_until_claimed(uint64_t first, uint64_t limit) {
  uint64_t done = 0;
  while (done < limit) {
    const uint64_t position = (first + done) % kPerWord;
    const uint64_t here = std::min(limit - done, kPerWord - position);
    auto& word = words_[(first + done) / kPerWord];
    uint64_t old = word.load(std::memory_order_acquire);
    uint64_t free;  // pages before the first claimed one
    uint64_t wanted;
    do {
      const uint64_t claimed = equal(old, PageState::claimed, kLow) & mask_of(position, here);
      free = claimed == 0 ? here : static_cast<uint64_t>(std::countr_zero(claimed)) / 2 - position;
      if (free == 0) return done;
      wanted = old & ~mask_of(position, free);
    } while (!word.compare_exchange_weak(old, wanted));
    done += free;
    if (free < here) break;
  }
  return done;
}

// ---- hot path ends ----

uint64_t PageMap::lose(uint64_t first, uint64_t count) {
  uint64_t claimed = 0;
  for_each_word(first, count, [&claimed](std::atomic<uint64_t>& word, uint64_t mask) {
    uint64_t old = word.load();
    while (!word.compare_exchange_weak(old, old | (equal(old, PageState::written, kLow) & mask) << 1)) {
    }
    claimed += static_cast<uint64_t>(std::popcount(equal(old, PageState::claimed, kLow) & mask));
  });
  return claimed;
}

uint64_t PageMap::count(uint64_t first, uint64_t count, PageState state) const {
  uint64_t total = 0;
  for_each_word(first, count, [&total, state](const std::atomic<uint64_t>& word, uint64_t mask) {
    const uint64_t states = word.load(std::memory_order_relaxed);
    total += static_cast<uint64_t>(std::popcount(equal(states, state, kLow) & mask));
  });
  return total;
}

void PageMap::check_rest(uint64_t waiting) const {
  if (words_ == nullptr) return;
  uint64_t claimed = 0;
  for (uint64_t word = 0; word < (pages_ + kPerWord - 1) / kPerWord; word++) {
    const uint64_t here = in_state(word, PageState::claimed);
    if (here != 0) [[unlikely]]
      claimed += static_cast<uint64_t>(std::popcount(here));
  }
  RDMAKIT_INVARIANT(claimed <= waiting, "%llu pages are claimed, and %llu were at the start",
                    static_cast<unsigned long long>(claimed), static_cast<unsigned long long>(waiting));
}

bool PageMap::all_unset(uint64_t first, uint64_t count) const {
  while (count > 0) {
    const uint64_t position = first % kPerWord;
    const uint64_t here = std::min(count, kPerWord - position);
    if ((words_[first / kPerWord].load() & mask_of(position, here)) != 0) return false;
    first += here;
    count -= here;
  }
  return true;
}

}  // namespace rdmakit::volume
