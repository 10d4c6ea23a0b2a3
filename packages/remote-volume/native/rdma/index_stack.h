// A free list of small indexes. Last in, first out: the last one used is still in the cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "rdmakit/invariant.h"

namespace rdmakit::volume {

template <size_t kCapacity>
class IndexStack {
 public:
  IndexStack() {
    for (size_t i = 0; i < kCapacity; i++) items_[i] = static_cast<uint16_t>(kCapacity - 1 - i);
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  uint16_t pop() {
    RDMAKIT_INVARIANT(size_ > 0, "nothing is free of %zu", kCapacity);
    return items_[--size_];
  }
  void push(uint16_t index) {
    RDMAKIT_INVARIANT(size_ < kCapacity && index < kCapacity, "%u, %zu of %zu are free", index, size_,
                      kCapacity);
    items_[size_++] = index;
  }
  // The indexes from `first` on, all of them free.
  void reset(uint16_t first = 0) {
    size_ = 0;
    for (size_t i = kCapacity; i > first; i--) push(static_cast<uint16_t>(i - 1));
  }

 private:
  std::array<uint16_t, kCapacity> items_;
  size_t size_ = kCapacity;
};

// First in, first out, of at most kCapacity small indexes.
template <size_t kCapacity>
class IndexQueue {
  static_assert((kCapacity & (kCapacity - 1)) == 0);

 public:
  bool empty() const { return head_ == tail_; }
  size_t size() const { return tail_ - head_; }
  uint16_t operator[](size_t position) const { return items_[(head_ + position) % kCapacity]; }
  uint16_t front() const {
    RDMAKIT_INVARIANT(head_ != tail_, "empty, of %zu", kCapacity);
    return items_[head_ % kCapacity];
  }
  void push(uint16_t index) {
    RDMAKIT_INVARIANT(tail_ - head_ < kCapacity, "%u is one too many for %zu", index, kCapacity);
    items_[tail_++ % kCapacity] = index;
  }
  void pop() {
    RDMAKIT_INVARIANT(head_ != tail_, "empty, of %zu", kCapacity);
    head_++;
  }
  void clear() { head_ = tail_; }

 private:
  std::array<uint16_t, kCapacity> items_;
  size_t head_ = 0;
  size_t tail_ = 0;
};

}  // namespace rdmakit::volume
