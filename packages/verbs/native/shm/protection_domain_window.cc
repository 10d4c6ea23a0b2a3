// Memory windows of type 2B: entries of the region table which the peer of one queue pair alone may use.
#include <cerrno>

#include "shm/protection_domain.h"
#include "shm/queue_pair.h"
#include "shm/region_keys.h"

namespace rdmakit::shm {

int ProtectionDomain::can_remove(const MemoryRegion& region) {
  const std::lock_guard lock(windows_lock_);
  return region.windows == 0 ? 0 : EBUSY;
}

MemoryWindow* ProtectionDomain::add_window() {
  const std::lock_guard lock(mutex_);
  if (window_of_slot_ == nullptr) {
    decltype(window_of_slot_) made(
        static_cast<MemoryWindow**>(std::calloc(kMaxRegions, sizeof(MemoryWindow*))));
    const std::lock_guard windows_lock(windows_lock_);
    window_of_slot_ = std::move(made);
  }
  const uint32_t key = window_of_slot_ == nullptr ? 0 : make_key();
  if (key == 0) {
    errno = ENOMEM;
    return nullptr;
  }
  auto window = std::make_unique<MemoryWindow>();
  window->context = context;
  window->pd = this;
  window->rkey = key;
  window->type = IBV_MW_TYPE_2;
  windows_.push_back(window.get());
  users++;
  return window.release();
}

int ProtectionDomain::remove_window(MemoryWindow* window) {
  const std::unique_ptr<MemoryWindow> gone(window);
  const std::lock_guard lock(mutex_);
  std::erase(windows_, window);
  uint32_t key = 0;
  uint32_t user = 0;
  {
    const std::lock_guard windows_lock(windows_lock_);
    if (window->region != nullptr) {
      user = window->queue_pair;
      key = table()[slot_of_key(window->rkey)].key.load(std::memory_order_relaxed);
      unbind(*window);
    }
  }
  int error = 0;
  for (QueuePair* queue_pair : queue_pairs_) {
    if (key != 0 && queue_pair->qp_num == user && !queue_pair->wait_for_peer(key)) error = ETIMEDOUT;
  }
  if (error == 0) free_key(window->rkey);
  users--;
  return error;
}

// Hot path.
bool ProtectionDomain::bind(MemoryWindow& window, uint32_t key, MemoryRegion& region, uint64_t address,
                            uint64_t length, uint32_t access, uint32_t queue_pair) {
  constexpr uint32_t kWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  constexpr uint32_t kKnown = kWrites | IBV_ACCESS_REMOTE_READ;
  const uint32_t slot = slot_of_key(key);
  if (window.pd != this || region.pd != this || slot != slot_of_key(window.rkey) ||
      key >> 24 != window.rkey >> 24 || (access & ~kKnown) || length == 0) {
    return false;
  }
  const std::lock_guard lock(windows_lock_);
  const RegionEntry& whole = table()[slot_of_key(region.lkey)];
  const uint32_t needed =
      kRegion | IBV_ACCESS_MW_BIND | (access & kWrites ? uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0);
  if (window.region != nullptr || whole.key.load(std::memory_order_relaxed) != region.lkey ||
      (whole.access & needed) != needed || address < whole.address || length > whole.length ||
      address - whole.address > whole.length - length) {
    return false;
  }
  RegionEntry& entry = table()[slot];
  entry.access = access;
  entry.segment = whole.segment;
  entry.generation = whole.generation;
  entry.segment_address = whole.segment_address;
  entry.address = address;
  entry.length = length;
  entry.queue_pair = queue_pair;
  window.region = &region;
  window.queue_pair = queue_pair;
  region.windows++;
  window_of_slot_[slot] = &window;
  entry.key.store(key, std::memory_order_release);
  return true;
}

bool ProtectionDomain::invalidate(uint32_t key, uint32_t queue_pair) {
  const std::lock_guard lock(windows_lock_);
  const uint32_t slot = slot_of_key(key);
  MemoryWindow* window = window_of_slot_ == nullptr ? nullptr : window_of_slot_[slot];
  if (window == nullptr || window->queue_pair != queue_pair ||
      table()[slot].key.load(std::memory_order_relaxed) != key) {
    return false;
  }
  unbind(*window);
  return true;
}

// Under windows_lock_. From here on nobody finds the window; who had found it has its key as hazard.
void ProtectionDomain::unbind(MemoryWindow& window) {
  const uint32_t slot = slot_of_key(window.rkey);
  table()[slot].key.store(0, std::memory_order_seq_cst);
  window_of_slot_[slot] = nullptr;
  window.region->windows--;
  window.region = nullptr;
  window.queue_pair = 0;
}
// End of hot path.

}  // namespace rdmakit::shm
