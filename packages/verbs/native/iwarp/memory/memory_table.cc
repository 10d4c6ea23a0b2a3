#include "iwarp/memory/memory_table.h"

#include <ctime>

#include "software/random_key.h"

namespace rdmakit::iwarp {
namespace {

// An STag is a 24-bit index and an 8-bit key (RFC 5040 leaves the split to the implementation;
// verbs consumers may change the low 8 bits of a memory window's key). Of the index 16 bits are the
// slot; the other 8 are random like the key, so a peer that guesses is wrong 65535 times of 65536
// and loses its connection each time.
uint32_t make_stag(uint32_t slot) { return software::random_key(slot); }

}  // namespace

MemoryTable& MemoryTable::instance() {
  static MemoryTable* table = std::make_unique<MemoryTable>().release();  // outlives every thread
  return *table;
}

MemoryTable::Slot* MemoryTable::take(uint32_t& stag) {
  uint32_t number;
  if (!free_.empty()) {
    number = free_.back();
    free_.pop_back();
  } else {
    if (next_ >= kChunkSlots * kChunks) return nullptr;
    number = next_++;
    std::atomic<Chunk*>& chunk = chunks_[number / kChunkSlots];
    if (chunk.load(std::memory_order_relaxed) == nullptr) {
      owned_.push_back(std::make_unique<Chunk>());
      chunk.store(owned_.back().get(), std::memory_order_release);
    }
  }
  stag = make_stag(number);
  return find(stag);
}

uint32_t MemoryTable::add(const ibv_pd* pd, void* address, uint64_t length, int access) {
  const std::lock_guard lock(mutex_);
  uint32_t stag = 0;
  Slot* slot = take(stag);
  if (slot == nullptr) return 0;
  slot->address = reinterpret_cast<uint64_t>(address);
  slot->length = length;
  slot->scope = pd;
  slot->access = access;
  slot->windows.store(0, std::memory_order_relaxed);
  slot->stag.store(stag, std::memory_order_release);
  return stag;
}

bool MemoryTable::remove(uint32_t stag) {
  Slot* slot = find(stag);
  uint32_t none = 0;
  if (!slot->windows.compare_exchange_strong(none, kClosed)) return false;
  slot->stag.store(0, std::memory_order_seq_cst);
  wait_for_pins(*slot);
  const std::lock_guard lock(mutex_);
  free_.push_back(number_of(stag));
  return true;
}

// A pin lasts one copy or one non-blocking system call.
void MemoryTable::wait_for_pins(const Slot& slot) {
  while (slot.pins.load(std::memory_order_seq_cst) != 0) {
    const timespec pause{0, 20'000};
    nanosleep(&pause, nullptr);
  }
}

MemoryTable::Slot* MemoryTable::find(uint32_t stag) {
  const uint32_t number = number_of(stag);
  Chunk* chunk = chunks_[number / kChunkSlots].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : &chunk->slots[number % kChunkSlots];
}

// Hot path.
MemoryTable::Pin MemoryTable::pin(uint32_t stag, const ibv_pd* pd, int access, uint64_t address,
                                  uint64_t length, Fault& fault, const ibv_qp* queue_pair) {
  fault = Fault::unknown;
  if (stag == 0) return Pin();
  Slot* slot = find(stag);
  if (slot == nullptr) return Pin();
  // Pin first, look second: remove() does it the other way round, so one of the two sees the other.
  slot->pins.fetch_add(1, std::memory_order_seq_cst);
  Pin pin(slot);
  if (slot->stag.load(std::memory_order_seq_cst) != stag) return Pin();
  if (slot->scope != pd && (queue_pair == nullptr || slot->scope != queue_pair)) {
    fault = Fault::other_domain;
    return Pin();
  }
  if ((slot->access & access) != access) {
    fault = Fault::access;
    return Pin();
  }
  if (address + length < address) {
    fault = Fault::wrap;
    return Pin();
  }
  if (address < slot->address || length > slot->length || address - slot->address > slot->length - length) {
    fault = Fault::bounds;
    return Pin();
  }
  fault = Fault::none;
  return pin;
}
// End of hot path.

}  // namespace rdmakit::iwarp
