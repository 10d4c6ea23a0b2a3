// Work completions between producers and the poller: a ring, with the time at which each was added if
// timestamps were requested. One that was emptied begins at its first place again, so that a large ring of
// which little is used has few pages, and those in the cache. The owner locks; only empty() may be called by
// any thread.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>

namespace rdmakit::software {

template <typename Stamp>
class CompletionRing {
 public:
  // For at least that many. Throws std::bad_alloc.
  CompletionRing(int entries, bool stamped) {
    const uint32_t capacity = std::bit_ceil(static_cast<uint32_t>(std::max(entries, 1)));
    mask_ = capacity - 1;
    ring_ = std::make_unique_for_overwrite<Entry[]>(capacity);
    if (stamped) stamps_ = std::make_unique_for_overwrite<Stamp[]>(capacity);
  }

  int capacity() const { return static_cast<int>(mask_ + 1); }

  // --- Hot path.
  bool empty() const {
    return head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_acquire);
  }
  bool full() const {
    return tail_.load(std::memory_order_relaxed) - head_.load(std::memory_order_relaxed) > mask_;
  }
  // For the completion that is added next; null if timestamps were not requested.
  Stamp* next_stamp() const {
    return stamps_ == nullptr ? nullptr : &stamps_[place_of(tail_.load(std::memory_order_relaxed))];
  }
  // Not to a full one. When it is taken, `polled` becomes `position`: a work queue entry is free again only
  // then, so that a ring as large as the work queues that feed it cannot overflow.
  void add(const ibv_wc& completion, std::atomic<uint32_t>* polled, uint32_t position) {
    const uint32_t tail = tail_.load(std::memory_order_relaxed);
    ring_[place_of(tail)] = {completion, polled, position};
    tail_.store(tail + 1, std::memory_order_release);
  }
  // The number taken. `stamps` may be null.
  int take(int capacity, ibv_wc* completions, Stamp* stamps) {
    const uint32_t head = head_.load(std::memory_order_relaxed);
    const uint32_t ready = tail_.load(std::memory_order_relaxed) - head;
    const uint32_t count = std::min(ready, static_cast<uint32_t>(capacity));
    for (uint32_t i = 0; i < count; i++) {
      const Entry& entry = ring_[place_of(head + i)];
      completions[i] = entry.completion;
      if (stamps != nullptr) [[unlikely]]
        stamps[i] = stamps_ != nullptr ? stamps_[place_of(head + i)] : Stamp{};
      entry.polled->store(entry.position, std::memory_order_release);
    }
    if (count == ready) base_ = head + count;
    head_.store(head + count, std::memory_order_release);
    return static_cast<int>(count);
  }
  // --- End of hot path.

  // Drops the completions that would tell `polled`.
  void forget(const std::atomic<uint32_t>* polled) {
    const uint32_t end = tail_.load(std::memory_order_relaxed);
    uint32_t kept = head_.load(std::memory_order_relaxed);
    for (uint32_t i = kept; i != end; i++) {
      if (ring_[place_of(i)].polled == polled) continue;
      ring_[place_of(kept)] = ring_[place_of(i)];
      if (stamps_ != nullptr) stamps_[place_of(kept)] = stamps_[place_of(i)];
      kept++;
    }
    tail_.store(kept, std::memory_order_release);
  }

  // Continues in the memory of `other`, an empty ring. False: there are more than `entries`.
  bool move_to(CompletionRing& other, uint32_t entries) {
    const uint32_t head = head_.load(std::memory_order_relaxed);
    const uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head > entries) return false;
    for (uint32_t i = head; i != tail; i++) {
      other.ring_[i - head] = ring_[place_of(i)];
      if (stamps_ != nullptr) other.stamps_[i - head] = stamps_[place_of(i)];
    }
    ring_.swap(other.ring_);
    stamps_.swap(other.stamps_);
    std::swap(mask_, other.mask_);
    base_ = head;
    return true;
  }
  bool stamped() const { return stamps_ != nullptr; }

 private:
  struct Entry {
    ibv_wc completion;
    std::atomic<uint32_t>* polled;
    uint32_t position;
  };
  uint32_t place_of(uint32_t index) const { return (index - base_) & mask_; }

  std::unique_ptr<Entry[]> ring_;
  std::unique_ptr<Stamp[]> stamps_;  // like ring_
  uint32_t mask_ = 0;
  uint32_t base_ = 0;  // of those in the ring, the one at the first place
  std::atomic<uint32_t> head_{0};
  std::atomic<uint32_t> tail_{0};
};

}  // namespace rdmakit::software
