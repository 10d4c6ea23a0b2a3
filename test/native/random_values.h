// A malicious peer's values: numbers from a seed.
#pragma once

#include <cstdint>
#include <random>

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t below(uint64_t end) { return engine_() % end; }
  bool one_in(uint64_t many) { return below(many) == 0; }
  uint32_t word() { return static_cast<uint32_t>(engine_()); }
  // Mostly what could be meant, sometimes anything.
  uint32_t near(uint32_t value) {
    switch (below(6)) {
      case 0:
        return word();
      case 1:
        return UINT32_MAX - static_cast<uint32_t>(below(3));
      default:
        return value + static_cast<uint32_t>(below(5)) - 2;
    }
  }

 private:
  std::mt19937_64 engine_;
};
