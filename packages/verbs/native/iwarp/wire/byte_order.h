// Big-endian fields at any alignment: every multi-byte field of MPA, DDP and RDMAP but the CRC.
#pragma once

#include <endian.h>

#include <cstdint>
#include <cstring>

namespace rdmakit::iwarp {

inline uint16_t load_be16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return be16toh(value);
}
inline uint32_t load_be32(const uint8_t* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return be32toh(value);
}
inline uint64_t load_be64(const uint8_t* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof value);
  return be64toh(value);
}
inline void store_be16(uint8_t* to, uint16_t value) {
  value = htobe16(value);
  std::memcpy(to, &value, sizeof value);
}
inline void store_be32(uint8_t* to, uint32_t value) {
  value = htobe32(value);
  std::memcpy(to, &value, sizeof value);
}
inline void store_be64(uint8_t* to, uint64_t value) {
  value = htobe64(value);
  std::memcpy(to, &value, sizeof value);
}

}  // namespace rdmakit::iwarp
