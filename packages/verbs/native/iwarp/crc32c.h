// CRC32C (Castagnoli), the check of MPA's FPDUs (RFC 5044; polynomial and vectors: RFC 3720
// and appendix B.4).
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmakit::iwarp {

// The register before the first byte. crc32c_extend may be called any number of times in between.
inline constexpr uint32_t kCrcSeed = 0xffffffff;
uint32_t crc32c_extend(uint32_t state, const void* data, size_t length);
inline uint32_t crc32c_finish(uint32_t state) { return ~state; }

inline uint32_t crc32c(const void* data, size_t length) {
  return crc32c_finish(crc32c_extend(kCrcSeed, data, length));
}

// The table implementation whatever the processor: tests compare the two.
uint32_t crc32c_extend_portable(uint32_t state, const void* data, size_t length);

}  // namespace rdmakit::iwarp
