// Where a slab is: the record that control publishes and lanes read without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <utility>

#include "rdmakit/invariant.h"
#include "volume/limits.h"

namespace rdmakit::volume {

// One copy of a slab.
struct Replica {
  uint64_t address = 0;  // of the slab's first byte at the server
  uint32_t remote_key = 0;
  uint16_t server = 0;
  bool live = false;  // it holds every written page; else it is being filled: written, never read
  // It was live, has all that it had and gets all that is written, but no WRITE is answered because it has
  // it: it is about to be dropped. Never together with `live`.
  bool leaving = false;

  bool complete() const { return live || leaving; }
  void count(bool counts) {
    live = counts;
    leaving = !counts;
  }
};

struct SlabPlace {
  // Changes when WRITEs to the old place no longer count.
  uint32_t generation = 0;
  uint32_t count = 0;  // 0: not mapped
  std::array<Replica, kMaxReplicas> replicas{};

  bool mapped() const { return count > 0; }
  std::span<Replica> all() { return {replicas.data(), count}; }
  std::span<const Replica> all() const { return {replicas.data(), count}; }
  const Replica* find(uint32_t server) const {
    for (const Replica& replica : all()) {
      if (replica.server == server) return &replica;
    }
    return nullptr;
  }
  Replica* find(uint32_t server) { return const_cast<Replica*>(std::as_const(*this).find(server)); }
};

// Whether a slab has a place, and which thread may publish its next record.
//
//     vacant ── begin ──> mapping ── mapped ──> mapped ── close ──> closing ── vacate ──> mapping ──> vacant
//                (a lane or control)              ^                    |
//                                                 +------ reopen ------+
//
// `mapping` belongs to the thread that began it, `mapped` to control. In `closing` control checks whether the
// slab is empty, and a lane that wants to write ends that state: the first to change it wins, and neither
// waits.
enum class SlabPhase : uint32_t { vacant = 0, mapping, mapped, closing };

// Two places, so that a reader never waits for the writer: copies_[version % 2] is valid while the
// version stands; the next record is written to the other one. Version 0: never mapped. One writer at a
// time (see SlabPhase).
class SlabRecord {
 public:
  uint32_t generation() const { return generation_.load(); }
  // Sequentially consistent, as all its changes: see Volume::hold.
  SlabPhase phase() const { return phase_.load(); }
  bool begin_mapping() { return move(SlabPhase::vacant, SlabPhase::mapping); }
  // Called by the thread that began it: there is a place now, or there is none after all.
  void end_mapping(bool mapped) { phase_.store(mapped ? SlabPhase::mapped : SlabPhase::vacant); }
  bool reopen() { return move(SlabPhase::closing, SlabPhase::mapped); }

  // ---- hot path ----
  SlabPlace read() const {
    SlabPlace place;
    // Sequentially consistent: see Volume::place.
    uint32_t version = version_.load();
    while (version != 0) {
      const Copy& copy = copies_[version % 2];
      const uint64_t head = copy.head.load(std::memory_order_acquire);
      place.generation = static_cast<uint32_t>(head >> 32);
      place.count = static_cast<uint32_t>(head) % (kMaxReplicas + 1);  // in bounds even when torn
      for (uint32_t i = 0; i < place.count; i++) {
        const uint64_t packed = copy.key_and_server[i].load(std::memory_order_acquire);
        place.replicas[i] = {copy.address[i].load(std::memory_order_acquire),
                             static_cast<uint32_t>(packed >> 32), static_cast<uint16_t>(packed % kLive),
                             (packed & kLive) != 0, (packed & kLeaving) != 0};
      }
      const uint32_t again = version_.load(std::memory_order_acquire);
      if (again == version) break;
      version = again;
    }
    return place;
  }

  // ---- control ----
  void close() { phase_.store(SlabPhase::closing); }
  // False: a lane has reopened it. Else end_mapping() follows.
  bool vacate() { return move(SlabPhase::closing, SlabPhase::mapping); }
  // Completes the record that a dead process has left in a file: it may have died in publish(), before the
  // record counted, and lanes wait for a generation that is about to be published.
  void settle() {
    const SlabPlace place = read();
    generation_.store(place.generation);
    phase_.store(place.count > 0 || phase() > SlabPhase::mapping ? SlabPhase::mapped : SlabPhase::vacant);
  }

  // Which thread may call it: see SlabPhase.
  void publish(const SlabPlace& place) {
    RDMAKIT_INVARIANT(place.count <= kMaxReplicas, "%u replicas", place.count);
    for (uint32_t i = 0; i < place.count; i++) {
      const Replica& replica = place.replicas[i];
      RDMAKIT_INVARIANT(!(replica.live && replica.leaving) && place.find(replica.server) == &replica,
                        "replica %u of %u, at server %u", i, place.count, replica.server);
    }
    uint32_t next = version_.load() + 1;
    if (next == 0) next = 2;  // 0 means never mapped, and the parity must change
    Copy& copy = copies_[next % 2];
    copy.head.store(uint64_t{place.generation} << 32 | place.count, std::memory_order_release);
    for (uint32_t i = 0; i < place.count; i++) {
      const Replica& replica = place.replicas[i];
      copy.address[i].store(replica.address, std::memory_order_release);
      copy.key_and_server[i].store(uint64_t{replica.remote_key} << 32 | (replica.leaving ? kLeaving : 0) |
                                       (replica.live ? kLive : 0) | replica.server,
                                   std::memory_order_release);
    }
    generation_.store(place.generation);
    version_.store(next);
  }

 private:
  static constexpr uint64_t kLive = 1 << 16;
  static constexpr uint64_t kLeaving = 1 << 17;
  struct Copy {
    std::atomic<uint64_t> head{0};  // generation << 32 | count
    std::array<std::atomic<uint64_t>, kMaxReplicas> address{};
    std::array<std::atomic<uint64_t>, kMaxReplicas>
        key_and_server{};  // key << 32 | leaving << 17 | live << 16 | server
  };

  bool move(SlabPhase from, SlabPhase to) { return phase_.compare_exchange_strong(from, to); }

  std::atomic<uint32_t> version_{0};
  std::atomic<uint32_t> generation_{0};
  std::atomic<SlabPhase> phase_{SlabPhase::vacant};
  std::array<Copy, 2> copies_;
};

}  // namespace rdmakit::volume
