// The state of each page of a volume in a backup file: 2 bits, in addition to the page map.
//
//   stale         it does not have the page
//   held          it has the page
//   queued        the page is in a queue on its way there
//   queued_stale  an older version is, and the page was written again since
//
//     stale, held ------ queue -----> queued ------- finish -----> held (stale when it failed)
//     held ------------- mark ------> stale
//     queued ----------- mark ------> queued_stale - finish -----> stale
//
// Only the holder of the page's claim (PageMap) calls queue() and mark(), before the page is written
// anywhere. Only the backup's thread calls finish(). So a page is queued at most once, and never counts as
// held while something newer exists.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "backup/backup_header.h"
#include "pages/table_memory.h"

namespace rdmakit::volume {

class PageMap;
enum class PageState : uint64_t;

enum class BackupState : uint64_t { stale = 0, held = 1, queued = 2, queued_stale = 3 };

// Identifies the file that a map is about. A new file may get the inode number of a removed one, but not its
// birth time (0 if the file system keeps none).
struct BackupIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t born = 0;  // ns
  bool operator==(const BackupIdentity&) const = default;
};

class BackupMap {
 public:
  static constexpr uint64_t kPerWord = 32;

  BackupMap() = default;
  BackupMap(const BackupMap&) = delete;
  BackupMap& operator=(const BackupMap&) = delete;

  // 0 or an errno value. `file` empty: private memory, all stale. Else a file that outlives the process (see
  // MappedFile), EINVAL also if it belongs to a volume of another size. A map about another backup file is
  // cleared, and so is one about an `empty` file or a file that has changed since (`stamp`, of the file).
  // Pages that were queued when its last user ended are stale.
  int open(uint64_t pages, const std::string& file, const BackupIdentity& about, const BackupStamp& stamp,
           bool empty, bool prefault);
  // The file was there and is not as it was left.
  bool outdated() const { return outdated_; }

  // The backup thread's. Gives the file the stamp that follows by `put`, which returns an errno value.
  // Whenever the process is killed, the map knows the stamp that the file has.
  template <typename Put>
  int stamp(uint64_t random, Put put) {
    next() = next_stamp(current(), random);
    const int error = put(next());
    if (error == 0) current() = next();
    return error;
  }

  void unlock() { memory_.unlock(); }

  // Pages, in order, that were queued when the last user of the map's file ended, so that the file may lack
  // them. None if the catch-up was bringing some at that moment, or the backup had failed: which ones were
  // answered is not known. Constant once open.
  const std::vector<uint64_t>& left_queued() const { return left_queued_; }
  // The catch-up's: from before it offers pages to the backup whose claims it has, until none of them is
  // queued any more. Pages that were answered long ago are queued meanwhile, and others may claim them.
  void begin_bringing() { bringing_->fetch_or(kBringing); }
  void end_bringing() { bringing_->fetch_and(~kBringing); }
  bool bringing() const { return (bringing_->load() & kBringing) != 0; }
  // Before anybody sees that the backup has failed: from then on a page may stay queued behind its answer.
  void fail() { bringing_->fetch_or(kFailed); }

  BackupState get(uint64_t page) const { return in_word(words_[page / kPerWord].load(), page); }
  // How many pages from `first` on, at most `limit`, are in `state`.
  uint64_t run(uint64_t first, uint64_t limit, BackupState state) const;

  // The claimant's. `queue` only for a page that is neither queued nor queued_stale.
  void queue(uint64_t page);
  void mark(uint64_t page);
  // Called by the backup thread: a queued page is in the file, or could not be written.
  void finish(uint64_t page, bool kept);

  // For the pages of a word (32 from word * 32 on): the low bit of each pair that is `written` in the page
  // map and stale, and of each that is in `state` there and that the file neither has nor will get.
  uint64_t stale(uint64_t word, const PageMap& pages) const;
  uint64_t missing(uint64_t word, const PageMap& pages, PageState state) const;
  // Pages that are written and neither held nor queued. Also those that the catch-up is reading, and those
  // that a WRITE is bringing: neither is in the file if their server is lost now.
  uint64_t count_missing(const PageMap& pages, uint64_t first, uint64_t count) const;
  // Of these, before anything is written, those that no WRITE brings again that was open when the last user
  // of the files ended: it had queued its pages (it is answered when the file has them) and had them
  // `claimed`, in order. Other claims, as the catch-up's and a repair's, are of pages that were answered.
  uint64_t count_lacking(const PageMap& pages, uint64_t first, uint64_t count,
                         const std::vector<uint64_t>& claimed) const;

 private:
  static constexpr uint64_t kLow = 0x5555'5555'5555'5555;
  // In bringing_.
  static constexpr uint64_t kBringing = 1;
  static constexpr uint64_t kFailed = 2;

  static BackupState in_word(uint64_t word, uint64_t page) {
    return static_cast<BackupState>(word >> (2 * (page % kPerWord)) & 3);
  }
  void open_file(const BackupIdentity& about, const BackupStamp& stamp, bool empty, size_t bytes);
  void end_queued(bool brought);
  // In the map's file, when there is one.
  BackupStamp& current() { return *current_; }
  BackupStamp& next() { return *next_; }
  template <typename Next>
  void change(uint64_t page, Next next);

  std::atomic<uint64_t>* words_ = nullptr;
  uint64_t pages_ = 0;
  TableMemory memory_;
  BackupStamp private_current_;
  BackupStamp private_next_;
  BackupStamp* current_ = &private_current_;
  BackupStamp* next_ = &private_next_;
  std::atomic<uint64_t> private_bringing_{0};
  std::atomic<uint64_t>* bringing_ = &private_bringing_;
  std::vector<uint64_t> left_queued_;
  bool outdated_ = false;
};

}  // namespace rdmakit::volume
