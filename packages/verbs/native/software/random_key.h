// A key of registered memory: the index of its slot, and 16 bits that a peer has to guess.
#pragma once

#include <sys/random.h>

#include <cstdint>

#include "base/clock.h"

namespace rdmakit::software {

// The slot is in bits 8 to 23: the low 8 bits are what a program may change of a memory window's key.
inline uint32_t random_key(uint32_t slot) {
  uint16_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random) {
    const uint64_t now = now_ns();
    random = static_cast<uint16_t>(now ^ now >> 16);
  }
  return static_cast<uint32_t>(random >> 8) << 24 | slot << 8 | (random & 0xff);
}

}  // namespace rdmakit::software
