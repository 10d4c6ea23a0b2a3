// A peer that writes one wrong value into the memory it shares: the region table, its receives, the slots of
// the victim. Beside the smallest value that is wrong, each case has the largest that is right.
// hostile_stress writes at random, and so seldom meets these borders.
#include <sys/mman.h>

#include "../events.h"
#include "../traffic.h"
#include "raw_peer.h"

namespace shm_forged_stress {

using namespace fixture;

constexpr size_t kSegment = 4096;
constexpr uint32_t kKey = 1 << 8;
constexpr uint32_t kShort = 64, kLong = shm::kSlotPayload + 1;

// With a segment of the peer, all of which the peer's table says to be a region.
struct Forged : Victim {
  UniqueFd fd;
  std::shared_ptr<shm::SharedMapping> segment =
      shm::SharedMapping::create("raw", kSegment, shm::Sharing::writable, fd);
  Memory memory{end->pd, kSegment};

  Forged() {
    CHECK(segment != nullptr);
    shm::RegionEntry& region = peer.own_region(kKey);
    region.access = shm::kRegion | kAllAccess;
    region.generation = 1;
    region.length = kSegment;
    region.key.store(kKey);
    peer.announce(0, fd.get());
    // Waits until it is mapped.
    post(*end, read_from({0, kKey}, kSegment - 8, 0), {memory.sge(0, 8)});
    end->expect(0);
    memory.fill(1);
  }

  // A receive into the segment.
  void post_peers_receive(uint32_t pieces) const {
    shm::ReceiveEntry& entry = peer.own_entry(0);
    entry.sge_count = pieces;
    for (uint32_t i = 0; i < RawPeer::kShape.sges; i++) entry.sges[i] = {1024 * i, 1024, kKey};
    peer.own_header().floor.store(1024);
    peer.own_header().posted.store(1);
  }
  void arrive(uint32_t number, shm::SlotKind kind, uint32_t length) const {
    shm::Slot& slot = peer.slot(number);
    slot.length = length;
    slot.kind = kind;
    slot.sequence.store(number + 1);
  }
  void expect_end(int status) const {
    CHECK(end->id.events->expect(CmEvent::Type::disconnected).status == status);
  }
};

// The table says that the region is longer than its segment, or lies elsewhere in it.
void a_region_beyond_its_segment() {
  constexpr struct {
    uint64_t offset, segment_address;
  } kOutside[] = {{kSegment - 7, 0}, {kSegment, 0}, {kSegment + 1, 0}, {uint64_t{1} << 40, 0}, {0, 1}};
  for (const auto& [offset, segment_address] : kOutside) {
    for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE}) {
      const Forged forged;
      shm::RegionEntry& region = forged.peer.own_region(kKey);
      region.length = UINT64_MAX;
      region.segment_address = segment_address;
      Send send = read_from({0, kKey}, offset, 1);
      send.opcode = opcode;
      post(*forged.end, send, {forged.memory.sge(0, 8)});
      forged.end->expect(1, IBV_WC_REM_ACCESS_ERR);
      CHECK(is_noise(forged.memory.data, kSegment, 1));
    }
  }
}

// A receive has more pieces than the peer's entries have room for, and than any request has.
void a_receive_of_many_pieces() {
  {
    const Forged forged;
    forged.post_peers_receive(RawPeer::kShape.sges);
    post(*forged.end, {.wr_id = 1}, {forged.memory.sge(0, 2048)});
    forged.end->expect(1);
    CHECK(is_noise(forged.segment->data(), 2048, 1) && is_filled(forged.segment->data() + 2048, 2048, 0));
  }
  for (const uint32_t pieces : {RawPeer::kShape.sges + 1, shm::kMaxSge + 1, UINT32_MAX}) {
    const Forged forged;
    forged.post_peers_receive(pieces);
    post(*forged.end, {.wr_id = 1}, {forged.memory.sge(0, 2048)});
    CHECK(forged.end->expect(1, IBV_WC_REM_OP_ERR).vendor_err == EPROTO);
    CHECK(is_filled(forged.segment->data(), kSegment, 0));
  }
}

// A message claims more bytes than a slot has, than its receive has, or than any message has.
void a_message_too_long() {
  constexpr uint32_t kReceive = 1024;
  constexpr struct {
    shm::SlotKind kind;
    uint32_t longest;
  } kMessages[] = {{shm::SlotKind::payload, shm::kSlotPayload},
                   {shm::SlotKind::placed, kReceive},
                   {shm::SlotKind::write, shm::kMaxMessage}};
  for (const auto& [kind, longest] : kMessages) {
    Watch watch;
    Forged forged;
    for (uint64_t i = 0; i < 2; i++) post_receive(*forged.end, i, forged.memory.sge(0, kReceive));
    forged.arrive(0, kind, longest);
    CHECK(forged.end->expect(0).byte_len == longest);
    forged.memory.fill(1);
    forged.arrive(1, kind, longest + 1);
    forged.end->expect(1, IBV_WC_WR_FLUSH_ERR);
    CHECK(is_noise(forged.memory.data, kSegment, 1));
    forged.expect_end(EPROTO);
    watch.expect(IBV_EVENT_QP_FATAL, forged.end->qp);
  }
}

// The peer has closed its area, and this end has not heard of it: what it posts touches nothing, and is
// flushed when the end arrives.
void a_closed_area() {
  constexpr struct {
    ibv_wr_opcode opcode;
    uint32_t length;
  } kRequests[] = {{IBV_WR_SEND, kShort},           {IBV_WR_SEND, kLong},  {IBV_WR_RDMA_WRITE, 8},
                   {IBV_WR_RDMA_WRITE_WITH_IMM, 8}, {IBV_WR_RDMA_READ, 8}, {IBV_WR_ATOMIC_FETCH_AND_ADD, 8}};
  for (const auto& [opcode, length] : kRequests) {
    Forged forged;
    forged.post_peers_receive(1);
    forged.peer.own_header().closed.store(1);
    Send send = read_from({0, kKey}, 0, 1);
    send.opcode = opcode;
    send.compare_add = 1;
    post(*forged.end, send, {forged.memory.sge(0, length)});
    CHECK(forged.nothing_completes());
    CHECK(forged.peer.own_slot(0).sequence.load() == 0 && forged.peer.own_header().hazard.load() == 0);
    CHECK(is_filled(forged.segment->data(), kSegment, 0) && is_noise(forged.memory.data, kSegment, 1));
    forged.peer.socket.reset();
    forged.end->expect(1, IBV_WC_RETRY_EXC_ERR);
    forged.expect_end(ECONNRESET);
  }
}

// What a peer can still shrink is not mapped: an access behind its new end would be a SIGBUS.
void a_file_that_can_shrink() {
  const UniqueFd bare(memfd_create("bare", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(ftruncate(bare.get(), kSegment) == 0 && fcntl(bare.get(), F_ADD_SEALS, F_SEAL_GROW) == 0);
  Watch watch;
  Forged forged;
  forged.peer.announce(1, bare.get());
  forged.peer.socket.reset();  // if it were mapped, this would be the end
  forged.expect_end(EPROTO);
  watch.expect(IBV_EVENT_QP_FATAL, forged.end->qp);
}

STRESS(shm_forged) {
  timed("a region beyond its segment", a_region_beyond_its_segment);
  timed("a receive of many pieces", a_receive_of_many_pieces);
  timed("a message too long", a_message_too_long);
  timed("a closed area", a_closed_area);
  timed("a file that can shrink", a_file_that_can_shrink);
  std::puts("ok");
  return 0;
}

}  // namespace shm_forged_stress
