// CRC32C by folding: carry-less multiplication of 512 bits at a time (V. Gopal et al., "Fast CRC Computation
// for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009).
//
// A block of the message is a polynomial over GF(2), and what counts of it is its remainder by P. A block A
// that stands n bits before a block B of the same length is worth A·x^n there, so A may be left out when
// A·(x^n mod P) is added to B. Four accumulators of 64 bytes run side by side, each n = 2048 bits a step,
// because a multiplication takes several cycles and one can start each cycle. They are then folded into the
// last of them, that into its last 16 bytes, and the crc32 instruction turns those into the register.
#include "base/crc32c.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

namespace rdmakit {
namespace {

constexpr size_t kLane = 16;   // what one multiplication takes from each operand: a half of it at a time
constexpr size_t kBlock = 64;  // four lanes: a register
constexpr size_t kStep = 4 * kBlock;

// x^n mod P as the CRC register has it: bit i is the coefficient of x^(31-i).
constexpr uint32_t power(size_t n) {
  uint32_t remainder = uint32_t{1} << 31;
  for (; n > 0; n--) remainder = (remainder >> 1) ^ ((remainder & 1) ? kCrcPolynomial : 0);
  return remainder;
}

// The factors for a lane's halves that move it `bytes` ahead. The first half in memory has the higher powers:
// it counts x^64 times the second. Halves are reflected as well, bit i is x^(63-i), with two consequences:
// the constants are in the upper 32 bits, and the product of two halves, in which bit i is x^(126-i), is x
// times the correct lane, in which bit i is x^(127-i). Hence the powers less one.
struct Fold {
  uint64_t first, second;
};
constexpr Fold fold_by(size_t bytes) {
  return {uint64_t{power(8 * bytes + 63)} << 32, uint64_t{power(8 * bytes - 1)} << 32};
}

// The vpclmulqdq of a register folds all of its lanes.
struct alignas(kBlock) Folds {
  Fold lanes[4];
};
constexpr Folds all_by(size_t bytes) {
  const Fold fold = fold_by(bytes);
  return {{fold, fold, fold, fold}};
}
constexpr Folds kByStep = all_by(kStep);
constexpr Folds kByBlock = all_by(kBlock);
// Into the last lane, which stays as it is.
constexpr Folds kToLast = {{fold_by(3 * kLane), fold_by(2 * kLane), fold_by(kLane), {0, 0}}};

#define RDMAKIT_FOLDING __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))

RDMAKIT_FOLDING inline __m512i constants(const Folds& folds) { return _mm512_load_si512(&folds); }

RDMAKIT_FOLDING inline __m512i fold(__m512i block, __m512i by, __m512i into) {
  const __m512i first = _mm512_clmulepi64_epi128(block, by, 0x00);
  const __m512i second = _mm512_clmulepi64_epi128(block, by, 0x11);
  return _mm512_ternarylogic_epi64(first, second, into, 0x96);  // the sum (xor) of all three
}

// The register after a whole block, starting from zero: everything before the block has been folded into it.
RDMAKIT_FOLDING inline uint32_t finish(__m512i block) {
  const __m512i last = _mm512_maskz_mov_epi64(0xc0, block);
  const __m512i folded = fold(block, constants(kToLast), last);
  alignas(kBlock) uint64_t halves[8];
  _mm512_store_si512(halves, folded);
  const uint64_t state = _mm_crc32_u64(0, halves[0] ^ halves[2] ^ halves[4] ^ halves[6]);
  return static_cast<uint32_t>(_mm_crc32_u64(state, halves[1] ^ halves[3] ^ halves[5] ^ halves[7]));
}

}  // namespace

bool crc32c_folding_supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("pclmul") &&
         __builtin_cpu_supports("sse4.2");
}

// Hot path.
namespace {

// For lengths that are not worth a block: below 256 bytes this is as fast, and wakes no wide registers.
RDMAKIT_FOLDING inline uint32_t by_instruction(uint32_t state, const uint8_t* at, size_t length) {
  uint64_t wide = state;
  for (; length >= 8; at += 8, length -= 8) {
    uint64_t eight;
    std::memcpy(&eight, at, sizeof eight);
    wide = _mm_crc32_u64(wide, eight);
  }
  state = static_cast<uint32_t>(wide);
  for (; length > 0; at++, length--) state = _mm_crc32_u8(state, *at);
  return state;
}

}  // namespace

RDMAKIT_FOLDING uint32_t crc32c_extend_folding(uint32_t state, const void* data, size_t length) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  // Each load of a block that is not aligned would touch two cache lines.
  const size_t ahead = -reinterpret_cast<uintptr_t>(at) % kBlock;
  if (length < ahead + kStep) return by_instruction(state, at, length);
  state = by_instruction(state, at, ahead);
  at += ahead;
  length -= ahead + kStep;
  // A register before the first byte is worth that register added to the first four bytes.
  const __m512i begin = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state)));
  __m512i a = _mm512_xor_si512(_mm512_load_si512(at), begin);
  __m512i b = _mm512_load_si512(at + kBlock);
  __m512i c = _mm512_load_si512(at + 2 * kBlock);
  __m512i d = _mm512_load_si512(at + 3 * kBlock);
  at += kStep;
  const __m512i by_step = constants(kByStep);
  for (; length >= kStep; at += kStep, length -= kStep) {
    a = fold(a, by_step, _mm512_load_si512(at));
    b = fold(b, by_step, _mm512_load_si512(at + kBlock));
    c = fold(c, by_step, _mm512_load_si512(at + 2 * kBlock));
    d = fold(d, by_step, _mm512_load_si512(at + 3 * kBlock));
  }
  const __m512i by_block = constants(kByBlock);
  d = fold(fold(fold(a, by_block, b), by_block, c), by_block, d);
  for (; length >= kBlock; at += kBlock, length -= kBlock) d = fold(d, by_block, _mm512_load_si512(at));
  return by_instruction(finish(d), at, length);
}
// End of hot path.

}  // namespace rdmakit
#else
namespace rdmakit {
bool crc32c_folding_supported() { return false; }
uint32_t crc32c_extend_folding(uint32_t state, const void* data, size_t length) {
  return crc32c_extend_portable(state, data, length);
}
}  // namespace rdmakit
#endif
