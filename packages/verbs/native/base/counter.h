// A number that one thread counts and any may read at any time.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdmakit {

// There is one writer, so a load and a store replace a locked addition. A thread that sees the count also
// sees everything before it.
class Counter {
 public:
  void add(uint64_t amount = 1) { set(value_.load(std::memory_order_relaxed) + amount); }
  void set(uint64_t value) { value_.store(value, std::memory_order_release); }
  uint64_t get() const { return value_.load(std::memory_order_acquire); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace rdmakit
