// CRC32C (Castagnoli), the check of MPA's FPDUs (RFC 5044; polynomial and vectors: RFC 3720
// and appendix B.4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace rdmakit {

inline constexpr uint32_t kCrcPolynomial = 0x82f63b78;  // 0x1edc6f41 with its bits reversed

// The register before the first byte. crc32c_extend may be called any number of times in between.
inline constexpr uint32_t kCrcSeed = 0xffffffff;
uint32_t crc32c_extend(uint32_t state, const void* data, size_t length);
inline uint32_t crc32c_finish(uint32_t state) { return ~state; }

inline uint32_t crc32c(const void* data, size_t length) {
  return crc32c_finish(crc32c_extend(kCrcSeed, data, length));
}

// The ways to compute it that this processor has, the slowest first: tests compare them all.
struct Crc32cImplementation {
  const char* name;
  uint32_t (*extend)(uint32_t state, const void* data, size_t length);
};
std::span<const Crc32cImplementation> crc32c_implementations();

// The table implementation, for any processor.
uint32_t crc32c_extend_portable(uint32_t state, const void* data, size_t length);
// crc32c_sparse.cc: for any processor, and at least twice as fast for long pieces.
uint32_t crc32c_extend_sparse(uint32_t state, const void* data, size_t length);
// crc32c_folding.cc: for long pieces, and only where it is supported.
bool crc32c_folding_supported();
uint32_t crc32c_extend_folding(uint32_t state, const void* data, size_t length);

}  // namespace rdmakit
