// Memory windows of type 2B: entries of the region table which the peer of one queue pair alone may use.
#include <cerrno>

#include "shm/mapping/hazard.h"
#include "shm/memory/protection_domain.h"
#include "shm/memory/region_keys.h"
#include "shm/queue-pair/queue_pair.h"

namespace rdmakit::shm {
namespace {

// They differ only in the bits that are the consumer's.
bool same_window(uint32_t key, uint32_t other) { return ((key ^ other) & ~0xffu) == 0; }

}  // namespace

MemoryWindow* ProtectionDomain::add_window() {
  const std::lock_guard lock(mutex_);
  if (own_ == nullptr) {
    decltype(own_) made(static_cast<Own*>(std::calloc(kMaxRegions, sizeof(Own))));
    const std::lock_guard windows_lock(windows_lock_);
    own_ = std::move(made);
  }
  const uint32_t key = own_ == nullptr ? 0 : make_key();
  if (key == 0) {
    errno = ENOMEM;
    return nullptr;
  }
  auto window = std::make_unique<MemoryWindow>();
  window->context = context;
  window->pd = this;
  window->rkey = window->made_as = key;
  window->type = IBV_MW_TYPE_2;
  windows_.push_back(window.get());
  users++;
  const std::lock_guard windows_lock(windows_lock_);
  own_[slot_of_key(key)].window = window.get();
  return window.release();
}

int ProtectionDomain::remove_window(MemoryWindow* window) {
  const std::unique_ptr<MemoryWindow> owned(window);
  const uint32_t slot = slot_of_key(window->made_as);
  {
    const std::lock_guard lock(mutex_);
    std::erase(windows_, window);
    const std::lock_guard windows_lock(windows_lock_);
    if (window->region != 0) unbind(*window);
    own_[slot].window = nullptr;
  }
  // It may have been unbound before, and its user be at the memory still: its keys are dead, all of them.
  const bool gone = wait_for_peers(window->made_as);
  {
    const std::lock_guard lock(mutex_);
    rest(window->made_as);
  }
  users--;
  return gone ? 0 : ETIMEDOUT;
}

// Hot path.
bool ProtectionDomain::bind(uint32_t window_key, uint32_t key, uint32_t region, uint64_t address,
                            uint64_t length, uint32_t access, uint32_t queue_pair,
                            const std::shared_ptr<Hazard>& user) {
  constexpr uint32_t kWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  constexpr uint32_t kKnown = kWrites | IBV_ACCESS_REMOTE_READ;
  const uint32_t slot = slot_of_key(key);
  if (!same_window(window_key, key) || region == 0 || (access & ~kKnown) || length == 0) return false;
  const std::lock_guard lock(windows_lock_);
  MemoryWindow* window = own_ == nullptr ? nullptr : own_[slot].window;
  if (window == nullptr || !same_window(window->made_as, key) || window->region != 0) return false;
  if (window->user != nullptr && window->user->given_up() && window->user->holds_anything()) [[unlikely]]
    return false;
  const RegionEntry& whole = table()[slot_of_key(region)];
  const uint32_t needed =
      kRegion | IBV_ACCESS_MW_BIND | (access & kWrites ? uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0);
  if (whole.key.load(std::memory_order_acquire) != region || (whole.access & needed) != needed ||
      address < whole.address || length > whole.length || address - whole.address > whole.length - length) {
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
  window->region = region;
  window->queue_pair = queue_pair;
  window->user = user;
  own_[slot_of_key(region)].windows++;
  entry.key.store(key, std::memory_order_release);
  return true;
}

bool ProtectionDomain::invalidate(uint32_t key, uint32_t queue_pair) {
  const std::lock_guard lock(windows_lock_);
  const uint32_t slot = slot_of_key(key);
  MemoryWindow* window = own_ == nullptr ? nullptr : own_[slot].window;
  if (window == nullptr || window->queue_pair != queue_pair ||
      table()[slot].key.load(std::memory_order_relaxed) != key) {
    return false;
  }
  unbind(*window);
  return true;
}

// Under windows_lock_. From here on the window cannot be found; a peer that had found it has its key as
// hazard.
void ProtectionDomain::unbind(MemoryWindow& window) {
  table()[slot_of_key(window.made_as)].key.store(0, std::memory_order_seq_cst);
  own_[slot_of_key(window.region)].windows--;
  window.region = 0;
  window.queue_pair = 0;
}
// End of hot path.

}  // namespace rdmakit::shm
