// STags: every registered region of the process, found by its 32-bit key.
//
// Any thread looks regions up while others register and deregister. A look-up pins the region for
// the time of one copy or one system call; deregistration first makes the STag unknown and then
// waits for pins to go, so memory is never touched once dereg_mr has returned. No look-up locks.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace rdmakit::iwarp {

class MemoryTable {
 public:
  struct Slot {
    std::atomic<uint32_t> pins{0};
    std::atomic<uint32_t> stag{0};  // 0: free
    uint64_t address = 0;
    uint64_t length = 0;
    const ibv_pd* pd = nullptr;
    int access = 0;
  };

  enum class Fault { none, unknown, other_domain, access, bounds, wrap };

  // Holds a region in place.
  class Pin {
   public:
    Pin() = default;
    explicit Pin(Slot* slot) : slot_(slot) {}
    Pin(Pin&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
    Pin& operator=(Pin&& other) noexcept {
      if (this != &other) {
        release();
        slot_ = std::exchange(other.slot_, nullptr);
      }
      return *this;
    }
    ~Pin() { release(); }
    explicit operator bool() const { return slot_ != nullptr; }
    void release() {
      if (slot_ != nullptr) std::exchange(slot_, nullptr)->pins.fetch_sub(1, std::memory_order_release);
    }

   private:
    Slot* slot_ = nullptr;
  };

  // The STag, or 0 when the table is full. lkey and rkey are one and the same STag.
  uint32_t add(const ibv_pd* pd, void* address, uint64_t length, int access);
  void remove(uint32_t stag);

  // A pin on [address, address + length) when `stag` is a region of `pd` that allows all of `access`
  // and contains it; else an empty pin, and `fault` says why.
  Pin pin(uint32_t stag, const ibv_pd* pd, int access, uint64_t address, uint64_t length, Fault& fault);

  static MemoryTable& instance();

 private:
  static constexpr uint32_t kChunkSlots = 1024;
  static constexpr uint32_t kChunks = 64;
  struct Chunk {
    std::array<Slot, kChunkSlots> slots;
  };

  Slot* find(uint32_t stag);

  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Chunk>> owned_;
  std::vector<uint32_t> free_;
  uint32_t next_ = 1;  // slot 0 stays unused: no valid STag is 0
};

inline constexpr uint32_t kMaxRegions = 64 * 1024 - 1;

}  // namespace rdmakit::iwarp
