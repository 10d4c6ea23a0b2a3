// Executes a send work request: look at the peer's memory, copy, notify. All under send_lock_.
//
// The rule of every access to memory that the peer owns: store its key as hazard, check that the area is open
// and the key is there, access, clear the hazard. An entry of the peer's region table is not valid before.

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/clock.h"
#include "shm/completion/completion_queue.h"
#include "shm/completion/eventfd_signal.h"
#include "shm/memory/protection_domain.h"
#include "shm/queue-pair/copy.h"
#include "shm/queue-pair/queue_pair.h"
#include "shm/queue-pair/queue_pair_request.h"

namespace rdmakit::shm {
namespace {

// By opcode.
constexpr std::array<uint8_t, IBV_WR_SEND_WITH_INV + 1> kSlotFlags = [] {
  std::array<uint8_t, IBV_WR_SEND_WITH_INV + 1> flags{};
  flags[IBV_WR_SEND_WITH_IMM] = flags[IBV_WR_RDMA_WRITE_WITH_IMM] = kSlotImmediate;
  flags[IBV_WR_SEND_WITH_INV] = kSlotInvalidate;
  return flags;
}();

}  // namespace

// Hot path: no allocation, no system call unless the peer sleeps or its memory is not shared.
bool QueuePair::hold(uint32_t key) {
  if (held_ != key) {
    // Say it, then look; the peer revokes, then looks who says it. All four are sequentially consistent.
    peer_->header().hazard.exchange(key, std::memory_order_seq_cst);
    held_ = key;
  }
  return peer_->header().closed.load(std::memory_order_seq_cst) == 0;
}

void QueuePair::let_go() {
  if (held_ == 0) return;
  held_ = 0;
  peer_->header().hazard.store(0, std::memory_order_release);
}

// The peer has a receive for message number position_.
bool QueuePair::has_receive() {
  if (position_ != posted_) return true;
  AreaHeader& header = peer_->header();
  posted_ = header.posted.load(std::memory_order_acquire);
  if (position_ != posted_) return true;
  // Say that we wait, then look again; the peer posts, then looks who waits.
  header.starved.exchange(1, std::memory_order_seq_cst);
  posted_ = header.posted.load(std::memory_order_seq_cst);
  return position_ != posted_;
}

// Memory that is not shared is reached by the peer's process number, which another process may have
// when the peer is gone.
bool QueuePair::can_touch(const RemotePiece& piece) { return piece.mapped != nullptr || !link_->peer_over(); }

QueuePair::Outcome QueuePair::execute(const Request& request) {
  switch (request.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return send(request);
    case IBV_WR_RDMA_READ:
      return read(request);
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return atomic(request);
    case IBV_WR_SEND_WITH_INV:
      return send_and_invalidate(request);
    case IBV_WR_BIND_MW:
      return bind(request);
    case IBV_WR_LOCAL_INV:
      return invalidate(request);
    default:
      return write(request);
  }
}

ibv_wc_status QueuePair::check_local(const Request& request, uint32_t access) const {
  if (request.inlined) return IBV_WC_SUCCESS;
  for (uint32_t i = 0; i < request.sge_count; i++) {
    const ibv_sge& sge = request.sges[i];
    if (sge.length > 0 && !domain()->allows(sge.lkey, sge.addr, sge.length, access)) [[unlikely]] {
      return IBV_WC_LOC_PROT_ERR;
    }
  }
  return IBV_WC_SUCCESS;
}

QueuePair::Outcome QueuePair::write(const Request& request) {
  const bool immediate = request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (immediate && !has_receive()) [[unlikely]]
    return Outcome::later();
  if (check_local(request, 0) != IBV_WC_SUCCESS) [[unlikely]]
    return Outcome::failed(IBV_WC_LOC_PROT_ERR);
  if (request.length > 0) {
    if (!hold(request.remote_key)) [[unlikely]]
      return Outcome::later();  // until the end arrives
    RemotePiece piece;
    switch (peer_->reach(request.remote_key, request.remote_address, request.length, IBV_ACCESS_REMOTE_WRITE,
                         piece)) {
      case Peer::Reach::refused:
        return Outcome::refused();
      case Peer::Reach::not_mapped:
        return Outcome::later();
      case Peer::Reach::ok:
        break;
    }
    if (!can_touch(piece)) [[unlikely]]
      return Outcome::later();
    SgeWalk local(request.sges, request.sge_count, lent_);
    const int error = copy_to_peer(local, piece, peer_->pid());
    if (error != 0) [[unlikely]]
      return Outcome::not_copied(error, peer_->pid());
  }
  if (immediate) {
    publish(peer_->slot(position_), SlotKind::write, request);
  }
  return Outcome{};
}

QueuePair::Outcome QueuePair::read(const Request& request) {
  if (check_local(request, IBV_ACCESS_LOCAL_WRITE) != IBV_WC_SUCCESS) [[unlikely]] {
    return Outcome::failed(IBV_WC_LOC_PROT_ERR);
  }
  if (request.length == 0) return Outcome{};
  if (!hold(request.remote_key)) [[unlikely]]
    return Outcome::later();
  RemotePiece piece;
  switch (peer_->reach(request.remote_key, request.remote_address, request.length, IBV_ACCESS_REMOTE_READ,
                       piece)) {
    case Peer::Reach::refused:
      return Outcome::refused();
    case Peer::Reach::not_mapped:
      return Outcome::later();
    case Peer::Reach::ok:
      break;
  }
  if (!can_touch(piece)) [[unlikely]]
    return Outcome::later();
  SgeWalk local(request.sges, request.sge_count);
  const int error = copy_from_peer(local, piece, peer_->pid());
  if (error != 0) [[unlikely]]
    return Outcome::not_copied(error, peer_->pid());
  return Outcome{};
}

QueuePair::Outcome QueuePair::atomic(const Request& request) {
  if (check_local(request, IBV_ACCESS_LOCAL_WRITE) != IBV_WC_SUCCESS) [[unlikely]] {
    return Outcome::failed(IBV_WC_LOC_PROT_ERR);
  }
  if (!hold(request.remote_key)) [[unlikely]]
    return Outcome::later();
  RemotePiece piece;
  switch (peer_->reach(request.remote_key, request.remote_address, sizeof(uint64_t), IBV_ACCESS_REMOTE_ATOMIC,
                       piece)) {
    case Peer::Reach::refused:
      return Outcome::refused();
    case Peer::Reach::not_mapped:
      return Outcome::later();
    case Peer::Reach::ok:
      break;
  }
  if (piece.mapped == nullptr) [[unlikely]]
    return Outcome::failed(IBV_WC_REM_OP_ERR, EOPNOTSUPP);
  if (reinterpret_cast<uintptr_t>(piece.mapped) % sizeof(uint64_t) != 0) [[unlikely]] {
    return Outcome::invalid(Blame::request);
  }
  const std::atomic_ref<uint64_t> target(*reinterpret_cast<uint64_t*>(piece.mapped));
  uint64_t before = request.compare_add;
  if (request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    target.compare_exchange_strong(before, request.swap, std::memory_order_seq_cst);
  } else {
    before = target.fetch_add(request.compare_add, std::memory_order_seq_cst);
  }
  piece.mapped = reinterpret_cast<uint8_t*>(&before);
  SgeWalk local(request.sges, request.sge_count);
  copy_from_peer(local, piece, 0);
  return Outcome{};
}

QueuePair::Outcome QueuePair::send(const Request& request) {
  if (!has_receive()) [[unlikely]]
    return Outcome::later();
  if (peer_->header().closed.load(std::memory_order_relaxed) != 0) [[unlikely]]
    return Outcome::later();
  if (check_local(request, 0) != IBV_WC_SUCCESS) [[unlikely]]
    return Outcome::failed(IBV_WC_LOC_PROT_ERR);
  // A short message that every receive has room for needs no look at the receive.
  if (request.length > kSlotPayload ||
      request.length > peer_->header().floor.load(std::memory_order_relaxed)) {
    return place(request, peer_->entry(position_));
  }
  publish_payload(request);
  return Outcome{};
}

void QueuePair::publish_payload(const Request& request) {
  Slot& slot = peer_->slot(position_);
  SgeWalk local(request.sges, request.sge_count);
  for (uint64_t done = 0; done < request.length;) {
    uint64_t length;
    const uint8_t* from = local.next(request.length - done, length);
    std::memcpy(slot.payload + done, from, length);
    done += length;
  }
  publish(slot, SlotKind::payload, request);
}

// Puts a message into the buffers of the receive that waits for it.
QueuePair::Outcome QueuePair::place(const Request& request, const ReceiveEntry& entry) {
  Slot& slot = peer_->slot(position_);
  const uint32_t count = read_once(entry.sge_count);
  if (count > peer_->sges()) [[unlikely]]
    return Outcome::failed(IBV_WC_REM_OP_ERR, EPROTO);
  std::array<ReceiveSge, kMaxSge> pieces;
  uint64_t capacity = 0;
  for (uint32_t i = 0; i < count; i++) {
    pieces[i] = {read_once(entry.sges[i].address), read_once(entry.sges[i].length),
                 read_once(entry.sges[i].key)};
    capacity += pieces[i].length;
  }
  if (request.length > capacity) [[unlikely]] {
    publish(slot, SlotKind::length_error, request);
    return Outcome::invalid(Blame::nothing);  // the peer's completion tells it
  }
  if (request.length <= kSlotPayload) {
    publish_payload(request);
    return Outcome{};
  }
  SgeWalk local(request.sges, request.sge_count);
  uint64_t left = request.length;
  for (uint32_t i = 0; i < count && left > 0; i++) {
    const uint64_t length = std::min<uint64_t>(pieces[i].length, left);
    if (length == 0) continue;
    if (!hold(pieces[i].key)) [[unlikely]]
      return Outcome::later();
    RemotePiece piece;
    const Peer::Reach reach =
        peer_->reach(pieces[i].key, pieces[i].address, length, IBV_ACCESS_LOCAL_WRITE, piece);
    if (reach == Peer::Reach::not_mapped || (reach == Peer::Reach::ok && !can_touch(piece))) [[unlikely]] {
      return Outcome::later();
    }
    const int error = reach == Peer::Reach::ok ? copy_to_peer(local, piece, peer_->pid()) : EACCES;
    if (error != 0) [[unlikely]] {
      publish(slot, SlotKind::protection_error, request);
      return Outcome::not_copied(error, peer_->pid());
    }
    left -= length;
  }
  publish(slot, SlotKind::placed, request);
  return Outcome{};
}

void QueuePair::publish(Slot& slot, SlotKind kind, const Request& request) {
  const bool solicited = request.solicited || kind >= SlotKind::length_error;
  if (peer_stamped_) [[unlikely]]
    peer_->stamp(position_).store(now_ns(), std::memory_order_relaxed);
  slot.length = static_cast<uint32_t>(request.length);
  slot.immediate = request.immediate;
  slot.kind = kind;
  slot.flags = static_cast<uint8_t>(kSlotFlags[request.opcode] | (solicited ? kSlotSolicited : 0));
  // Publish, then look whether the peer sleeps; it arms, then looks at the slots. All four are
  // sequentially consistent (a plain store would pass the load), so one of the two sees the other.
  slot.sequence.exchange(++position_, std::memory_order_seq_cst);
  const uint32_t armed = peer_->header().armed.load(std::memory_order_seq_cst);
  if (armed == kArmedAny || (armed == kArmedSolicited && solicited)) [[unlikely]]
    wake();
  __builtin_prefetch(&peer_->slot(position_), 1);
}
// End of hot path.

void QueuePair::wake() {
  if (peer_->header().armed.exchange(kArmedNot, std::memory_order_relaxed) == kArmedNot) return;
  signal_eventfd(peer_->event_fd());
}

}  // namespace rdmakit::shm
