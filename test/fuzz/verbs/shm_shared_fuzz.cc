// The memory that two ends of a connection over shm share. The input plays the peer, which stores any values
// where it can, and decides the actions of this end in between: posts, polls, waits for events, closes
// regions, disconnects. After each input: guards are untouched, each work request has completed once, no
// completion reports more than there is room for, and no call has waited for the peer.
#include <sys/random.h>

#include "shm_fuzz_world.h"

using namespace fuzz;

// Keys have random bits, by which an input could never name a region twice.
extern "C" ssize_t getrandom(void* buffer, size_t length, unsigned) {
  std::memset(buffer, 0, length);
  return static_cast<ssize_t>(length);
}

namespace {

class Script {
 public:
  Script(Input& input, Session& session) : input_(input), session_(session) {}

  void run() {
    for (int steps = 0; steps < 128 && !input_.empty(); steps++) step();
  }

 private:
  void step() {
    World& world = World::instance();
    const uint8_t what = input_.byte();
    switch (what % 14) {
      case 0:
        return arrival();
      case 1:
        return store(session_.area().data(), session_.area().size());
      case 2:
        session_.header().hazard.store(key());
        return;
      case 3:
        session_.header().armed.store(input_.byte());
        session_.header().starved.store(input_.byte());
        return;
      case 4:
        return peer_header();
      case 5:
        return peer_receive();
      case 6:
        return peer_region();
      case 7:
        return store(world.area.data(), world.area.size());
      case 8:
        return session_.post_receive();
      case 9: {
        const uint8_t opcode = input_.byte();
        const uint32_t length = input_.byte();
        const uint32_t remote = key();
        return session_.post_send(opcode, length, remote, input_.two());
      }
      case 10:
        return session_.poll();
      case 11:
        return session_.wait_for_event();
      case 12:
        return close_region();
      default:
        if (what < 128) return session_.own().progress();
        session_.own().fail(Failure{});
    }
  }

  // A key of one of the first slots, as both ends have them, or any word.
  uint32_t key() {
    const uint8_t slot = input_.byte();
    return slot < 128 ? uint32_t{slot % World::kTableSlots} << 8 : input_.four();
  }

  void store(uint8_t* to, size_t size) {
    const size_t at = input_.two() % (size - 3);
    const uint32_t value = input_.four();
    std::memcpy(to + at, &value, sizeof value);
  }

  // A message that could be one.
  void arrival() {
    Slot& slot = session_.slot(arrivals_);
    const uint8_t length = input_.byte();
    slot.length = length < 250 ? length : input_.four();
    slot.kind = static_cast<SlotKind>(input_.byte());
    slot.flags = input_.byte();
    slot.immediate = key();
    arrivals_ += 1;
    slot.sequence.store(arrivals_);
  }

  void peer_header() {
    auto& header = *reinterpret_cast<AreaHeader*>(World::instance().area.data());
    const uint8_t what = input_.byte();
    if (what & 1) header.posted.store(header.posted.load() + what / 8);
    if (what & 2) header.floor.store(input_.four());
    if (what & 4) header.closed.store(input_.byte());
  }

  void peer_receive() {
    World& world = World::instance();
    const uint32_t number = input_.byte() % World::kEntries;
    const AreaShape& shape = World::kPeerShape;
    auto& entry = *reinterpret_cast<ReceiveEntry*>(world.area.data() + shape.entries_at() +
                                                   number * shape.entry_stride());
    entry.sge_count = input_.byte();
    for (uint32_t i = 0; i < World::kSges; i++) {
      const uint32_t length = input_.two();
      entry.sges[i] = {input_.two(), length, key()};
    }
  }

  void peer_region() {
    const uint32_t slot = input_.byte() % World::kTableSlots;
    RegionEntry& entry = reinterpret_cast<RegionEntry*>(World::instance().table.data())[slot];
    const uint8_t what = input_.byte();
    entry.access = what & 1 ? input_.four() : kRegion | 31;
    entry.segment = what & 2 ? input_.four() : 0;
    entry.generation = what & 4 ? input_.byte() : 0;
    entry.address = what & 8 ? uint64_t{input_.four()} << 32 | input_.four() : 0;
    entry.length = what & 16 ? uint64_t{input_.four()} << 32 | input_.four() : 8192;
    entry.segment_address = what & 32 ? uint64_t{input_.four()} << 32 | input_.four() : 0;
    entry.queue_pair = what & 64 ? input_.four() : 1;
    entry.key.store(slot << 8);
  }

  void close_region() {
    World& world = World::instance();
    void* memory = shm_provider().map_memory(4096, {});
    CHECK(memory != nullptr);
    ibv_mr* mr =
        shm_provider().reg_mr(world.pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(mr != nullptr);
    if (input_.byte() & 1) session_.header().hazard.store(mr->rkey);
    CHECK(shm_provider().dereg_mr_to_unmap(mr) == 0);
    shm_provider().unmap_memory(memory, 4096, {});
  }

  Input& input_;
  Session& session_;
  uint32_t arrivals_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  World::instance().reset();
  Input input(data, size);
  Session session;
  for (int i = 0; i < 3; i++) session.post_receive();
  Script(input, session).run();
  return 0;
}
