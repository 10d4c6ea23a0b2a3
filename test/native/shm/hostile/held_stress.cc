// A peer that claims to access this end's memory and never stops: one that is stopped in the middle of a
// copy, or a malicious one. Only a caller that takes back memory that the peer could reach waits for it, and
// only once.
#include "../traffic.h"
#include "raw_peer.h"

namespace shm_held_stress {

using namespace fixture;

struct Held : Victim {
  ~Held() { let_go(); }

  void hold(uint32_t key) const { peer.header().hazard.store(key); }
  void let_go() const { hold(0); }
  // The key of a region that has been there.
  uint32_t dead_key() const {
    Memory memory(end->pd, 4096);
    return memory.mr->rkey;
  }
  void expect_flush(uint64_t wr_id) const { end->expect(wr_id, IBV_WC_WR_FLUSH_ERR); }
};

ibv_qp_state state_of(ibv_qp* qp) {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  CHECK(provider().query_qp(qp, &attributes, IBV_QP_STATE, &init) == 0);
  return attributes.qp_state;
}

// A connection ends at once for all but the peer. Its receives, into which the peer may be copying, come back
// when the peer has cleared its hazard.
void an_end_waits_for_nobody() {
  Held held;
  Memory memory(held.end->pd, 4096);
  post_receive(*held.end, 7, memory.sge(0, 4096));
  held.hold(held.dead_key());
  CHECK(held.end->id.id->disconnect() == 0);
  CHECK(state_of(held.end->qp) == IBV_QPS_ERR);
  CHECK(held.nothing_completes() && held.end->id.events->empty());
  CHECK(try_post(*held.end, {.wr_id = 8}, {}) == 0);
  held.expect_flush(8);
  held.let_go();
  held.expect_flush(7);
  CHECK(held.end->id.events->expect(CmEvent::Type::disconnected).status == 0);
}

// The progress thread, which has ended such a connection, sets up others meanwhile.
void the_progress_thread_goes_on() {
  Held held;
  Memory memory(held.end->pd, 4096);
  post_receive(*held.end, 1, memory.sge(0, 16));
  post_receive(*held.end, 2, memory.sge(0, 4096));
  held.hold(held.dead_key());
  // It is too long for its receive.
  shm::Slot& slot = held.peer.slot(0);
  slot.length = 64;
  slot.kind = shm::SlotKind::payload;
  slot.sequence.store(1);
  held.end->expect(1, IBV_WC_LOC_LEN_ERR);
  await([&] { return state_of(held.end->qp) == IBV_QPS_ERR; });
  Pair other(held.listener, {}, {});
  CHECK(held.nothing_completes() && held.end->id.events->empty());
  held.let_go();
  held.expect_flush(2);
  held.end->id.events->expect(CmEvent::Type::disconnected);
}

// A session's memory goes while a dead key is held. It is unmapped, and the peer's own mapping is its own
// matter.
void segments_go_at_once() {
  Held held;
  std::vector<std::unique_ptr<Memory>> slabs;
  for (int i = 0; i < 64; i++) slabs.push_back(std::make_unique<Memory>(held.end->pd, 4096));
  held.hold(held.dead_key());
  for (auto& slab : slabs) {
    const uint32_t key = slab->mr->rkey;
    CHECK(held.peer.is_live(key));
    CHECK(provider().dereg_mr_to_unmap(std::exchange(slab->mr, nullptr)) == 0);
    CHECK(!held.peer.is_live(key));
    slab.reset();
  }
  CHECK(state_of(held.end->qp) == IBV_QPS_RTS);  // no call has waited, so none has timed out
}

// Others of the domain come while a call waits for a peer.
void a_domain_goes_on(Held& held, const std::atomic<bool>& returned) {
  Memory memory(held.end->pd, 4096);
  Id id;
  const sockaddr_un address = place(held.listener.path);
  CHECK(id.id->resolve(generic(address), sizeof address, kHangMs) == 0);
  id.events->expect(CmEvent::Type::route_resolved);
  End end(std::move(id), {.pd = held.end->pd});
  CHECK(provider().dereg_mr_to_unmap(std::exchange(memory.mr, nullptr)) == 0);
  CHECK(!returned);
}

// Memory that is not shared stays with the process, so it is waited for: once, then the connection is over,
// and what comes after knows.
void plain_memory_is_waited_for_once() {
  Held held;
  std::vector<std::unique_ptr<Memory>> regions;
  for (int i = 0; i < 32; i++)
    regions.push_back(std::make_unique<Memory>(held.end->pd, 4096, kAllAccess, Kind::plain));
  const auto deregister = [&](size_t number) {
    return provider().dereg_mr(std::exchange(regions[number]->mr, nullptr));
  };
  held.hold(held.dead_key());
  // By time, as for a peer that may be given up after 5 s: all of it takes that long, and not 32 times as
  // long.
  const auto begin = Clock::now();
  std::atomic<bool> returned{false};
  std::thread first([&] {
    CHECK(deregister(0) == ETIMEDOUT);
    returned = true;
  });
  a_domain_goes_on(held, returned);
  first.join();
  CHECK(held.end->id.events->expect(CmEvent::Type::disconnected).status == ETIMEDOUT);
  for (size_t i = 1; i < 16; i++) CHECK(deregister(i) == ETIMEDOUT);
  // Nor is it forgotten with its queue pair, and its connection is not settled.
  CHECK(provider().destroy_qp(std::exchange(held.end->qp, nullptr)) == ETIMEDOUT);
  held.end->id.id->close();
  for (size_t i = 16; i < 31; i++) CHECK(deregister(i) == ETIMEDOUT);
  CHECK(!held.end->id.id->settled());
  CHECK(Clock::now() - begin < std::chrono::seconds(60));
  held.let_go();
  CHECK(held.end->id.id->settled());
  CHECK(deregister(31) == 0);
}

// An entry of the table that a peer may be looking at is not another region's before it has let go.
void a_named_slot_rests() {
  Held held;
  auto first = std::make_unique<Memory>(held.end->pd, 4096);
  const uint32_t slot = shm::slot_of_key(first->mr->rkey);
  held.hold(first->mr->rkey);
  CHECK(provider().dereg_mr_to_unmap(std::exchange(first->mr, nullptr)) == 0);
  const auto is_taken = [&](int regions) {
    std::vector<std::unique_ptr<Memory>> others;
    bool taken = false;
    for (int i = 0; i < regions; i++) {
      others.push_back(std::make_unique<Memory>(held.end->pd, 4096));
      taken |= shm::slot_of_key(others.back()->mr->rkey) == slot;
    }
    for (const auto& other : others)
      CHECK(provider().dereg_mr_to_unmap(std::exchange(other->mr, nullptr)) == 0);
    return taken;
  };
  for (int i = 0; i < 4; i++) CHECK(!is_taken(8));
  held.let_go();
  is_taken(8);  // what it gives back makes the domain look at the keys that rest
  CHECK(is_taken(16));
}

STRESS(shm_held) {
  timed("an end waits for nobody", an_end_waits_for_nobody);
  timed("the progress thread goes on", the_progress_thread_goes_on);
  timed("segments go at once", segments_go_at_once);
  timed("a named slot rests", a_named_slot_rests);
  timed("plain memory is waited for once", plain_memory_is_waited_for_once);
  std::puts("ok");
  return 0;
}

}  // namespace shm_held_stress
