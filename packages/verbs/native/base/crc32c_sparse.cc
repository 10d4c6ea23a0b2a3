// CRC32C by shifts and sums alone, for processors without the instruction, and for emulated ones, which work
// it out bit by bit (S. Russell, "Chorba: A novel CRC32 implementation", arXiv:2412.16398, 2024, for another
// polynomial).
//
// A multiple of P with few terms, x^297 + x^196 + x^192 + x^78 + x^42 + 1, says that a bit of the message may
// be left out when the bits 101, 105, 219, 255 and 297 behind it are inverted: the remainder stays. So 64
// bits at a time are taken away from the front and added five times further behind, where they still are in
// registers, until six words are left for the table. A search of all the multiples of six terms that reach at
// most 704 bits gave 652: this one shifts least of those whose words fit into an x86-64's registers (two taps
// share a shift). There are none of five terms, for P has the factor x + 1; those of four reach beyond a
// page.
#include <bit>
#include <cstring>
#include <utility>

#include "base/crc32c.h"

namespace rdmakit {
namespace {

// How far behind, in bits.
constexpr size_t kTaps[] = {101, 105, 219, 255, 297};
constexpr size_t kWord = 64;
// That a word and its taps touch.
constexpr size_t kWords = kTaps[4] / kWord + 2;
constexpr size_t kBlock = kWords * sizeof(uint64_t);

// The register after one bit and `zeros` more of them.
constexpr uint32_t after(size_t zeros) {
  uint32_t state = kCrcPolynomial;
  for (; zeros > 0; zeros--) state = (state >> 1) ^ ((state & 1) ? kCrcPolynomial : 0);
  return state;
}
constexpr uint32_t all_taps(size_t length) {
  uint32_t sum = 0;
  for (const size_t tap : kTaps) sum ^= after(length - tap);
  return sum;
}
static_assert(after(kTaps[4]) == all_taps(kTaps[4]), "not a multiple of the polynomial");
static_assert(kTaps[0] >= kWord, "a word would be changed that was taken away");

// The first bit of a message is the lowest of its word.
inline uint64_t load(const uint8_t* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof word);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

inline void store(uint8_t* to, uint64_t word) {
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  std::memcpy(to, &word, sizeof word);
}

// With all places constant the sums are registers; GCC would not do so unasked.
#define RDMAKIT_UNROLLED [[gnu::always_inline]] inline

template <size_t kTap>
RDMAKIT_UNROLLED void add(uint64_t (&sums)[kWords], size_t at, uint64_t word) {
  static_assert(kTap % kWord != 0);
  sums[(at + kTap / kWord) % kWords] ^= word << kTap % kWord;
  sums[(at + kTap / kWord + 1) % kWords] ^= word >> (kWord - kTap % kWord);
}

template <size_t kAt>
RDMAKIT_UNROLLED void take_away(uint64_t (&sums)[kWords], const uint8_t* block) {
  const uint64_t word = load(block + kAt * sizeof(uint64_t)) ^ sums[kAt];
  sums[kAt] = 0;  // of the word that follows the block's last by kAt
  add<kTaps[0]>(sums, kAt, word);
  add<kTaps[1]>(sums, kAt, word);
  add<kTaps[2]>(sums, kAt, word);
  add<kTaps[3]>(sums, kAt, word);
  add<kTaps[4]>(sums, kAt, word);
}

template <size_t... kAt>
RDMAKIT_UNROLLED void take_away(uint64_t (&sums)[kWords], const uint8_t* block, std::index_sequence<kAt...>) {
  (take_away<kAt>(sums, block), ...);
}

}  // namespace

// Hot path.
// Its 700 bytes are not to be in two pages: QEMU chains no code that is, and would take twice the time.
[[gnu::aligned(1024)]] uint32_t crc32c_extend_sparse(uint32_t state, const void* data, size_t length) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  if (length >= 2 * kBlock) {
    // A register before the first byte is worth that register added to the first four bytes.
    uint64_t sums[kWords] = {state};
    for (; length >= 2 * kBlock; at += kBlock, length -= kBlock)
      take_away(sums, at, std::make_index_sequence<kWords>{});
    uint8_t last[kBlock];
    for (size_t i = 0; i < kWords; i++)
      store(last + i * sizeof(uint64_t), load(at + i * sizeof(uint64_t)) ^ sums[i]);
    state = crc32c_extend_portable(0, last, kBlock);
    at += kBlock;
    length -= kBlock;
  }
  return crc32c_extend_portable(state, at, length);
}
// End of hot path.

}  // namespace rdmakit
