// A bounded queue from one thread to one other, without locks and without allocation.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

namespace rdmakit {

template <typename Item, size_t kCapacity>
class SpscRing {
  static_assert((kCapacity & (kCapacity - 1)) == 0);

 public:
  // False: it is full but for `reserved` places.
  bool push(const Item& item, size_t reserved = 0) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) + reserved >= kCapacity) return false;
    items_[tail % kCapacity] = item;
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }
  bool pop(Item& item) {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    item = items_[head % kCapacity];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }
  // At rest: neither thread pushes or pops.
  size_t size() const {
    return tail_.load(std::memory_order_acquire) - head_.load(std::memory_order_acquire);
  }
  bool empty() const {
    return head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_acquire);
  }

 private:
  alignas(64) std::atomic<size_t> head_{0};
  alignas(64) std::atomic<size_t> tail_{0};
  std::array<Item, kCapacity> items_{};
};

}  // namespace rdmakit
