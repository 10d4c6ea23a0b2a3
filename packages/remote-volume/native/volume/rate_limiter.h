// How fast a server may be used: bytes and operations a second, by all lanes together, without a lock.
//
// Generic cell rate algorithm (ITU-T I.371, as virtual scheduling), once for bytes and once for operations:
// a virtual time that each operation advances by its cost. An operation may start while that time is not too
// far ahead of the clock. Checking and charging are two steps, so lanes that check at the same moment may
// each start one; the virtual time then advances by all of them. The rate holds; only the burst is longer.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace rdmakit::volume {

class alignas(64) RateLimiter {
 public:
  // Ahead of the clock at most. Lanes sleep in milliseconds, so less would cost throughput.
  static constexpr uint64_t kBurst = 20'000'000;
  // Lower limits are raised to these: an operation must not wait for longer than its client has patience.
  static constexpr uint64_t kLeastBytes = 1 << 20;
  static constexpr uint64_t kLeastOperations = 16;

  // ---- control ----
  // Per second; 0: no limit.
  void set(uint64_t bytes, uint64_t operations) {
    byte_cost_.store(bytes == 0 ? 0 : kSecond / std::max(bytes, kLeastBytes), std::memory_order_relaxed);
    operation_cost_.store(operations == 0 ? 0 : kSecond / std::max(operations, kLeastOperations),
                          std::memory_order_relaxed);
  }

  // ---- hot path ----
  // When an operation may start, in ns; 0: now.
  uint64_t turn(uint64_t now) const {
    uint64_t ahead = 0;
    if (byte_cost_.load(std::memory_order_relaxed) != 0) ahead = bytes_until_.load(std::memory_order_relaxed);
    if (operation_cost_.load(std::memory_order_relaxed) != 0)
      ahead = std::max(ahead, operations_until_.load(std::memory_order_relaxed));
    return ahead <= now + kBurst ? 0 : ahead - kBurst;
  }
  void charge(uint32_t bytes, uint64_t now) {
    const uint64_t byte_cost = byte_cost_.load(std::memory_order_relaxed);
    if (byte_cost != 0) move_on(bytes_until_, byte_cost * bytes >> kFraction, now);
    const uint64_t operation_cost = operation_cost_.load(std::memory_order_relaxed);
    if (operation_cost != 0) move_on(operations_until_, operation_cost >> kFraction, now);
  }

 private:
  // Costs are in 2^-20 ns: at 100 GB/s a byte still costs 10,485 of them, and the largest operation at the
  // least rate 2^18 × 2^30.
  static constexpr unsigned kFraction = 20;
  static constexpr uint64_t kSecond = uint64_t{1'000'000'000} << kFraction;

  // Unused time is not saved up.
  static void move_on(std::atomic<uint64_t>& until, uint64_t cost, uint64_t now) {
    uint64_t seen = until.load(std::memory_order_relaxed);
    while (!until.compare_exchange_weak(seen, std::max(seen, now) + cost, std::memory_order_relaxed)) {
    }
  }

  std::atomic<uint64_t> byte_cost_{0};
  std::atomic<uint64_t> operation_cost_{0};
  std::atomic<uint64_t> bytes_until_{0};
  std::atomic<uint64_t> operations_until_{0};
};

}  // namespace rdmakit::volume
