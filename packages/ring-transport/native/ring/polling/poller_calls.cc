// The calls of Poller that the application makes.
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "ring/polling/poller.h"

namespace rdmakit::ring {
namespace {

bool agrees(const Windows& windows, Version version) {
  return version >= Version::two && version <= Version::four && windows.sane() &&
         (windows.count == 1 || version == Version::four);
}

}  // namespace

PolledConnection* Poller::find(uint32_t number) {
  const uint32_t slot = slot_of(number);
  if (slot >= slots_.size()) return nullptr;
  PolledConnection* connection = slots_[slot].owned.get();
  return connection != nullptr && connection->generation == generation_of(number) ? connection : nullptr;
}

int Poller::attach(const ConnectionOptions& options, uint32_t& number) {
  if (!agrees(options.windows, options.version) || options.receive_depth < kMinReceiveDepth ||
      options.receive_depth > kMaxReceiveDepth || options.send.depth < 16 || options.send.depth > 4096 ||
      options.send.signal_every > options.send.depth / 4 ||
      options.ring->length <
          options.windows.bytes() + uint64_t{Receiver::ring_words(options.receive_depth)} * 8)
    return EINVAL;
  if (!running_) return ESHUTDOWN;
  // Round robin, so that a number is not soon used again.
  for (uint32_t tried = 0; tried < slots_.size(); ++tried) {
    const uint32_t index = next_slot_;
    next_slot_ = (next_slot_ + 1) % static_cast<uint32_t>(slots_.size());
    Slot& slot = slots_[index];
    if (slot.owned != nullptr) continue;
    slot.generation = (slot.generation + 1) & 0xff;
    slot.owned =
        std::make_unique<PolledConnection>(options.qp, options.ring, index, slot.generation, options.version,
                                           options.windows, options.receive_depth, options.send);
    event_ring_.slot_word(index, EventRing::kReleased).store(0, std::memory_order_relaxed);
    event_ring_.slot_word(index, EventRing::kReported).store(0, std::memory_order_relaxed);
    for (uint32_t i = 0; i < EventRing::kStagingWords; ++i)
      event_ring_.slot_word(index, EventRing::kStaging + i).store(0, std::memory_order_relaxed);
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
  PolledConnection* connection = find(number);
  if (connection == nullptr || connection->sender.established()) return EINVAL;
  if (!agrees(peer.windows, connection->version) || peer.receive_depth < kMinReceiveDepth ||
      peer.receive_depth > kMaxReceiveDepth ||
      staging->length < peer.windows.bytes() + uint64_t{connection->sender.depth()} * 8)
    return EINVAL;
  connection->sender.establish(staging, peer);
  show_staging(*connection);
  connection->established.store(true, std::memory_order_release);
  // Credit may have become due before there was a way to send it.
  request(number, PolledConnection::kPendingCredit);
  return 0;
}

// --- hot path ------------------------------------------------------------------------------------
// No allocation, no lock, no system call but the post itself.

void Poller::show_staging(const PolledConnection& connection) {
  const Sender& sender = connection.sender;
  const auto show = [&](uint32_t word, uint64_t position) {
    event_ring_.slot_word(connection.slot, EventRing::kStaging + word)
        .store(static_cast<uint32_t>(position), std::memory_order_relaxed);
  };
  show(0, sender.next());
  show(1, sender.window());
  show(2, sender.posted());
  show(3, sender.current_window());
}

SendResult Poller::reserve(uint32_t number, uint32_t next, uint32_t bytes) {
  PolledConnection* connection = find(number);
  if (connection == nullptr) return SendResult::closed;
  if (!connection->sender.advance(next)) return SendResult::failed;
  const SendResult result = connection->sender.reserve(bytes);
  show_staging(*connection);
  return result;
}

SendResult Poller::flush(uint32_t number, uint32_t next, bool signal) {
  return flush_by(number, next, signal, [](Sender& sender) { return sender.flush(); });
}

SendResult Poller::flush_lent(uint32_t number, uint32_t next, bool signal, uint32_t offset, uint8_t* data,
                              uint32_t length) {
  return flush_by(number, next, signal,
                  [&](Sender& sender) { return sender.flush_lent(offset, data, length); });
}

template <typename Flush>
SendResult Poller::flush_by(uint32_t number, uint32_t next, bool signal, Flush&& flush) {
  PolledConnection* connection = find(number);
  if (connection == nullptr) return SendResult::closed;
  if (!connection->sender.advance(next)) return SendResult::failed;
  if (signal) connection->sender.signal();
  const SendResult result = flush(connection->sender);
  show_staging(*connection);
  return result;
}

SendResult Poller::send(uint32_t number, FrameType type, uint32_t correlation, uint32_t immediate,
                        const void* data, uint32_t length) {
  PolledConnection* connection = find(number);
  return connection == nullptr ? SendResult::closed
                               : connection->sender.queue(type, correlation, immediate, data, length);
}

SendResult Poller::flush(uint32_t number) {
  PolledConnection* connection = find(number);
  return connection == nullptr ? SendResult::closed : connection->sender.flush();
}

void Poller::return_credit(uint32_t number) {
  if (!turned_by_application()) {
    request(number, PolledConnection::kPendingCredit);
  } else if (PolledConnection* connection = find(number); connection != nullptr) {
    const Hold hold(*this);
    answer(*connection);
  }
}
// --- end of the hot path -------------------------------------------------------------------------

SendResult Poller::ping(uint32_t number) {
  PolledConnection* connection = find(number);
  return connection == nullptr ? SendResult::closed : connection->sender.ping();
}

SendResult Poller::read(uint32_t number, const MrRef& region, uint64_t offset, uint64_t remote_address,
                        uint32_t remote_key, uint32_t length, uint32_t tag) {
  PolledConnection* connection = find(number);
  if (connection == nullptr || !connection->sender.established()) return SendResult::closed;
  return connection->reader.read(region, offset, remote_address, remote_key, length, tag);
}

bool Poller::drained(uint32_t number) {
  PolledConnection* connection = find(number);
  return connection == nullptr || connection->sender.drained();
}

void Poller::detach(uint32_t number) { request(number, PolledConnection::kPendingDetach); }

void Poller::release(uint32_t number) {
  PolledConnection* connection = find(number);
  if (connection == nullptr) return;
  Slot& slot = slots_[connection->slot];
  if (slot.current.load(std::memory_order_acquire) != nullptr) return;
  slot.owned.reset();
}

void Poller::request(uint32_t number, uint32_t what) {
  PolledConnection* connection = find(number);
  if (connection == nullptr) return;
  connection->pending.fetch_or(what, std::memory_order_release);
  pending_slots_[connection->slot / 64].fetch_or(uint64_t{1} << connection->slot % 64,
                                                 std::memory_order_seq_cst);
  wake();
}

void Poller::wake() {
  any_pending_.store(true, std::memory_order_seq_cst);
  // A thread that watches for the application may have finished its check already.
  if (turned_by_application()) doorbell_();
  wake_thread();
}

void Poller::wake_thread() {
  if (!sleeping_.load(std::memory_order_seq_cst) || !sleeping_.exchange(false, std::memory_order_seq_cst))
    return;
  write_wake();
}

void Poller::write_wake() {
  const uint64_t one = 1;
  // Can only fail when the counter is full, and then the thread is awake, or when the poller has stopped.
  [[maybe_unused]] ssize_t written = write(wake_fd_, &one, sizeof one);
}

bool Poller::counters(uint32_t number, double* out) {
  PolledConnection* connection = find(number);
  if (connection == nullptr) return false;
  const ReceiveCounters& in = connection->receiver.counters;
  const SendCounters& sent = connection->sender.counters;
  const PostCounters& reads = connection->reader.counters;
  const auto both = [&](Counter PostCounters::*which) {
    return (in.posts.*which).get() + (sent.posts.*which).get() + (reads.*which).get();
  };
  const uint64_t values[] = {
      in.frames.get(),
      in.bytes.get(),
      in.notifications.get(),
      in.credits.get(),
      in.credits_sent.get(),
      in.pings.get(),
      both(&PostCounters::doorbells),
      both(&PostCounters::work_requests),
      both(&PostCounters::inline_requests),
      both(&PostCounters::signaled_requests),
      sent.notifications.get(),
      sent.stalls.get(),
      reads.work_requests.get(),
  };
  static_assert(std::size(values) == std::size(kConnectionCounters));
  std::copy(std::begin(values), std::end(values), out);
  return true;
}

void Poller::counters(double* out) const {
  const Counter* const values[] = {
      &counters_.turns,       &counters_.empty_turns, &counters_.sleeps,     &counters_.wakes,
      &counters_.completions, &counters_.doorbells,   &counters_.board_full, &counters_.take_overs,
  };
  static_assert(std::size(values) == std::size(kPollerCounters));
  for (const Counter* value : values) *out++ = static_cast<double>(value->get());
}

}  // namespace rdmakit::ring
