// The keys of this process: 16 bits of slot number and 16 random bits, of which the user of a window chooses
// eight. Slot numbers are the process's and not a domain's: a key of one domain is free in all others.
#pragma once

#include <cstdint>

namespace rdmakit::shm {

// 0 when all slots are in use.
uint32_t make_key();
void free_key(uint32_t key);

}  // namespace rdmakit::shm
