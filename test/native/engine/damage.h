// Bytes that change at a server, and what the lanes counted.
#pragma once

#include "fixture.h"

namespace fixture {

// Where a server of the volume has a byte of it.
inline uint64_t address_of(const TestVolume& volume, uint64_t offset, uint32_t server) {
  const auto slab = static_cast<uint32_t>(offset / volume.shape.slab_size);
  return volume.replica(slab, server).address + offset % volume.shape.slab_size;
}

inline void corrupt(TestVolume& volume, uint64_t offset, uint32_t server) {
  uint8_t byte;
  const uint64_t address = address_of(volume, offset, server);
  volume.servers[server]->copy(address, &byte, 1, false);
  byte ^= 0x10;
  volume.servers[server]->copy(address, &byte, 1, true);
}

// Of all lanes.
inline uint64_t sum(const TestVolume& volume, Counter LaneStatistics::*counter) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < volume.shape.lanes; i++)
    total += (volume.engine->lane(i).statistics().*counter).get();
  return total;
}

}  // namespace fixture
