// STags: every registered region and every memory window of the process, found by its 32-bit key.
//
// Any thread looks regions up while others register and deregister. A look-up pins the region for
// the time of one copy or one system call; deregistration first makes the STag unknown and then
// waits for pins to go, so memory is never touched once dereg_mr has returned. No look-up locks.
//
// A window (type 2B) is a slot of its own: bound, it is a part of a region that one queue pair may reach,
// and the region cannot be deregistered before it is unbound. What a slot admits is its scope: a region's
// domain, or the queue pair that bound a window; so a look-up of a region costs no more for windows.
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
  enum class WindowState : uint8_t { none, unbound, bound, changing };
  struct Slot {
    std::atomic<uint32_t> pins{0};
    std::atomic<uint32_t> stag{0};  // 0: free
    uint64_t address = 0;
    uint64_t length = 0;
    const void* scope = nullptr;  // ibv_pd* of a region, ibv_qp* of a bound window
    int access = 0;
    // Of a region: the number of windows bound to it, or kClosed while it is deregistered.
    std::atomic<uint32_t> windows{0};
    // Of a window: its state.
    std::atomic<WindowState> window{WindowState::none};
    uint32_t window_stag = 0;  // the low 8 bits are the consumer's to choose
    const ibv_pd* window_pd = nullptr;
    Slot* region = nullptr;
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
  // False when windows are bound to it: it stays as it is.
  bool remove(uint32_t stag);

  // A pin on [address, address + length) when `stag` is a region of `pd`, or a window that `queue_pair`
  // bound, that allows all of `access` and contains it; else an empty pin, and `fault` says why. A local
  // access names no queue pair: a window is no local key.
  Pin pin(uint32_t stag, const ibv_pd* pd, int access, uint64_t address, uint64_t length, Fault& fault,
          const ibv_qp* queue_pair = nullptr);

  // memory_window.cc
  struct Binding {
    uint32_t stag = 0;    // what the window is to be called: its own STag but for the low 8 bits
    uint32_t region = 0;  // STag
    uint64_t address = 0;
    uint64_t length = 0;
    int access = 0;
  };
  // An unbound window's STag, or 0 when the table is full.
  uint32_t add_window(const ibv_pd* pd);
  void remove_window(uint32_t stag);
  // False when the window is bound already or the region does not allow it.
  bool bind(const Binding& binding, const ibv_pd* pd, const ibv_qp* queue_pair);
  // Unbinds. False when `stag` is no window that this queue pair bound. Waits for pins to go, each of
  // which lasts one copy or one non-blocking system call of this queue pair's receiving side.
  bool invalidate(uint32_t stag, const ibv_qp* queue_pair);
  // Invalidates all windows of a queue pair that goes away.
  void invalidate_all(const ibv_qp* queue_pair);

  static MemoryTable& instance();

 private:
  static constexpr uint32_t kChunkSlots = 1024;
  static constexpr uint32_t kChunks = 64;
  struct Chunk {
    std::array<Slot, kChunkSlots> slots;
  };

  static constexpr uint32_t kClosed = UINT32_MAX;
  static constexpr uint32_t number_of(uint32_t stag) { return stag >> 8 & 0xffff; }

  Slot* find(uint32_t stag);
  // A free slot and its STag; null when the table is full. Under mutex_.
  Slot* take(uint32_t& stag);
  static void wait_for_pins(const Slot& slot);
  static bool hold_region(Slot& region, const Binding& binding, const ibv_pd* pd);
  static void unbind(Slot& window);

  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Chunk>> owned_;
  std::vector<uint32_t> free_;
  uint32_t next_ = 1;  // slot 0 stays unused: no valid STag is 0
};

inline constexpr uint32_t kMaxRegions = 64 * 1024 - 1;

}  // namespace rdmakit::iwarp
