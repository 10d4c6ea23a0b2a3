#include "volume/volume.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "backup/backup.h"
#include "base/clock.h"
#include "system/error_reason.h"
#include "system/mapped_file.h"

namespace rdmakit::volume {

int Volume::open(const VolumeOptions& options, std::string& why) {
  if (options.size == 0 || options.size % kPage != 0 || options.size > uint64_t{1} << 62)
    return with_reason(why, EINVAL, "the size must be a multiple of 4096 bytes, and not 0");
  if (!std::has_single_bit(options.slab_size) || options.slab_size < kMinSlab)
    return with_reason(why, EINVAL, "the slab size must be a power of two of at least 1 MiB");
  slab_shift_ = static_cast<unsigned>(std::countr_zero(options.slab_size));
  const uint64_t count = (options.size + options.slab_size - 1) >> slab_shift_;
  if (count > 1u << 24)
    return with_reason(why, EINVAL, "more than 16,777,216 slabs: choose a larger slab size");
  slab_count_ = static_cast<uint32_t>(count);
  thin_ = options.thin;
  resyncs_ = options.resyncs;
  use_ = SlabIdleTimes(slab_count_, now_ns());
  size_ = options.size;
  read_only_ = options.read_only;
  int error = slabs_.open(slab_count_, options.slab_map_file);
  if (error == 0) error = placed_.open(slab_count_, options.prefault);
  if (error == 0 && thin_) error = cleared_.open(slab_count_, options.prefault);
  if (error != 0) return with_reason(why, error, mapping_failure("slab map", options.slab_map_file, error));
  mapped_ = slabs_.settle(slab_count_, [this](uint32_t slab) { placed_.set(slab, 1, true); });
  for (uint32_t server = 0; server < kMaxServers; server++) {
    failed_[server] = slabs_.recorded_failure(server);
    if (failed_[server]) order(server);
  }
  if (options.checksums) {
    // The file of a thin volume has the size of all its pages and the blocks of those written.
    error = checksums_.open(options.size / kPage, options.checksum_file, thin_, options.prefault);
    if (error != 0)
      return with_reason(why, error, mapping_failure("page checksums", options.checksum_file, error));
  }
  if (error = open_lengths(options, why); error != 0) return error;
  std::vector<uint64_t> lost;
  error =
      pages_.open(options.size / kPage, options.page_map_file, options.prefault, [&, this](uint64_t page) {
        const bool placeless = phase(page * kPage) == SlabPhase::vacant;
        const PageState to = state_after_death(placeless, checksums_.marked_lost(page), resyncs_);
        if (to == PageState::lost) {
          lost.push_back(page);
        } else {
          checksums_.forget(page, 1);
          if (to != PageState::unset) left_claimed_.push_back(page);
        }
        return to;
      });
  // Only now: a process that dies before leaves the mark to the next one.
  for (const uint64_t page : lost) checksums_.forget(page, 1);
  if (error == 0) error = provisioned_.open(options.size / kPage, options.prefault);
  if (error != 0) why = mapping_failure("page map", options.page_map_file, error);
  return error;
}

int Volume::open_lengths(const VolumeOptions& options, std::string& why) {
  compression_ = options.compression;
  if (compression_ == Compression::off && options.length_file.empty()) return 0;
  // A READ that a WRITE overtakes would else show half of each.
  if (!options.checksums) return with_reason(why, EINVAL, "pages can be compressed only with checksums");
  lz4_ = load_lz4(why);
  if (lz4_ == nullptr) return ENOPKG;
  const int error = lengths_.open(options.size / kPage, options.length_file, thin_, options.prefault);
  if (error != 0) why = mapping_failure("page lengths", options.length_file, error);
  return error;
}

// ---- hot path begins: no lock, no allocation, no system call ----

bool Volume::settle(uint64_t page, uint64_t count, uint32_t generation, PageState to) {
  pages_.settle(page, count, to);
  if (thin_ && to == PageState::unset) note_cleared(page * kPage >> slab_shift_);
  if (to != PageState::written || this->generation(page * kPage) == generation) return true;
  // replace_slab() changes the generation before it looks for written pages, and we wrote the state
  // before we looked at the generation: one of the two sees the other's change, so none stays `written`
  // wrongly.
  pages_.lose(page, count);
  return false;
}

// settle() decides WRITEs to an old generation. A retired replica counts for the WRITEs that began before:
// drop_replica() comes after all of them, sees which servers failed under them, and then keeps it.
bool Volume::counts(const SlabPlace& now, uint32_t generation, const Keeper& keeper) const {
  if (failed(keeper.server)) return false;
  if (now.generation != generation) return keeper.live;
  const Replica* const replica = now.find(keeper.server);
  return replica != nullptr && replica->address == keeper.address &&
         (replica->live || (replica->leaving && keeper.live));
}

uint64_t Volume::clear_until_claimed(uint64_t page, uint64_t limit, bool provisioned) {
  provisioned_.set(page, limit, provisioned);
  return clear_until_claimed(page, limit);
}

Allocation Volume::allocation(uint64_t page, uint64_t limit, uint64_t& run) const {
  for (int look = 0; look < 3; look++) {
    if (pages_.get(page) != PageState::unset) {
      run = pages_.run_of_others(page, limit, PageState::unset);
      if (run > 0) return Allocation::data;
    } else {
      run = pages_.run(page, limit, PageState::unset);
      if (run > 0) {
        const bool kept = provisioned_.get(page);
        run = std::max<uint64_t>(provisioned_.run(page, run, kept), 1);
        return kept ? Allocation::zeroes : Allocation::hole;
      }
    }
    // Changed between the two looks.
  }
  run = 1;
  return Allocation::data;  // always safe: nothing is known
}

// ---- hot path ends ----

uint64_t Volume::pages_of(uint32_t slab) const {
  return std::min(slab_size(), size_ - (uint64_t{slab} << slab_shift_)) / kPage;
}

int Volume::make_place(std::span<const Replica> replicas, SlabPlace& place) {
  if (replicas.empty() || replicas.size() > kMaxReplicas) return EINVAL;
  for (Replica replica : replicas) {
    if (replica.server >= kMaxServers || place.find(replica.server) != nullptr) return EINVAL;
    replica.live = true;  // there is nothing yet that it could lack
    place.replicas[place.count++] = replica;
  }
  return 0;
}

int Volume::map_slab(uint32_t slab, std::span<const Replica> replicas) {
  if (slab >= slab_count_) return EINVAL;
  const std::lock_guard lock(control_);
  SlabPlace place;
  if (const int error = make_place(replicas, place); error != 0) return error;
  if (!slabs_[slab].begin_mapping()) return EEXIST;
  place.generation = slabs_[slab].generation();
  slabs_[slab].publish(place);
  placed_.set(slab, 1, true);
  slabs_[slab].end_mapping(true);
  mapped_.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

int Volume::map_slab(uint32_t slab, uint32_t server, uint32_t remote_key, uint64_t address) {
  if (server >= kMaxServers) return EINVAL;
  const Replica replica{address, remote_key, static_cast<uint16_t>(server), true};
  return map_slab(slab, {&replica, 1});
}

int Volume::replace_slab(uint32_t slab, uint32_t server, uint32_t remote_key, uint64_t address, bool lost) {
  if (slab >= slab_count_ || server >= kMaxServers) return EINVAL;
  const std::lock_guard lock(control_);
  if (slabs_[slab].begin_mapping()) {
    placed_.set(slab, 1, true);
    slabs_[slab].end_mapping(true);
    mapped_.fetch_add(1, std::memory_order_relaxed);
  } else if (slabs_[slab].phase() != SlabPhase::mapped) {
    return EBUSY;
  }
  SlabPlace place;
  place.generation = slabs_[slab].generation() + 1;
  if (lost) {
    // Unmapped first: from here on no operation starts, and one that ends finds another generation.
    slabs_[slab].publish(place);
    const uint64_t first = first_page(slab);
    const uint64_t count = pages_of(slab);
    if (pages_.lose(first, count) > 0) return EBUSY;
    // A claim that ended between the two looks is caught by the second one.
    if (pages_.lose(first, count) > 0) return EBUSY;
  }
  place.count = 1;
  place.replicas[0] = {address, remote_key, static_cast<uint16_t>(server), true};
  slabs_[slab].publish(place);
  return 0;
}

int Volume::add_replica(uint32_t slab, const Replica& replica) {
  if (slab >= slab_count_ || replica.server >= kMaxServers) return EINVAL;
  const std::lock_guard lock(control_);
  if (failed(replica.server)) return EHOSTDOWN;
  if (slabs_[slab].phase() != SlabPhase::mapped) return ENODATA;
  SlabPlace place = slabs_[slab].read();
  if (place.find(replica.server) != nullptr) return EEXIST;
  if (place.count == kMaxReplicas) return ENOSPC;
  const bool backed_up = backup_ != nullptr && backup_->working();
  const auto usable = [this](const Replica& each) { return each.live && !failed(each.server); };
  if (!backed_up && std::ranges::none_of(place.all(), usable)) return ENODATA;
  place.replicas[place.count] = replica;
  place.replicas[place.count++].live = false;
  slabs_[slab].publish(place);
  return 0;
}

bool Volume::another_usable(const SlabPlace& place, uint32_t server) const {
  return std::ranges::any_of(place.all(), [=, this](const Replica& each) {
    return each.live && each.server != server && !failed(each.server);
  });
}

int Volume::retire_replica(uint32_t slab, uint32_t server) {
  if (slab >= slab_count_) return EINVAL;
  const std::lock_guard lock(control_);
  SlabPlace place = slabs_[slab].read();
  Replica* const found = place.find(server);
  if (found == nullptr || !found->live) return ENOENT;
  if (!another_usable(place, server)) return EBUSY;
  found->count(false);
  slabs_[slab].publish(place);
  return 0;
}

int Volume::drop_replica(uint32_t slab, uint32_t server, bool absent, Dropped& dropped) {
  return drop(slab, server, absent ? Drop::absent : Drop::lost, dropped);
}

int Volume::drop_retired(uint32_t slab, uint32_t server, Dropped& dropped) {
  return drop(slab, server, Drop::retired, dropped);
}

int Volume::drop(uint32_t slab, uint32_t server, Drop why, Dropped& dropped) {
  if (slab >= slab_count_) return EINVAL;
  const std::lock_guard lock(control_);
  SlabPlace place = slabs_[slab].read();
  Replica* const found = place.find(server);
  if (found == nullptr) return ENOENT;
  const bool last = !another_usable(place, server);
  if (why == Drop::retired || (why == Drop::lost && !failed(server))) {
    if (found->live) return EBUSY;
    if (found->leaving && last) {
      found->count(true);
      slabs_[slab].publish(place);
      return EBUSY;
    }
  }
  dropped.was_live = found->complete();
  if (dropped.was_live && failed(server)) forget_outlived(place, server);
  std::copy(found + 1, place.replicas.data() + place.count, found);
  place.count--;
  // Those that were to leave have everything, also where they have failed since: those that missed something
  // do not count any more.
  for (Replica& each : place.all()) {
    if (last && each.leaving) each.count(true);
  }
  dropped.live_left = static_cast<uint32_t>(std::ranges::count_if(place.all(), &Replica::complete));
  slabs_[slab].publish(place);
  return 0;
}

// A server that failed before `server` missed WRITEs that were answered because `server` had them. Without
// `server` the record would no longer show that.
void Volume::forget_outlived(SlabPlace& place, uint32_t server) const {
  for (Replica& each : place.all()) {
    if (failed(each.server) && rank(each.server) < rank(server)) each.live = each.leaving = false;
  }
}

int Volume::promote_replica(uint32_t slab, uint32_t server) {
  if (slab >= slab_count_) return EINVAL;
  const std::lock_guard lock(control_);
  SlabPlace place = slabs_[slab].read();
  Replica* const found = place.find(server);
  if (found == nullptr) return ENOENT;
  if (failed(server)) return EHOSTDOWN;
  if (!found->leaving) found->live = true;
  slabs_[slab].publish(place);
  return 0;
}

int Volume::idle(uint32_t slab, uint64_t now, uint64_t& nanoseconds) const {
  if (slab >= slab_count_) return EINVAL;
  nanoseconds = use_.idle(slab, now);
  return 0;
}

int Volume::look_up(uint32_t slab, SlabPlace& place, bool& ever) const {
  if (slab >= slab_count_) return EINVAL;
  place = slabs_[slab].read();
  ever = slabs_[slab].phase() != SlabPhase::vacant;
  return 0;
}

int Volume::move_replica(uint32_t slab, uint32_t from, const Replica& to) {
  if (slab >= slab_count_ || to.server >= kMaxServers) return EINVAL;
  const std::lock_guard lock(control_);
  SlabPlace place = slabs_[slab].read();
  if (place.find(to.server) != nullptr) return EEXIST;
  Replica* const found = place.find(from);
  if (found == nullptr || !found->complete()) return ENOENT;
  if (!has_everything(place, from)) return ESTALE;
  *found = to;
  found->count(true);
  slabs_[slab].publish(place);
  return 0;
}

// All others that were live have failed, and before it (docs/page-service/reconnect.md, "Why no page is
// old").
bool Volume::has_everything(const SlabPlace& place, uint32_t server) const {
  return std::ranges::all_of(place.all(), [&](const Replica& each) {
    return each.server == server || !each.complete() ||
           (failed(each.server) && (!failed(server) || rank(each.server) < rank(server)));
  });
}

bool Volume::fail(uint32_t server, uint32_t lane, const char* reason) {
  if (server >= kMaxServers) return false;
  slabs_.record_failure(server);
  const bool first = !failed_[server].exchange(true);
  if (first) failures_.fetch_add(1);
  // Also by who comes second: it is about to answer something that the server missed.
  order(server);
  if (first) {
    Failure& note = failure_notes_[server];
    note.lane = lane;
    snprintf(note.reason.data(), note.reason.size(), "%s", reason);
    noted_[server].store(true, std::memory_order_release);
  }
  return first;
}

bool Volume::failure(uint32_t server, Failure& failure) const {
  if (!noted_[server].load(std::memory_order_acquire)) return false;
  failure = failure_notes_[server];
  return true;
}

// The first number stored stays. It was drawn after the flag was set; and a lane that answers a WRITE that
// this server missed has seen the number before it checks the flag of the server that has the WRITE. So if
// that server fails, it draws a later number (docs/page-service/reconnect.md).
void Volume::order(uint32_t server) {
  std::atomic<uint64_t>& rank = failure_ranks_[server];
  uint64_t none = rank.load();
  if (none == 0) rank.compare_exchange_strong(none, last_rank_.fetch_add(1) + 1);
}

// Of a server that has failed. One without a number yet will have a larger one than all others: nothing that
// it missed was answered because a server had it that has failed by now. A lane that answers has stored or
// seen the number before it looks at that other server's flag, and the caller has seen that flag before it
// looks for the number. All four are sequentially consistent, so one of the two sees the other's change.
uint64_t Volume::rank(uint32_t server) const {
  const uint64_t rank = failure_ranks_[server].load();
  return rank == 0 ? UINT64_MAX : rank;
}

std::vector<uint32_t> Volume::failed_in_order() {
  std::vector<std::pair<uint64_t, uint32_t>> ranked;
  for (uint32_t server = 0; server < kMaxServers; server++) {
    if (!failed(server)) continue;
    order(server);
    ranked.emplace_back(failure_ranks_[server].load(std::memory_order_acquire), server);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<uint32_t> servers;
  for (const auto& [rank, server] : ranked) servers.push_back(server);
  return servers;
}

bool Volume::names(uint32_t server) {
  const std::lock_guard lock(control_);
  return named(server);
}

// Under control_. A lane that places a slab takes what a spare place names.
bool Volume::named(uint32_t server) const {
  if (spares_.names(server)) return true;
  for (uint32_t slab = 0; slab < slab_count_; slab++) {
    if (placed_.get(slab) && slabs_[slab].read().find(server) != nullptr) return true;
  }
  return false;
}

int Volume::release(uint32_t server) {
  if (server >= kMaxServers) return EINVAL;
  const std::lock_guard lock(control_);
  if (!failed(server)) return ENOENT;
  if (named(server)) return EBUSY;
  noted_[server].store(false, std::memory_order_relaxed);
  failure_ranks_[server].store(0, std::memory_order_relaxed);
  limiters_[server].set(0, 0);
  slabs_.forget_failure(server);
  failed_[server].store(false, std::memory_order_release);
  return 0;
}

}  // namespace rdmakit::volume
