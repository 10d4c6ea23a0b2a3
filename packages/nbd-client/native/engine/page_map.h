// What is known of each 4 KiB page of a volume: 2 bits, changed by any lane with atomic operations.
//
//   unset    never written, or trimmed: reads as zeros, whatever the slab holds
//   written  the slab holds it
//   claimed  one lane is filling it for the first time, by a whole-page RDMA WRITE; others wait
//   lost     it was written, and its server is gone: reads as EIO
//
//            claim                 settle(written)
//     unset ------->  claimed  ---------------------> written <---+
//      ^ ^             |   ^  \                        |  |       |  settle(written)
//      | +-------------+   |   +--> lost --------------|--|--> claimed
//      |  settle(unset)    |   settle(lost)    claim   |  |
//      +-------------------|---------------------------+  |
//            clear         +-- lost <---------------------+  lose
//
// Why it is safe with several lanes. Call a request open from its arrival until its answer. NBD gives
// no order to open requests that overlap, so every interleaving of theirs is right as long as each
// page ends as some order of them would leave it, and what is answered stays.
//  1. A page is `written` only when its whole 4 KiB are in the slab: the claim's own write covers all
//     of it, and settle() comes after that write's completion (and fence, see RdmaQueue). So no reader
//     ever sees stale remote bytes.
//  2. Only the claimant leaves `claimed`. clear() and lose() skip such pages: the claiming WRITE is
//     open, hence a TRIM or WRITE_ZEROES that meets it may count as earlier.
//  3. A second writer that meets `claimed` waits, full page or not: its bytes would otherwise race with
//     the claimant's whole-page write on another queue pair, which could bury bytes already answered.
//     Each RDMA WRITE claims ascending pages and posts at once; nothing is held while waiting, so
//     waiters cannot form a circle. A claim ends within the operation timeout.
//  4. A reader that meets `claimed` waits too. Zeros would be right unless an overlapping open WRITE
//     was posted before a clear() of the page; waiting spares that case and costs nothing in practice.
//  5. Writes to `written` pages need no claim: they change no state, and overlapping open WRITEs have
//     no order. A clear() in between is an order too: the WRITE came first.
//  6. A failed claim goes back to what it was: nobody was told that the page changed.
//  7. In a volume with exclusive writes, writes to `written` pages claim them too (written -> claimed), and
//     so does the refill of a replica. Its claim belongs to no WRITE, so WRITE_ZEROES and TRIM
//     wait for it (clear_until_claimed) where rule 2 would let them pass.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "engine/limits.h"
#include "engine/mapped_file.h"

namespace rdmakit::nbd {

enum class PageState : uint64_t { unset = 0, written = 1, claimed = 2, lost = 3 };

class PageMap {
 public:
  PageMap() = default;
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;
  ~PageMap();

  // 0 or an errno value. `file` empty: private memory. Else a file, best on tmpfs, that outlives the
  // process (see MappedFile), EINVAL also when it is not the map of a volume of this size. Pages that its
  // last user left `claimed` become `written`: either a WRITE was open, which was never answered and whose
  // sender must repeat it, so that until then any contents are right; or a refill was copying them, and then
  // the live replicas hold them. `prefault` touches it all now instead of on first use.
  int open(uint64_t pages, const std::string& file, bool prefault);

  PageState get(uint64_t page) const {
    const uint64_t word = words_[page / kPerWord].load(std::memory_order_acquire);
    return static_cast<PageState>(word >> (2 * (page % kPerWord)) & 3);
  }
  // How many pages from `first` on, at most `limit`, are in `state`.
  uint64_t run(uint64_t first, uint64_t limit, PageState state) const;
  // How many from `first` on, at most `limit`, are in any other.
  uint64_t run_of_others(uint64_t first, uint64_t limit, PageState state) const;
  // Claims pages from `first` on that are in state `from` (not claimed), at most `limit`: how many.
  uint64_t claim(uint64_t first, uint64_t limit, PageState from);
  // The claimant's only: claimed -> to.
  void settle(uint64_t first, uint64_t count, PageState to);
  // written, lost -> unset
  void clear(uint64_t first, uint64_t count);
  // The same for pages from `first` on up to the first claimed one, at most `limit`: how many.
  uint64_t clear_until_claimed(uint64_t first, uint64_t limit);
  // written -> lost. How many of the pages are claimed (and so may become written any time).
  uint64_t lose(uint64_t first, uint64_t count);
  uint64_t count(PageState state) const;
  void unlock() { file_.unlock(); }

 private:
  static constexpr uint64_t kPerWord = 32;
  static constexpr uint64_t kLow = 0x5555'5555'5555'5555;  // the low bit of each page

  int open_file(const std::string& file, size_t bytes);
  template <typename Chosen>
  uint64_t run_while(uint64_t first, uint64_t limit, Chosen chosen) const;
  template <typename Change>
  void for_each_word(uint64_t first, uint64_t count, Change change);

  std::atomic<uint64_t>* words_ = nullptr;
  uint64_t pages_ = 0;
  void* mapping_ = nullptr;  // without a file
  size_t mapped_ = 0;
  MappedFile file_;
};

}  // namespace rdmakit::nbd
