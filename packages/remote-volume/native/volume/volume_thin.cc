// Thin volumes: slabs get their places when they are first written, and give them back when they are empty.
#include <algorithm>
#include <cerrno>

#include "volume/volume.h"

namespace rdmakit::volume {

// ---- hot path begins: no lock, no allocation, no system call ----

bool Volume::place_spare(uint64_t offset) {
  SlabRecord& record = slabs_[offset >> slab_shift_];
  if (!record.begin_mapping()) return record.phase() == SlabPhase::mapped;
  PlacePool::Slot* const slot = spares_.hold([this](uint32_t server) { return failed(server); });
  if (slot == nullptr) {
    record.end_mapping(false);
    if (!starved_.exchange(true)) call_control();
    return false;
  }
  SlabPlace place = slot->place();
  place.generation = record.generation();
  record.publish(place);
  placed_.set(offset >> slab_shift_, 1, true);
  record.end_mapping(true);
  spares_.use(*slot, static_cast<uint32_t>(offset >> slab_shift_));
  mapped_.fetch_add(1, std::memory_order_relaxed);
  call_control();
  return true;
}

// If control wants to take the place, for the slab was empty, then one of the two is too late.
bool Volume::keep(uint64_t offset) {
  SlabRecord& record = slabs_[offset >> slab_shift_];
  return record.reopen() || record.phase() == SlabPhase::mapped;
}

uint64_t Volume::clear_until_claimed(uint64_t page, uint64_t limit) {
  const uint64_t cleared = pages_.clear_until_claimed(page, limit);
  if (thin_ && cleared > 0) {
    const uint64_t last = (page + cleared - 1) * kPage >> slab_shift_;
    for (uint64_t slab = page * kPage >> slab_shift_; slab <= last; slab++) note_cleared(slab);
  }
  return cleared;
}

// Usually it is noted already. A client that discards and then writes elsewhere gets no ENOSPC before control
// has checked the discarded slabs.
void Volume::note_cleared(uint64_t slab) {
  bool news = cleared_[slab].load() == 0;
  if (news) {
    if (slabs_[slab].phase() == SlabPhase::vacant) return;
    cleared_[slab].store(1);
  }
  // After that: either control sees the slab noted, or this sees what control has said.
  if (room_.load() != Room::unknown) {
    room_.store(Room::unknown);
    news = true;
  }
  if (news) call_control();
}

// ---- hot path ends ----

int Volume::add_spare(uint32_t id, std::span<const Replica> replicas) {
  const std::lock_guard lock(control_);
  SlabPlace place;
  if (const int error = make_place(replicas, place); error != 0) return error;
  if (!spares_.add(id, place)) return ENOSPC;
  room_ = Room::unknown;
  starved_ = false;
  return 0;
}

bool Volume::remove_spare(uint32_t id) {
  const std::lock_guard lock(control_);
  return spares_.remove(id);
}

void Volume::collect_spares(std::vector<PlacePool::Used>& used) {
  const std::lock_guard lock(control_);
  spares_.collect(used);
}

void Volume::take_cleared(std::vector<uint32_t>& slabs) {
  const std::lock_guard lock(control_);
  // Notes of pages that become unset before the caller checks are covered by that check; later ones are noted
  // again.
  for (uint32_t slab = 0; slab < slab_count_; slab++) {
    if (cleared_[slab].load() != 0 && cleared_[slab].exchange(0) != 0) slabs.push_back(slab);
  }
}

void Volume::set_exhausted() {
  const std::lock_guard lock(control_);
  room_ = Room::looking;
  bool noted = false;
  for (uint32_t slab = 0; slab < slab_count_ && !noted; slab++) noted = cleared_[slab].load() != 0;
  Room looking = Room::looking;
  room_.compare_exchange_strong(looking, noted ? Room::unknown : Room::none);
  refusals_.fetch_add(1);
}

int Volume::vacate(uint32_t slab) {
  if (slab >= slab_count_) return EINVAL;
  const std::lock_guard lock(control_);
  SlabRecord& record = slabs_[slab];
  const SlabPlace place = record.read();
  if (record.phase() != SlabPhase::mapped || !place.mapped()) return ENOENT;
  if (!std::ranges::all_of(place.all(), &Replica::live)) return EBUSY;
  const uint64_t first = first_page(slab);
  const uint64_t count = pages_of(slab);
  // A cheap check first, because the slab is usually not empty; it disturbs no lane.
  if (!pages_.all_unset(first, count)) return EBUSY;
  record.close();
  // A claim of a page from before its lane could see `closing` is seen here; a lane that claims later sees
  // `closing`.
  if (!pages_.all_unset(first, count)) {
    record.reopen();
    return EBUSY;
  }
  if (!record.vacate()) return EBUSY;
  SlabPlace nowhere;
  nowhere.generation = place.generation + 1;
  record.publish(nowhere);
  // Before a lane sees it vacant, and does not note what becomes unset there.
  room_ = Room::unknown;
  record.end_mapping(false);
  mapped_.fetch_sub(1, std::memory_order_relaxed);
  return 0;
}

uint64_t Volume::count_pages(PageState state) const {
  uint64_t total = 0;
  for (uint32_t slab = 0; slab < slab_count_; slab++) {
    // A record is 128 bytes, and there are kernels where memory that is only read is memory, too.
    if (placed_.get(slab) && slabs_[slab].phase() != SlabPhase::vacant)
      total += pages_.count(first_page(slab), pages_of(slab), state);
  }
  return total;
}

}  // namespace rdmakit::volume
