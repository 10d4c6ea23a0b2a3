// A volume: its slabs, which servers hold each, which servers have failed, and its page map.
// Shared by all lanes; the control path changes it while they run, and they never wait for it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compression/compression_meter.h"
#include "compression/lz4_library.h"
#include "pages/page_bits.h"
#include "pages/page_checksums.h"
#include "pages/page_lengths.h"
#include "pages/page_map.h"
#include "pages/write_counters.h"
#include "rdma/operation.h"
#include "system/lazy_array.h"
#include "volume/limits.h"
#include "volume/place_pool.h"
#include "volume/rate_limiter.h"
#include "volume/slab_idle_time.h"
#include "volume/slab_map.h"
#include "volume/slab_record.h"

namespace rdmakit::volume {

class Backup;

// The contents of a page, for a caller that asks before reading it.
enum class Allocation : uint8_t {
  data,
  zeroes,  // cleared by a request that wanted the page to keep its place
  hole,    // zeros, and no place of its own
};

struct VolumeOptions {
  uint64_t size = 0;
  uint64_t slab_size = 64 << 20;
  bool read_only = false;
  bool checksums = true;
  bool thin = false;  // slabs get their places when they are first written
  std::string page_map_file;
  std::string checksum_file;
  Compression compression = Compression::off;  // of pages that are written
  std::string length_file;  // not empty: also of a volume that was compressed once, and is read so
  std::string slab_map_file;
  bool prefault = false;
  bool resyncs = false;  // pages left claimed stay so until next_to_resync() names them
};

class Volume {
 public:
  // 0 or an errno value with `why`.
  int open(const VolumeOptions& options, std::string& why);

  uint64_t size() const { return size_; }
  bool read_only() const { return read_only_; }
  // Offset and length of a request must be multiples of this: whole pages if they are compressed.
  uint32_t minimum_block() const { return lz4_ == nullptr ? 1 : kPage; }
  uint64_t slab_size() const { return uint64_t{1} << slab_shift_; }
  uint32_t slabs() const { return slab_count_; }
  PageMap& pages() { return pages_; }
  const PageMap& pages() const { return pages_; }
  PageChecksums& checksums() { return checksums_; }
  WriteCounters& write_counters() { return write_counters_; }
  PageLengths& lengths() { return lengths_; }
  Compression compression() const { return compression_; }
  // nullptr: no page is packed.
  const Lz4* lz4() const { return lz4_; }
  uint64_t first_page(uint32_t slab) const { return (uint64_t{slab} << slab_shift_) / kPage; }
  uint64_t pages_of(uint32_t slab) const;

  // ---- hot path: by lanes ----
  // Whole pages become zeros, up to the first claimed one: how many. `provisioned`: the client wants no holes
  // there (WRITE_ZEROES with NO_HOLE).
  uint64_t clear_until_claimed(uint64_t page, uint64_t limit, bool provisioned);
  uint64_t clear_until_claimed(uint64_t page, uint64_t limit);
  // The contents of the pages from `page` on, and the length of the run, at least 1 and at most `limit`.
  Allocation allocation(uint64_t page, uint64_t limit, uint64_t& run) const;
  // A WRITE that claims its pages reads the place after the claim. A refill looks at the pages after it has
  // published the record that names its replica. All four are sequentially consistent, so one of the two sees
  // the other's change.
  SlabPlace place(uint64_t offset) const { return slabs_[offset >> slab_shift_].read(); }
  uint32_t generation(uint64_t offset) const { return slabs_[offset >> slab_shift_].generation(); }
  SlabPhase phase(uint64_t offset) const { return slabs_[offset >> slab_shift_].phase(); }
  // The slab has no place because nothing was written to it, and gets one from place_spare().
  bool placeless(uint64_t offset) const {
    if (!thin_) return false;
    const SlabPhase phase = this->phase(offset);
    return phase == SlabPhase::vacant || phase == SlabPhase::mapping;
  }
  // It had no place when the caller looked, and that was not because it is lost: it has one now, or is
  // placeless.
  bool placed_since(uint64_t offset) const { return thin_ && (placeless(offset) || place(offset).mapped()); }
  // Gives a slab that is placeless one of the spare places. False: there is none, or another lane takes one
  // for it just now.
  bool place_spare(uint64_t offset);
  bool exhausted() const { return room_.load(std::memory_order_acquire) == Room::none; }
  // Completed scans by control that found no free memory. A waiter may fail after two: the first may have
  // begun before it waited.
  uint32_t refusals() const { return refusals_.load(std::memory_order_acquire); }
  // After a claim in a slab of a thin volume: it keeps its place as long as the claim stands. False: it has
  // none, end the claim.
  bool hold(uint64_t offset) { return !thin_ || phase(offset) == SlabPhase::mapped || keep(offset); }
  // There is something for control: slabs to collect, to fill the spares for, or to vacate. One caller hears
  // it.
  bool calls_control() {
    return calls_control_.load(std::memory_order_relaxed) && calls_control_.exchange(false);
  }
  void call_control() { calls_control_.store(true, std::memory_order_release); }
  uint64_t left_in_slab(uint64_t offset) const { return slab_size() - (offset & (slab_size() - 1)); }
  uint64_t within_slab(uint64_t offset) const { return offset & (slab_size() - 1); }
  // Ends a claim after its write completed. False: the slab was replaced meanwhile, so the written data are
  // gone.
  bool settle(uint64_t page, uint64_t count, uint32_t generation, PageState to);
  // An operation starts there.
  void touch(uint64_t offset, uint64_t now) { use_.touch(static_cast<uint32_t>(offset >> slab_shift_), now); }
  // When an operation may start at that server, or at all of a place, in ns; 0: now.
  uint64_t turn(uint32_t server, uint64_t now) const { return limiters_[server].turn(now); }
  uint64_t turn(const SlabPlace& place, uint64_t now) const {
    uint64_t turn = 0;
    for (const Replica& each : place.all()) turn = std::max(turn, limiters_[each.server].turn(now));
    return turn;
  }
  RateLimiter& limiter(uint32_t server) { return limiters_[server]; }
  // Sequentially consistent: see rank().
  bool failed(uint32_t server) const { return failed_[server].load(); }
  // Requests for a slab whose live replicas have all failed wait until control has brought one back or
  // dropped them (docs/page-service/reconnect.md); for one that has a leaving replica, until control has
  // dropped it or made it live again.
  bool waits_for(const SlabPlace& place) const {
    const bool waits = waits_.load(std::memory_order_acquire);
    return std::ranges::any_of(place.all(),
                               [=](const Replica& each) { return each.leaving || (waits && each.live); });
  }
  // Whether a WRITE may be answered because `keeper` has it. A copy counts as long as the slab's record names
  // it (docs/page-service.md, "Which copies count"): `now` is that record, of the moment at which it is
  // decided, and `generation` the one in which the WRITE was chained.
  bool counts(const SlabPlace& now, uint32_t generation, const Keeper& keeper) const;
  // Grows with each failure; a lane that sees it changed looks at failed() of its servers.
  uint32_t failures() const { return failures_.load(std::memory_order_acquire); }
  // The number of the last one that has its place in the order: it changes before control handles a failure,
  // and before anything is answered that the server missed.
  uint64_t last_failure() const { return last_rank_.load(std::memory_order_acquire); }
  // Grows with each synchronize(); see Epochs in rdma_queue.h.
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }

  // ---- control, any thread ----
  // EINVAL: out of range, or two on one server; EEXIST: mapped already.
  int map_slab(uint32_t slab, std::span<const Replica> replicas);
  int map_slab(uint32_t slab, uint32_t server, uint32_t remote_key, uint64_t address);
  // EINVAL; EBUSY (contents lost only): first writes to the old place are still ending; the slab stays
  // unmapped, call again.
  int replace_slab(uint32_t slab, uint32_t server, uint32_t remote_key, uint64_t address, bool lost);
  // Before there are lanes. With a backup a slab may be without a live replica.
  void set_backup(const Backup* backup) { backup_ = backup; }
  const Backup* backup() const { return backup_; }
  // To be filled. EINVAL; EEXIST: the server holds one; ENOSPC; EHOSTDOWN; ENODATA: neither a live one nor a
  // backup to fill it from.
  int add_replica(uint32_t slab, const Replica& replica);
  // The result of drop_replica().
  struct Dropped {
    bool was_live = false;
    uint32_t live_left = 0;  // on servers that have failed, too, but for those that missed what this one had
  };
  // Prepares the drop of a live replica: it is still written to, but no WRITE that begins from now on counts
  // it for its answer. After an epoch drop_retired() follows. EINVAL; ENOENT: there is no live one; EBUSY:
  // there is no other usable one.
  int retire_replica(uint32_t slab, uint32_t server);
  // One that was retired, an epoch ago. If its own server has failed since, it is dropped only where another
  // one is usable: whether it was the last to have everything is decided where its failure is handled.
  // EINVAL, ENOENT; EBUSY: it is the last usable one, or was the last, and live again.
  int drop_retired(uint32_t slab, uint32_t server, Dropped& dropped);
  // Any whose server has failed, or is `absent`: this process never reached it. Else one that is being
  // filled, or that was retired and an epoch ago. EINVAL, ENOENT; EBUSY: it was not retired, or it is the
  // last usable one, and live again.
  int drop_replica(uint32_t slab, uint32_t server, bool absent, Dropped& dropped);
  // A replica's server has come back under another index, with all its contents. Whether the new one has
  // failed by now is not checked: the handler of that failure will find the record. EINVAL; ENOENT: `from`
  // has no live replica; EEXIST; ESTALE: another one is usable, or failed later, and has what this one
  // missed.
  int move_replica(uint32_t slab, uint32_t from, const Replica& to);
  // Makes a filled replica live. EINVAL, ENOENT; EHOSTDOWN: it missed a write.
  int promote_replica(uint32_t slab, uint32_t server);
  // EINVAL.
  int idle(uint32_t slab, uint64_t now, uint64_t& nanoseconds) const;
  // A place for a slab that will be written first. EINVAL as map_slab(); ENOSPC: there are enough.
  int add_spare(uint32_t id, std::span<const Replica> replicas);
  // False: it is taken, or just being looked at.
  bool remove_spare(uint32_t id);
  // Which spare places became the place of which slab since the last call.
  void collect_spares(std::vector<PlacePool::Used>& used);
  // No memory is left at the servers: first WRITEs fail instead of waiting, until add_spare() or until pages
  // become unset. When some have since take_cleared(), this is one of refusals() and no more.
  void set_exhausted();
  // Slabs of which pages became unset since the last call.
  void take_cleared(std::vector<uint32_t>& slabs);
  // Takes the place from an empty slab, which is one that was never written from then on. Its memory may be
  // used again after an epoch. ENOENT: it has none; EBUSY: it is not empty, or a replica of it is being
  // filled.
  int vacate(uint32_t slab);
  uint32_t spares() const { return spares_.size(); }
  uint32_t mapped() const { return mapped_.load(std::memory_order_relaxed); }
  uint64_t count_pages(PageState state) const;
  // Where it is; not mapped: nowhere yet, or lost (`ever` then). EINVAL: out of range.
  int look_up(uint32_t slab, SlabPlace& place, bool& ever) const;
  // Why a server failed, and in which lane; kMaxLanes: control said so.
  struct Failure {
    uint32_t lane = 0;
    std::array<char, 120> reason{};
  };
  // True for the first caller, who rings for control then. On record, and in its place in the order, before
  // anything is answered without that server. Any thread, no lock.
  bool fail(uint32_t server, uint32_t lane = kMaxLanes, const char* reason = "");
  // For a server that failed in this process. False: it has not, or the thread that found the failure is
  // still recording it.
  bool failure(uint32_t server, Failure& failure) const;
  // By the order in which they failed, see docs/page-service/reconnect.md; those that an earlier process had
  // lost come first.
  std::vector<uint32_t> failed_in_order();
  // The index of a server that failed may be given to another one, when no lane has an operation or a queue
  // pair of it (Engine::release_server). EINVAL; ENOENT: it has not failed; EBUSY: a slab or a spare place
  // names it.
  int release(uint32_t server);
  // A slab or a spare place names that server.
  bool names(uint32_t server);
  // From now on requests may wait for control: it answers every failure, by dropping the replicas or moving
  // them.
  void set_waits() { waits_.store(true, std::memory_order_release); }
  // Pages that the last user of the page map's file left in the middle of a WRITE. Constant once open.
  const std::vector<uint64_t>& left_claimed() const { return left_claimed_; }
  // The next of them, whose replicas the caller makes alike. With `resyncs` its claim ends, but until the
  // next call it is still one for a process that comes after a death. None: the last one is done. One caller.
  std::optional<uint64_t> next_to_resync() {
    if (resynced_ == left_claimed_.size()) {
      if (resyncs_) pages_.end_resync();
      return std::nullopt;
    }
    const uint64_t page = left_claimed_[resynced_++];
    if (resyncs_) pages_.begin_resync(page);
    return page;
  }
  // When all lanes have ended at rest: no page is claimed, but for those whose replicas were not made alike.
  void check_rest() const { pages_.check_rest(resyncs_ ? left_claimed_.size() : 0); }
  // This process has stopped using the volume: another process may have its files.
  void unlock_files() {
    slabs_.unlock();
    pages_.unlock();
    checksums_.unlock();
    lengths_.unlock();
  }
  uint64_t raise_epoch() { return epoch_.fetch_add(1) + 1; }

 private:
  enum class Drop : uint8_t { lost, retired, absent };
  int drop(uint32_t slab, uint32_t server, Drop why, Dropped& dropped);
  bool another_usable(const SlabPlace& place, uint32_t server) const;
  bool named(uint32_t server) const;
  bool has_everything(const SlabPlace& place, uint32_t server) const;
  void forget_outlived(SlabPlace& place, uint32_t server) const;
  static int make_place(std::span<const Replica> replicas, SlabPlace& place);
  int open_lengths(const VolumeOptions& options, std::string& why);
  void order(uint32_t server);
  uint64_t rank(uint32_t server) const;
  bool keep(uint64_t offset);
  void note_cleared(uint64_t slab);

  uint64_t size_ = 0;
  bool read_only_ = false;
  unsigned slab_shift_ = 0;
  uint32_t slab_count_ = 0;
  SlabMap slabs_;
  const Backup* backup_ = nullptr;
  std::mutex control_;  // one writer of records at a time; lanes never take it
  SlabIdleTimes use_;
  PageMap pages_;
  std::vector<uint64_t> left_claimed_;
  bool resyncs_ = false;
  size_t resynced_ = 0;  // of left_claimed_
  PageChecksums checksums_;
  WriteCounters write_counters_;
  PageLengths lengths_;
  Compression compression_ = Compression::off;
  const Lz4* lz4_ = nullptr;
  // A slab keeps its memory whatever its pages say, so no page ever lacks room; but a client that asked for
  // no hole is not told of one. Counts for unset pages only; forgotten with the process.
  PageBits provisioned_;
  bool thin_ = false;
  PlacePool spares_;
  PageBits placed_;                          // by slab: it has a place, or had one
  LazyArray<std::atomic<uint8_t>> cleared_;  // by slab, of thin volumes: 1 after pages became unset
  std::atomic<uint32_t> mapped_{0};
  enum class Room : uint8_t { unknown, looking, none };
  std::atomic<Room> room_{Room::unknown};
  std::atomic<uint32_t> refusals_{0};
  std::atomic<bool> starved_{false};  // control was called because there was no spare place
  std::atomic<bool> calls_control_{false};
  std::array<std::atomic<bool>, kMaxServers> failed_{};
  std::atomic<uint64_t> last_rank_{0};
  std::array<std::atomic<uint64_t>, kMaxServers> failure_ranks_{};  // who failed later has more; 0: none yet
  std::array<Failure, kMaxServers> failure_notes_{};                // by who was first to see it,
  std::array<std::atomic<bool>, kMaxServers> noted_{};              // and whether it is valid
  std::atomic<bool> waits_{false};
  std::array<RateLimiter, kMaxServers> limiters_;
  std::atomic<uint32_t> failures_{0};
  std::atomic<uint64_t> epoch_{0};
};

}  // namespace rdmakit::volume
