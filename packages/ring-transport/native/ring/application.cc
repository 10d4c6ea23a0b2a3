// The calls of Poller that the application makes.
#include <errno.h>
#include <unistd.h>

#include "ring/poller.h"

namespace rdmakit::ring {

Connection* Poller::find(uint32_t number) {
  const uint32_t slot = slot_of(number);
  if (slot >= slots_.size()) return nullptr;
  Connection* connection = slots_[slot].owned.get();
  return connection != nullptr && connection->generation == generation_of(number) ? connection : nullptr;
}

int Poller::attach(const ConnectionOptions& options, uint32_t& number) {
  const uint64_t ring_bytes =
      (uint64_t{1} << options.log2_capacity) + uint64_t{Receiver::ring_words(options.receive_depth)} * 8;
  if (options.log2_capacity < kMinLog2Capacity || options.log2_capacity > kMaxLog2Capacity ||
      options.receive_depth < kMinReceiveDepth || options.receive_depth > kMaxReceiveDepth ||
      options.send_depth < 16 || options.send_depth > 4096 || options.ring->length < ring_bytes)
    return EINVAL;
  if (!thread_.joinable()) return ESHUTDOWN;
  // Round robin, so that a number is not soon used again.
  for (uint32_t tried = 0; tried < slots_.size(); ++tried) {
    const uint32_t index = next_slot_;
    next_slot_ = (next_slot_ + 1) % static_cast<uint32_t>(slots_.size());
    Slot& slot = slots_[index];
    if (slot.owned != nullptr) continue;
    slot.generation = (slot.generation + 1) & 0xff;
    slot.owned =
        std::make_unique<Connection>(options.qp, options.ring, index, slot.generation, options.log2_capacity,
                                     options.receive_depth, options.send_depth);
    board_.slot_word(index, Board::kReleased).store(0, std::memory_order_relaxed);
    board_.slot_word(index, Board::kReported).store(0, std::memory_order_relaxed);
    // The receives first: once the poller knows the connection, they are its business.
    if (int error = slot.owned->receiver.start(); error != 0) {
      slot.owned.reset();
      return error;
    }
    number = slot.owned->number();
    slot.current.store(slot.owned.get(), std::memory_order_release);
    return 0;
  }
  return ENOSPC;
}

int Poller::establish(uint32_t number, const MrRef& staging, const PeerRing& peer) {
  Connection* connection = find(number);
  if (connection == nullptr || connection->sender.established()) return EINVAL;
  if (peer.log2_capacity < kMinLog2Capacity || peer.log2_capacity > kMaxLog2Capacity ||
      peer.receive_depth < kMinReceiveDepth || peer.receive_depth > kMaxReceiveDepth ||
      staging->length < (uint64_t{1} << peer.log2_capacity) + uint64_t{connection->sender.depth()} * 8)
    return EINVAL;
  connection->sender.establish(staging, peer);
  connection->established.store(true, std::memory_order_release);
  // Credit may have become due before there was a way to send it.
  ask(number, Connection::kWishCredit);
  return 0;
}

SendResult Poller::send(uint32_t number, FrameType type, uint64_t correlation, const void* data,
                        uint32_t length) {
  Connection* connection = find(number);
  return connection == nullptr ? SendResult::closed
                               : connection->sender.queue(type, correlation, data, length);
}

SendResult Poller::flush(uint32_t number) {
  Connection* connection = find(number);
  return connection == nullptr ? SendResult::closed : connection->sender.flush();
}

bool Poller::drained(uint32_t number) {
  Connection* connection = find(number);
  return connection == nullptr || connection->sender.drained();
}

void Poller::return_credit(uint32_t number) { ask(number, Connection::kWishCredit); }

void Poller::detach(uint32_t number) { ask(number, Connection::kWishDetach); }

void Poller::release(uint32_t number) {
  Connection* connection = find(number);
  if (connection == nullptr) return;
  Slot& slot = slots_[connection->slot];
  if (slot.current.load(std::memory_order_acquire) != nullptr) return;
  slot.owned.reset();
}

void Poller::ask(uint32_t number, uint32_t wish) {
  Connection* connection = find(number);
  if (connection == nullptr) return;
  connection->wishes.fetch_or(wish, std::memory_order_release);
  attention_[connection->slot / 64].fetch_or(uint64_t{1} << connection->slot % 64, std::memory_order_seq_cst);
  wake();
}

void Poller::wake() {
  any_attention_.store(true, std::memory_order_seq_cst);
  rouse();
}

void Poller::rouse() {
  if (!sleeping_.load(std::memory_order_seq_cst) || !sleeping_.exchange(false, std::memory_order_seq_cst))
    return;
  const uint64_t one = 1;
  // Can only fail when the counter is full, and then the thread is awake.
  [[maybe_unused]] ssize_t written = write(rouse_fd_, &one, sizeof one);
}

}  // namespace rdmakit::ring
