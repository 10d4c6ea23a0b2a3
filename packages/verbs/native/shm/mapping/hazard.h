// What one peer says that it is at in this process's memory (AreaHeader::hazard), and how long it is waited
// for: until its time is up for the first time, and never again. It outlives its queue pair, for the peer may
// be at the memory still.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "shm/mapping/layout.h"
#include "shm/mapping/shared_mapping.h"
#include "shm/setup/link.h"

namespace rdmakit::shm {

class ProtectionDomain;

// Far above the copy of the longest message; a peer that takes longer is stopped.
inline constexpr std::chrono::seconds kPeerPatience{5};

// How often it is looked at before anybody does something else: about as long as a short copy takes.
inline constexpr int kHazardSpins = 200;

class Hazard {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Hazard(std::shared_ptr<SharedMapping> area) : area_(std::move(area)) {}

  // A peer is shown the area next, and may write to it. It is over when this link says so.
  void shown(std::shared_ptr<Link> link);

  // Once, now: the word is `key`; a key of that slot; anything. Whether the peer lives is not asked.
  bool names(uint32_t key) const { return word() == key; }
  bool names_slot_of(uint32_t key) const { return slot_of_key(word()) == slot_of_key(key); }
  bool names_anything() const { return word() != 0; }

  // The peer may touch the region or window `key` of the domain, or something by a key that is dead, which
  // can be a window on that region.
  bool holds(uint32_t key, const ProtectionDomain& domain) const;
  // It may touch anything.
  bool holds_anything() const { return names_anything() && !peer_over(); }

  // Waits, not beyond `deadline`, until the peer does not hold `key`. False when it still does: it is given
  // up then.
  bool wait(uint32_t key, const ProtectionDomain& domain, Clock::time_point deadline);
  void give_up() { given_up_.store(true, std::memory_order_release); }
  bool given_up() const { return given_up_.load(std::memory_order_acquire); }

 private:
  uint32_t word() const {
    return reinterpret_cast<const AreaHeader*>(area_->data())->hazard.load(std::memory_order_seq_cst);
  }
  bool peer_over() const;

  const std::shared_ptr<SharedMapping> area_;
  std::atomic<bool> given_up_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<Link> link_;
};

}  // namespace rdmakit::shm
