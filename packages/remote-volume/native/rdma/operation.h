// One piece of a request: a run of bytes that is read, written or cleared in one go, with the claim of its
// pages and its memory. What the device is asked for it are its parts (WorkRequest): one, or for a WRITE to
// several replicas one for each.
#pragma once

#include <array>
#include <cstdint>

#include "pages/page_map.h"
#include "volume/limits.h"

namespace rdmakit::volume {

// In the place of a server's index: the local backup.
inline constexpr uint32_t kBackupServer = UINT32_MAX;

// The findings about a page that did not match its checksum.
struct WrongPage {
  uint64_t page;
  uint32_t server;  // had other bytes
  bool repaired;    // else no copy is right
};

// A replica that has a WRITE.
struct Keeper {
  uint64_t address;  // of the slab there
  uint16_t server;
  bool live;  // when the WRITE was chained
};

struct Operation {
  enum class Kind : uint8_t {
    read,          // slab -> output buffer
    write,         // payload -> slab
    zero_edge,     // zeros -> part of a page of the slab (WRITE_ZEROES)
    zero_fill,     // zeros -> a whole claimed page, before a part of it is written; belongs to no request
    inspect,       // page of the slab, or of the backup -> the memory of a READ that found it wrong (see
                   // PageRepair)
    repair_write,  // its right bytes -> a replica that has others
    zero_pages,    // whole pages become unset ; no work request, but it may wait for claims
    ahead,         // slab -> a window of ReadAhead; belongs to no request
  };

  uint16_t index = 0;  // constant; its own work request has the same
  Kind kind = Kind::read;
  uint16_t request = kNone;  // slot
  uint16_t part = 0;         // of a READ: place in its window; of Kind::ahead: which window it is for
  uint16_t chunk = kNone;    // input chunk that it holds

  uint64_t offset = 0;  // in the volume
  uint32_t length = 0;
  uint8_t* memory = nullptr;
  // The bytes sent of the only page of the work request; 0: all of it, raw (see PageCodec).
  uint16_t packed = 0;

  // A WRITE holds a claim over the pages that offset and length touch.
  PageState claimed_from = PageState::unset;
  uint32_t generation = 0;      // of the slab's place
  uint64_t place_deadline = 0;  // of a WRITE that waits for its slab to get a place; 0: it does not
  uint32_t place_refusals = 0;  // when it began to
  bool again = false;           // no replica has this WRITE; it restarts when its memory is free

  // The state of its parts.
  uint8_t parts = 0;       // not over
  uint8_t awaited = 0;     // neither over nor abandoned
  bool abandoned = false;  // one of them was: of a READ the only one
  bool aimed = false;      // at one replica, whatever it is for others
  bool kept = false;       // a replica that counts has it, or the backup
  bool backed = false;     // the backup has it
  // Replicas that have it; which of them count, the slab's record says when it is decided.
  uint8_t keepers = 0;
  std::array<Keeper, kMaxReplicas> keeper{};
  bool acknowledged = false;  // the listener was called before all was decided

  uint32_t wire_length() const { return packed != 0 ? packed : length; }
  bool reads() const { return kind == Kind::read || kind == Kind::inspect || kind == Kind::ahead; }
  // Pages that the claim covers.
  uint64_t first_page() const { return offset / kPage; }
  uint64_t page_count() const { return (offset % kPage + length + kPage - 1) / kPage; }
};

}  // namespace rdmakit::volume
