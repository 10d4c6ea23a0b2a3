#include "base/crc32c.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && !defined(__AARCH64EB__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace rdmakit {
namespace {

using Table = std::array<uint32_t, 256>;

// Slicing by eight: tables[k][b] is the register after byte b and k zero bytes.
constexpr std::array<Table, 8> make_slices() {
  std::array<Table, 8> tables{};
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ ((crc & 1) ? kCrcPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (uint32_t byte = 0; byte < 256; byte++) {
    for (size_t k = 1; k < 8; k++) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr std::array<Table, 8> kSlices = make_slices();

}  // namespace

uint32_t crc32c_extend_portable(uint32_t state, const void* data, size_t length) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  for (; length >= 8; at += 8, length -= 8) {
    const uint32_t low = state ^ (static_cast<uint32_t>(at[0]) | static_cast<uint32_t>(at[1]) << 8 |
                                  static_cast<uint32_t>(at[2]) << 16 | static_cast<uint32_t>(at[3]) << 24);
    state = kSlices[7][low & 0xff] ^ kSlices[6][(low >> 8) & 0xff] ^ kSlices[5][(low >> 16) & 0xff] ^
            kSlices[4][low >> 24] ^ kSlices[3][at[4]] ^ kSlices[2][at[5]] ^ kSlices[1][at[6]] ^
            kSlices[0][at[7]];
  }
  for (; length > 0; at++, length--) state = (state >> 8) ^ kSlices[0][(state ^ *at) & 0xff];
  return state;
}

#if defined(__x86_64__) || (defined(__aarch64__) && !defined(__AARCH64EB__))
namespace {

#if defined(__x86_64__)
#define RDMAKIT_WITH_INSTRUCTION __attribute__((target("sse4.2")))
constexpr char kInstruction[] = "sse4.2";
using Register = uint64_t;
RDMAKIT_WITH_INSTRUCTION inline Register after_word(Register state, uint64_t word) {
  return _mm_crc32_u64(state, word);
}
RDMAKIT_WITH_INSTRUCTION inline uint32_t after_byte(uint32_t state, uint8_t byte) {
  return _mm_crc32_u8(state, byte);
}
bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
#else
// An extension of Armv8.0, and a part of Armv8.1.
#define RDMAKIT_WITH_INSTRUCTION __attribute__((target("+crc")))
constexpr char kInstruction[] = "armv8-crc";
using Register = uint32_t;
RDMAKIT_WITH_INSTRUCTION inline Register after_word(Register state, uint64_t word) {
  return __crc32cd(state, word);
}
RDMAKIT_WITH_INSTRUCTION inline uint32_t after_byte(uint32_t state, uint8_t byte) {
  return __crc32cb(state, byte);
}
bool has_instruction() {
  constexpr unsigned long kCrc32 = 1 << 7;  // HWCAP_CRC32 of <asm/hwcap.h>
  return (getauxval(AT_HWCAP) & kCrc32) != 0;
}
#endif

// The crc32 instruction takes three cycles and one can start each cycle: three independent streams
// keep it busy. Streams are joined by "what this register becomes after N zero bytes", which is
// linear in the register and so four table look-ups.
constexpr size_t kLongStream = 4096;
constexpr size_t kShortStream = 256;
using Shift = std::array<Table, 4>;

Shift make_shift(size_t zeros) {
  // The effect on each single bit first: table entries are sums (xor) of bits.
  static const std::array<uint8_t, kLongStream> zero_bytes{};
  std::array<uint32_t, 32> bits;
  for (size_t bit = 0; bit < 32; bit++) {
    bits[bit] = crc32c_extend_portable(uint32_t{1} << bit, zero_bytes.data(), zeros);
  }
  Shift shift{};
  for (size_t byte = 0; byte < 4; byte++) {
    for (size_t value = 0; value < 256; value++) {
      for (size_t bit = 0; bit < 8; bit++) {
        if (value & (size_t{1} << bit)) shift[byte][value] ^= bits[byte * 8 + bit];
      }
    }
  }
  return shift;
}

inline uint32_t apply(const Shift& shift, uint32_t state) {
  return shift[0][state & 0xff] ^ shift[1][(state >> 8) & 0xff] ^ shift[2][(state >> 16) & 0xff] ^
         shift[3][state >> 24];
}

inline uint64_t load64(const uint8_t* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <size_t kStream>
RDMAKIT_WITH_INSTRUCTION uint32_t three_streams(const Shift& shift, uint32_t state, const uint8_t* at) {
  Register first = state, second = 0, third = 0;
  for (const uint8_t* end = at + kStream; at < end; at += 8) {
    first = after_word(first, load64(at));
    second = after_word(second, load64(at + kStream));
    third = after_word(third, load64(at + 2 * kStream));
  }
  const uint32_t joined = apply(shift, static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
  return apply(shift, joined) ^ static_cast<uint32_t>(third);
}

RDMAKIT_WITH_INSTRUCTION uint32_t extend_by_instruction(uint32_t state, const void* data, size_t length) {
  static const Shift long_shift = make_shift(kLongStream);
  static const Shift short_shift = make_shift(kShortStream);
  const uint8_t* at = static_cast<const uint8_t*>(data);
  while (length >= 3 * kLongStream) {
    state = three_streams<kLongStream>(long_shift, state, at);
    at += 3 * kLongStream;
    length -= 3 * kLongStream;
  }
  while (length >= 3 * kShortStream) {
    state = three_streams<kShortStream>(short_shift, state, at);
    at += 3 * kShortStream;
    length -= 3 * kShortStream;
  }
  Register wide = state;
  for (; length >= 8; at += 8, length -= 8) wide = after_word(wide, load64(at));
  state = static_cast<uint32_t>(wide);
  for (; length > 0; at++, length--) state = after_byte(state, *at);
  return state;
}

using Extend = uint32_t (*)(uint32_t, const void*, size_t);

// An emulated processor has the instructions and works them out bit by bit: under QEMU's TCG the crc32
// instruction takes 15 times as long as shifts and sums. So each is timed once, and what should be the faster
// one (they come slowest first) makes room only for one that is twice as fast: wide registers start slowly.
Extend fastest() {
  static constexpr std::array<uint8_t, 4096> page{};
  [[maybe_unused]] static volatile uint32_t sink;  // Keeps the computation from being optimized away.
  constexpr int kRounds = 4;
  constexpr int kPages = 8;  // a look at the clock may take as long as some of them
  using Clock = std::chrono::steady_clock;
  Extend chosen = crc32c_extend_portable;
  auto least_of_chosen = Clock::duration::max();
  for (const Crc32cImplementation& candidate : crc32c_implementations()) {
    auto least = Clock::duration::max();
    for (int round = 0; round < kRounds; round++) {
      const auto begin = Clock::now();
      for (int i = 0; i < kPages; i++) sink = candidate.extend(kCrcSeed, page.data(), page.size());
      least = std::min(least, Clock::now() - begin);
    }
    if (least / 2 > least_of_chosen) continue;
    chosen = candidate.extend;
    least_of_chosen = least;
  }
  return chosen;
}

const Extend extend = fastest();

}  // namespace

uint32_t crc32c_extend(uint32_t state, const void* data, size_t length) {
  return extend(state, data, length);
}

std::span<const Crc32cImplementation> crc32c_implementations() {
  static constexpr Crc32cImplementation all[] = {{"table", crc32c_extend_portable},
                                                 {"sparse", crc32c_extend_sparse},
                                                 {kInstruction, extend_by_instruction},
                                                 {"folding", crc32c_extend_folding}};
  return {all, crc32c_folding_supported() ? size_t{4} : has_instruction() ? size_t{3} : size_t{2}};
}
#else
uint32_t crc32c_extend(uint32_t state, const void* data, size_t length) {
  return crc32c_extend_sparse(state, data, length);
}

std::span<const Crc32cImplementation> crc32c_implementations() {
  static constexpr Crc32cImplementation all[] = {{"table", crc32c_extend_portable},
                                                 {"sparse", crc32c_extend_sparse}};
  return all;
}
#endif

}  // namespace rdmakit
