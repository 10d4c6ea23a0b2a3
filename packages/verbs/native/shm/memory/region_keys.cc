#include "shm/memory/region_keys.h"

#include <memory>
#include <mutex>
#include <vector>

#include "shm/mapping/layout.h"
#include "software/random_key.h"

namespace rdmakit::shm {
namespace {

struct SlotNumbers {
  std::mutex mutex;
  std::vector<uint32_t> free;
  uint32_t next = 1;  // 0 stays unused: no valid key is 0
};
SlotNumbers& slot_numbers() {
  static SlotNumbers* made = std::make_unique<SlotNumbers>().release();
  return *made;
}

}  // namespace

uint32_t make_key() {
  SlotNumbers& numbers = slot_numbers();
  uint32_t slot;
  {
    const std::lock_guard lock(numbers.mutex);
    if (!numbers.free.empty()) {
      slot = numbers.free.back();
      numbers.free.pop_back();
    } else if (numbers.next < kMaxRegions) {
      slot = numbers.next++;
    } else {
      return 0;
    }
  }
  return software::random_key(slot);
}

void free_key(uint32_t key) {
  SlotNumbers& numbers = slot_numbers();
  const std::lock_guard lock(numbers.mutex);
  numbers.free.push_back(slot_of_key(key));
}

}  // namespace rdmakit::shm
