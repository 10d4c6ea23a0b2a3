// A shared receive queue as its owner and the peers of its queue pairs see it: two memfds.
//
//   board    written by the owner, read-only for peers: what is posted, in order
//   claims   written by all: who has taken what
//
// A receive is posted under the next ticket. The board has a ring of tickets, each naming an entry; whoever
// has a message turns the entry's claim from "posted under this ticket" to "taken by my queue pair" in one
// step. So a receive has one taker at any time, the owner can tell what a dead taker had, and no taker can
// change what another one reads of a receive.
#pragma once

#include "shm/mapping/layout.h"

namespace rdmakit::shm {

struct BoardHeader {
  alignas(kApart) std::atomic<uint32_t> posted;  // tickets given so far, modulo 2^32; the next one
  std::atomic<uint32_t> limit;                   // whoever leaves fewer receives than this tells the owner
};

struct ClaimsHeader {
  alignas(kApart) std::atomic<uint32_t> next;     // where to look first: the oldest ticket, or about there
  alignas(kApart) std::atomic<uint32_t> starved;  // 1: some queue pair waits for a receive
  std::atomic<uint32_t> limit_told;               // 1: the owner has been told
};

// The claim of an entry, and its ticket in the board: the ticket in the upper half.
inline uint64_t with_ticket(uint32_t ticket, uint32_t what) { return uint64_t{ticket} << 32 | what; }
inline uint32_t ticket_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
inline uint32_t low_of(uint64_t word) { return static_cast<uint32_t>(word); }

// In a claim's lower half: else the owner's number of the queue pair that has taken it, of 24 bits.
inline constexpr uint32_t kPosted = 0;
inline constexpr uint32_t kNotPosted = UINT32_MAX;

struct SharedShape {
  uint32_t entries = 0;  // a power of two
  uint32_t sges = 0;

  bool sane() const { return AreaShape{entries, sges}.sane(); }
  size_t entry_stride() const { return AreaShape{entries, sges}.entry_stride(); }
  size_t tickets_at() const { return sizeof(BoardHeader); }
  size_t entries_at() const { return (tickets_at() + entries * sizeof(uint64_t) + 63) / 64 * 64; }
  size_t board_size() const { return entries_at() + entries * entry_stride(); }
  size_t claims_at() const { return sizeof(ClaimsHeader); }
  size_t claims_size() const { return claims_at() + entries * sizeof(uint64_t); }
};

}  // namespace rdmakit::shm
