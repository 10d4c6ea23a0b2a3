// The state of each 4 KiB page of a volume: 2 bits, changed by any lane with atomic operations.
//
//   unset    never written, or trimmed: reads as zeros, whatever the slab holds
//   written  the slab holds it
//   claimed  one WRITE, or the refill of a replica, has it for itself; others wait
//   lost     it was written, and its server is gone: reads as EIO
//
//              claim                settle
//     unset --------->            ---------> unset     a first WRITE that failed
//     written ------->  claimed   ---------> written
//     lost ---------->            ---------> lost
//
//     written --- lose ---> lost         written, lost --- clear_until_claimed ---> unset
//
//     at a death   claimed --- open ---> unset, written, or claimed, and then --- begin_resync ---> written
//
// Why this is safe with several lanes. A request is open from its arrival until its answer. A block device
// does not order open requests that overlap, so every interleaving is right if each page ends as some order
// of them would leave it, and answered requests keep their effect.
//  1. A page is `written` only when its whole 4 KiB are in the slab: the write under its first claim covers
//     all of it, and settle() comes after that write's completion (and fence, see RdmaQueue). So no reader
//     ever sees stale remote bytes.
//  2. Every WRITE claims its pages, so that all replicas get overlapping WRITEs in one order, a replica can
//     be filled while WRITEs go on, and what is known of a page (its checksum) belongs to one WRITE.
//  3. Only the claimant leaves `claimed`. All others wait: a second writer, of a full page or not, because
//     its bytes could be overwritten on one replica and not on the other; WRITE_ZEROES and TRIM, because the
//     claimant may be the refill, which does not see them; a reader, because half of the bytes may be new.
//  4. Each RDMA WRITE claims ascending pages and posts at once; nothing is held while waiting, so waiters
//     cannot form a circle. A claim ends within the operation timeout.
//  5. A failed claim restores the previous state: the change was never acknowledged.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "pages/table_memory.h"

namespace rdmakit::volume {

enum class PageState : uint64_t { unset = 0, written = 1, claimed = 2, lost = 3 };

// What a page becomes that a dead process left claimed. Nothing of the slab was written when it has no place
// yet (`placeless`). A page that was lost before (`lost`) is so still: the WRITE was never answered, and what
// the servers have of it may be neither old nor new. Else either a WRITE was open, which was never answered,
// or a refill was copying the page, and the live replicas hold it. The sender may have to repeat such a
// WRITE, as the kernel does, and until then any contents are right. Or the caller makes the replicas alike
// (`resyncs`): the page is claimed until then.
constexpr PageState state_after_death(bool placeless, bool lost, bool resyncs) {
  if (placeless) return PageState::unset;
  if (lost) return PageState::lost;
  return resyncs ? PageState::claimed : PageState::written;
}

class PageMap {
 public:
  // 0 or an errno value. `file` empty: private memory. Else a file, best on tmpfs, that outlives the
  // process (see MappedFile), EINVAL also when it is not the map of a volume of this size. `left_claimed` is
  // called for each page that its last user left `claimed`, or in the middle of its resync, in ascending
  // order and while it is still claimed, so that a process that dies here leaves it to the next one: other
  // records about such a page must not be trusted. It returns the state that the page gets: `claimed` is one
  // that waits for begin_resync(). `prefault` touches all memory now instead of on first use.
  int open(uint64_t pages, const std::string& file, bool prefault,
           const std::function<PageState(uint64_t page)>& left_claimed);

  // A page that left_claimed() has left `claimed` becomes `written`, and its replicas are about to be made
  // alike. The file names it until the next of these two calls, so that a process that dies before then
  // leaves it to the next one as if it were claimed. Of one page at a time.
  void begin_resync(uint64_t page);
  void end_resync();

  // Sequentially consistent, as run(): see Volume::place.
  PageState get(uint64_t page) const {
    const uint64_t word = words_[page / kPerWord].load();
    return static_cast<PageState>(word >> (2 * (page % kPerWord)) & 3);
  }
  // How many pages from `first` on, at most `limit`, are in `state`.
  uint64_t run(uint64_t first, uint64_t limit, PageState state) const;
  // How many from `first` on, at most `limit`, are in any other.
  uint64_t run_of_others(uint64_t first, uint64_t limit, PageState state) const;
  // For the 32 pages from word * 32 on: the low bit of each pair that is in `state`. Pages beyond the end of
  // the volume are unset.
  uint64_t in_state(uint64_t word, PageState state) const {
    const uint64_t different =
        words_[word].load(std::memory_order_acquire) ^ (static_cast<uint64_t>(state) * kLow);
    return ~(different | different >> 1) & kLow;
  }
  // The same for `written` and `claimed` together, by one look.
  uint64_t written_or_claimed(uint64_t word) const {
    const uint64_t states = words_[word].load(std::memory_order_acquire);
    return (states ^ states >> 1) & kLow;
  }
  // Claims pages from `first` on that are in state `from` (not claimed), at most `limit`: how many.
  uint64_t claim(uint64_t first, uint64_t limit, PageState from);
  // The claimant's only: claimed -> to.
  void settle(uint64_t first, uint64_t count, PageState to);
  // written, lost -> unset, for pages from `first` on up to the first claimed one, at most `limit`: how many.
  uint64_t clear_until_claimed(uint64_t first, uint64_t limit);
  // written -> lost. How many of the pages are claimed (and so may become written any time).
  uint64_t lose(uint64_t first, uint64_t count);
  uint64_t count(uint64_t first, uint64_t count, PageState state) const;
  uint64_t count(PageState state) const { return count(0, pages_, state); }
  // When no lane has anything to do, also for a map that could not be opened: at most `waiting` pages are
  // claimed. 100 GiB take 1 ms, 1 TiB 4 to 16 ms.
  void check_rest(uint64_t waiting) const;
  // Also those that a lane claims just before it looks at what the caller has changed (see Volume::vacate).
  bool all_unset(uint64_t first, uint64_t count) const;
  void unlock() { memory_.unlock(); }

 private:
  static constexpr uint64_t kPerWord = 32;
  static constexpr uint64_t kLow = 0x5555'5555'5555'5555;  // the low bit of each page

  template <typename Chosen>
  uint64_t run_while(uint64_t first, uint64_t limit, Chosen chosen) const;
  template <typename Change>
  void for_each_word(uint64_t first, uint64_t count, Change change) const;

  std::atomic<uint64_t>* words_ = nullptr;
  std::atomic<uint64_t>* resyncing_ = nullptr;  // in the file: page + 1; 0: none
  uint64_t pages_ = 0;
  TableMemory memory_;
};

}  // namespace rdmakit::volume
