// Memory windows of type 2B: the part of MemoryTable that binds and unbinds. No lock but for making and
// ending a window: binding and invalidating are work requests.
#include <time.h>

#include "iwarp/memory/memory_table.h"

namespace rdmakit::iwarp {

constexpr uint32_t kIndex = 0xffffff00;  // of an STag: the bits that the consumer does not choose

uint32_t MemoryTable::add_window(const ibv_pd* pd) {
  const std::lock_guard lock(mutex_);
  uint32_t stag = 0;
  Slot* slot = take(stag);
  if (slot == nullptr) return 0;
  slot->window_stag = stag;
  slot->window_pd = pd;
  slot->windows.store(kClosed, std::memory_order_relaxed);  // nothing is bound to a window
  slot->window.store(WindowState::unbound, std::memory_order_release);
  return stag;
}

void MemoryTable::remove_window(uint32_t stag) {
  Slot* slot = find(stag);
  while (true) {
    WindowState state = slot->window.load();
    if (state != WindowState::changing &&
        slot->window.compare_exchange_strong(state, WindowState::changing)) {
      if (state == WindowState::bound) unbind(*slot);
      break;
    }
    const timespec pause{0, 20'000};  // a peer's or the application's invalidation is under way
    nanosleep(&pause, nullptr);
  }
  slot->window.store(WindowState::none);
  const std::lock_guard lock(mutex_);
  free_.push_back(number_of(stag));
}

// Hot path of who uses windows.

// Counts a window on the region, which keeps the region registered.
bool MemoryTable::hold_region(Slot& region, const Binding& binding, const ibv_pd* pd) {
  constexpr int kRemoteChange = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  region.pins.fetch_add(1, std::memory_order_seq_cst);
  const Pin pin(&region);
  if (region.stag.load(std::memory_order_seq_cst) != binding.region || region.scope != pd) return false;
  if (!(region.access & IBV_ACCESS_MW_BIND)) return false;
  if ((binding.access & kRemoteChange) && !(region.access & IBV_ACCESS_LOCAL_WRITE)) return false;
  if (binding.length == 0 || binding.address < region.address || binding.length > region.length ||
      binding.address - region.address > region.length - binding.length) {
    return false;
  }
  uint32_t windows = region.windows.load();
  do {
    if (windows == kClosed) return false;
  } while (!region.windows.compare_exchange_weak(windows, windows + 1));
  return true;
}

bool MemoryTable::bind(const Binding& binding, const ibv_pd* pd, const ibv_qp* queue_pair) {
  Slot* window = find(binding.stag);
  Slot* region = find(binding.region);
  if (window == nullptr || region == nullptr) return false;
  WindowState state = WindowState::unbound;
  if (!window->window.compare_exchange_strong(state, WindowState::changing)) return false;
  if ((window->window_stag & kIndex) != (binding.stag & kIndex) || window->window_pd != pd ||
      !hold_region(*region, binding, pd)) {
    window->window.store(WindowState::unbound);
    return false;
  }
  window->address = binding.address;
  window->length = binding.length;
  window->scope = queue_pair;
  window->access = binding.access;
  window->region = region;
  window->stag.store(binding.stag, std::memory_order_release);
  window->window.store(WindowState::bound);
  return true;
}

bool MemoryTable::invalidate(uint32_t stag, const ibv_qp* queue_pair) {
  if (stag == 0) return false;
  Slot* slot = find(stag);
  if (slot == nullptr) return false;
  {
    slot->pins.fetch_add(1, std::memory_order_seq_cst);
    const Pin pin(slot);
    if (slot->stag.load(std::memory_order_seq_cst) != stag || slot->scope != queue_pair) return false;
    // With the pin it cannot have been bound again since: of several threads that invalidate, one succeeds.
    WindowState state = WindowState::bound;
    if (!slot->window.compare_exchange_strong(state, WindowState::changing)) return false;
  }
  unbind(*slot);
  slot->window.store(WindowState::unbound);
  return true;
}

void MemoryTable::unbind(Slot& window) {
  window.stag.store(0, std::memory_order_seq_cst);
  wait_for_pins(window);
  window.region->windows.fetch_sub(1);
}
// End of hot path.

void MemoryTable::invalidate_all(const ibv_qp* queue_pair) {
  const std::lock_guard lock(mutex_);
  for (uint32_t number = 1; number < next_; number++) {
    const Slot& slot = chunks_[number / kChunkSlots].load()->slots[number % kChunkSlots];
    if (slot.window.load() == WindowState::bound) invalidate(slot.stag.load(), queue_pair);
  }
}

}  // namespace rdmakit::iwarp
