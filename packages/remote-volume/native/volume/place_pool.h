// Places for slabs of a thin volume, prepared by control, so that a first WRITE need not wait for it.
//
//   control: add ──> full ── hold, use (a lane) ──> used ── collect (control) ──> empty
//
// Each slot belongs to the thread that moved it out of its last state, so no lock is needed.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "volume/slab_record.h"

namespace rdmakit::volume {

class PlacePool {
 private:
  enum class State : uint32_t { empty, full, held, used };

 public:
  static constexpr uint32_t kCapacity = 64;
  class Slot {
   public:
    const SlabPlace& place() const { return place_; }

   private:
    friend class PlacePool;
    std::atomic<State> state_{State::empty};
    uint32_t id_ = 0;
    uint32_t slab_ = 0;
    SlabPlace place_;
  };
  struct Used {
    uint32_t id;
    uint32_t slab;
  };

  // ---- hot path ----
  // One with no replica on a server of which `failed` is true, for the caller alone until use(). nullptr:
  // there is none, or another thread is just looking at it.
  template <typename Failed>
  Slot* hold(Failed failed) {
    for (Slot& slot : slots_) {
      if (!move(slot, State::full, State::held)) continue;
      const auto fails = [&failed](const Replica& each) { return failed(each.server); };
      if (std::ranges::none_of(slot.place_.all(), fails)) {
        full_.fetch_sub(1, std::memory_order_relaxed);
        return &slot;
      }
      slot.state_.store(State::full, std::memory_order_release);
    }
    return nullptr;
  }
  void use(Slot& slot, uint32_t slab) {
    slot.slab_ = slab;
    slot.state_.store(State::used, std::memory_order_release);
  }
  // How many are left.
  uint32_t size() const { return full_.load(std::memory_order_relaxed); }

  // ---- control, one thread at a time ----
  // False: all slots are taken.
  bool add(uint32_t id, const SlabPlace& place) {
    for (Slot& slot : slots_) {
      if (slot.state_.load(std::memory_order_acquire) != State::empty) continue;
      slot.id_ = id;
      slot.place_ = place;
      full_.fetch_add(1, std::memory_order_relaxed);
      slot.state_.store(State::full, std::memory_order_release);
      return true;
    }
    return false;
  }
  // Takes one back. False: it is used, or a lane is just looking at it.
  bool remove(uint32_t id) {
    for (Slot& slot : slots_) {
      if (!move(slot, State::full, State::held)) continue;
      const bool found = slot.id_ == id;
      if (found) full_.fetch_sub(1, std::memory_order_relaxed);
      slot.state_.store(found ? State::empty : State::full, std::memory_order_release);
      if (found) return true;
    }
    return false;
  }
  // Some place names that server. One that a lane is just taking does: once it is used, the slab's record is
  // published.
  bool names(uint32_t server) const {
    return std::any_of(slots_.begin(), slots_.end(), [server](const Slot& slot) {
      const State state = slot.state_.load(std::memory_order_acquire);
      return (state == State::full || state == State::held) && slot.place_.find(server) != nullptr;
    });
  }
  // The slots used since the last call.
  void collect(std::vector<Used>& used) {
    for (Slot& slot : slots_) {
      if (slot.state_.load(std::memory_order_acquire) != State::used) continue;
      used.push_back({slot.id_, slot.slab_});
      slot.state_.store(State::empty, std::memory_order_release);
    }
  }

 private:
  static bool move(Slot& slot, State from, State to) {
    return slot.state_.compare_exchange_strong(from, to, std::memory_order_acquire);
  }

  std::array<Slot, kCapacity> slots_;
  std::atomic<uint32_t> full_{0};
};

}  // namespace rdmakit::volume
