#include "ring/sending/sender.h"

#include <arpa/inet.h>

#include <algorithm>

#include "rdmakit/invariant.h"

namespace rdmakit::ring {

Sender::Sender(QpRef qp, Version version, uint32_t slot, uint32_t generation, const SenderOptions& options)
    : qp_(std::move(qp)), format_(version), slot_(slot), generation_(generation), options_(options) {
  // The unsignaled tail, which never completes by itself, so holds at most a quarter of the send queue and of
  // the staging region: the rest has room for any frame.
  const uint32_t quarter = options.depth / 4;
  options_.signal_every = options.signal_every == 0 ? quarter : std::min(options.signal_every, quarter);
}

void Sender::establish(MrRef staging, const PeerRing& peer) {
  mr_ = std::move(staging);
  peer_ = peer;
  staging_ = static_cast<uint8_t*>(mr_->addr);
  max_inline_ = qp_.handle()->max_inline_data;
  current_ = Window(peer.windows, 0, format_.unit_log2());
  limit_ = limit();
  words_ = staging_ + peer.windows.bytes();
  for (uint32_t i = 0; i < kMostRequests; ++i) {
    elements_[i].lkey = mr_->lkey;
    requests_[i].sg_list = &elements_[i];
    requests_[i].num_sge = 1;
    requests_[i].wr.rdma.rkey = peer.key;
  }
}

// --- hot path ------------------------------------------------------------------------------------
// No allocation, no lock, no system call but the post itself.

uint64_t Sender::window() const {
  if (growing_ != 0) return next_;  // behind a GROW nothing fits before it is posted
  const uint64_t end = std::min(limit_, (next_ | current_.mask) + 1);
  // A frame that outgrows the window has to come to reserve().
  return larger() ? std::min(end, next_ + current_.roomy()) : end;
}

bool Sender::advance(uint32_t next) {
  const uint32_t units = next - static_cast<uint32_t>(next_);
  if (units > window() - next_) return false;
  next_ += units;
  return true;
}

SendResult Sender::reserve(uint32_t bytes) {
  if (failed_) return SendResult::failed;
  if (!established()) return SendResult::closed;
  if (bytes > 1u << (peer_.windows.log2_capacity - 1)) return SendResult::too_long;
  const uint32_t units = format_.units(bytes);
  for (uint64_t awaited; growing_ != 0 || outgrows(units) || !make_room(units, awaited);) {
    if (larger()) {
      if (const SendResult result = grow(units); result != SendResult::done) return result;
      continue;
    }
    // Frames that are laid out, perhaps a pad, must reach the peer for credit to come back.
    if (flush() == SendResult::failed) return SendResult::failed;
    awaited_units_.store(awaited - current_.capacity, std::memory_order_seq_cst);
    if (limit() < awaited) {
      counters.stalls.add(1);
      return SendResult::full;
    }
  }
  return SendResult::done;
}

// Leaves the window for the next, or for one that has many of such frames. `full`: the GROW is laid out and
// cannot be posted yet, and the writable event is one for room.
SendResult Sender::grow(uint32_t units) {
  if (growing_ == 0) {
    const Windows& windows = peer_.windows;
    growing_ = current_.index + 1;
    while (windows.larger_than(growing_) && units > Window(windows, growing_, format_.unit_log2()).roomy())
      ++growing_;
    format_.write(at(next_), {FrameType::grow, 0, 0, growing_});
    next_ += format_.units_of(FrameType::grow, 0);
  }
  // Said before the flush, and taken back when that succeeds, unless a frame that was refused before awaits
  // it.
  const bool awaited = awaits_growth_.exchange(true, std::memory_order_seq_cst);
  const SendResult result = flush();
  if (result == SendResult::done && !awaited) awaits_growth_.store(false, std::memory_order_relaxed);
  return result;
}

SendResult Sender::queue(FrameType type, uint32_t correlation, uint32_t immediate, const void* data,
                         uint32_t length) {
  // Before it is known how long a frame may be, none has room.
  if (established() && length > max_length()) return SendResult::too_long;
  const uint32_t header = format_.header(type);
  if (const SendResult result = reserve(header + length); result != SendResult::done) return result;
  format_.write(at(next_), {type, length, correlation, immediate});
  if (length > 0) std::memcpy(at(next_) + header, data, length);
  next_ += format_.units(uint64_t{header} + length);
  ++frames_;
  if (type == FrameType::close) signal();
  if (frames_ >= options_.batch_frames || (next_ - posted()) << format_.unit_log2() >= options_.batch_bytes)
    if (flush() == SendResult::failed) return SendResult::failed;
  return SendResult::done;
}

// Room for a frame of `units` at next_, behind a pad when it does not fit before the window's end. In the
// last window the pad is laid out even when the frame has to wait (claim 1 of wire.h). Without room,
// `awaited` is where the limit must get to.
bool Sender::make_room(uint32_t units, uint64_t& awaited) {
  const auto there = [&](uint64_t end) { return limit_ >= end || (limit_ = limit()) >= end; };
  const uint32_t to_end = current_.to_end(next_);
  if (units > to_end) {
    awaited = next_ + to_end;
    if (!there(larger() ? awaited + units : awaited)) return false;
    const uint32_t length = (to_end << format_.unit_log2()) - format_.header(FrameType::pad);
    format_.write(at(next_), {FrameType::pad, length});
    pad_ = next_;
    next_ += to_end;
    pad_end_ = next_;
  }
  awaited = next_ + units;
  return there(awaited);
}

// A place is free when the peer has consumed its contents, and the device no longer reads it here: until its
// completion a retransmission may.
uint64_t Sender::consumed() const {
  return std::min(credited_.load(std::memory_order_seq_cst), completed_.load(std::memory_order_seq_cst));
}

// A window that can be left keeps a unit, for the GROW.
uint64_t Sender::limit() const { return consumed() + current_.capacity - (larger() ? 1 : 0); }

uint32_t Sender::granted() {
  uint32_t grants = 0;
  const uint64_t awaited = awaited_units_.load(std::memory_order_seq_cst);
  if (awaited != kNothingAwaited && awaited <= consumed()) {
    awaited_units_.store(kNothingAwaited, std::memory_order_seq_cst);
    grants |= kGrantRoom;
  }
  if (awaited_other_.load(std::memory_order_seq_cst) &&
      awaited_other_.exchange(false, std::memory_order_seq_cst)) {
    grants |= kGrantOther;
    if (awaits_growth_.exchange(false, std::memory_order_seq_cst)) grants |= kGrantRoom;
  }
  return grants;
}

bool Sender::can_post(uint32_t requests) {
  return posted_requests_ + requests - completed_requests_.load(std::memory_order_seq_cst) <=
             options_.depth &&
         notifications_.load(std::memory_order_relaxed) -
                 credited_notifications_.load(std::memory_order_seq_cst) <
             peer_.receive_depth;
}

SendResult Sender::flush() {
  if (failed_) return SendResult::failed;
  if (next_ == posted()) return SendResult::done;
  if (!can_post(kMostRequests)) {
    awaited_other_.store(true, std::memory_order_seq_cst);
    if (!can_post(kMostRequests)) {
      counters.stalls.add(1);
      return SendResult::full;
    }
  }
  return post();
}

SendResult Sender::flush_lent(uint32_t offset, uint8_t* data, uint32_t length) {
  if (!established()) return SendResult::closed;
  // It ends where the batch does, or less than a unit before.
  const uint64_t batch = (next_ - posted()) << format_.unit_log2();
  const uint64_t end = current_.place(next_ - 1) + (1u << format_.unit_log2());
  const uint64_t place_end = uint64_t{offset} + length;
  if (batch == 0 || length > batch || place_end > end || end - place_end >= 1u << format_.unit_log2()) {
    failed_ = true;
    return SendResult::failed;
  }
  uint8_t* const place = staging_ + offset;
  const LentBytes lent{data, reinterpret_cast<uint64_t>(place), length};
  const bool lends = qp_.handle()->verbs->post_send_lent != nullptr;
  if (lends)
    lent_ = &lent;
  else
    std::memcpy(place, data, length);
  const SendResult result = flush();
  if (lends && result == SendResult::full) std::memcpy(place, data, length);
  lent_ = nullptr;
  return result;
}

// The bytes of the frames that fill [begin, end), without those behind the last frame that are never read:
// the rest of its last unit, or of a pad.
uint32_t Sender::bytes_between(uint64_t begin, uint64_t end) const {
  constexpr int kFrames = 16;  // looked at: of a large batch it is not worth it
  const auto bytes = [&](uint64_t to) { return static_cast<uint32_t>(to - begin) << format_.unit_log2(); };
  if (end == pad_end_) return bytes(pad_) + format_.header(FrameType::pad);
  uint64_t position = begin;
  for (int i = 0; i < kFrames && position < end; ++i) {
    const uint32_t frame = format_.written(at(position));
    const uint64_t next = position + format_.units(frame);
    if (next == end) return bytes(position) + frame;
    position = next;
  }
  return bytes(end);
}

// The whole batch lies together but for the ring's end, so it takes one WRITE, or two, and one
// notification: a chain of at most three, one doorbell.
SendResult Sender::post() {
  const uint64_t posted = this->posted();
  const uint64_t notifications = notifications_.load(std::memory_order_relaxed);
  RDMAKIT_INVARIANT(
      posted < next_ && next_ <= limit_ + (growing_ != 0 ? 1 : 0) && next_ - posted <= current_.capacity,
      "units %llu to %llu of %u, and room up to %llu", static_cast<unsigned long long>(posted),
      static_cast<unsigned long long>(next_), current_.capacity, static_cast<unsigned long long>(limit_));
  const uint32_t units = static_cast<uint32_t>(next_ - posted);
  const uint64_t ring_end = (posted | current_.mask) + 1;
  uint32_t count = 0;
  auto add = [&](const void* data, uint32_t length, ibv_wr_opcode opcode) {
    elements_[count].addr = reinterpret_cast<uint64_t>(data);
    elements_[count].length = length;
    ibv_send_wr& request = requests_[count++];
    request.opcode = opcode;
    request.send_flags = length <= max_inline_ ? IBV_SEND_INLINE : 0;
    if (count > 1) requests_[count - 2].next = &request;
    if (length <= max_inline_) counters.posts.inline_requests.add(1);
  };
  auto write = [&](uint64_t begin, uint64_t end) {
    requests_[count].wr.rdma.remote_addr = peer_.address + current_.place(begin);
    add(at(begin), bytes_between(begin, end), IBV_WR_RDMA_WRITE);
  };
  write(posted, std::min(next_, ring_end));
  if (next_ > ring_end) [[unlikely]]
    write(ring_end, next_);
  if (peer_.write_with_immediate) {
    requests_[count - 1].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    requests_[count - 1].imm_data = htonl(units);
  } else {
    // Used again about as many notifications later as the send queue holds: by then this one, which takes
    // two of its entries, has completed. The last place is the ping's.
    uint8_t* word = words_ + notifications % (options_.depth - 1) * 8;
    std::memcpy(word, &units, sizeof units);
    add(word, sizeof units, IBV_WR_SEND);
  }

  posted_requests_ += count;
  unsignaled_requests_ += count;
  unsignaled_units_ += units;
  ibv_send_wr& last = requests_[count - 1];
  last.next = nullptr;
  if (signal_ || unsignaled_requests_ >= options_.signal_every ||
      unsignaled_units_ >= current_.capacity / 4) {
    last.send_flags |= IBV_SEND_SIGNALED;
    unsignaled_requests_ = 0;
    unsignaled_units_ = 0;
    counters.posts.signaled_requests.add(1);
  }
  counters.posts.doorbells.add(1);
  counters.posts.work_requests.add(count);
  counters.notifications.add(1);
  const uint64_t id = WorkId{Work::data, slot_, generation_, static_cast<uint32_t>(posted_requests_),
                             static_cast<uint32_t>(next_)}
                          .encode();
  for (uint32_t i = 0; i < count; ++i) requests_[i].wr_id = id;
  posted_.store(next_, std::memory_order_release);
  notifications_.store(notifications + 1, std::memory_order_release);
  frames_ = 0;
  ibv_send_wr* bad = nullptr;
  const int error = lent_ == nullptr
                        ? ibv_post_send(qp_.get(), requests_, &bad)
                        : qp_.handle()->verbs->post_send_lent(qp_.get(), requests_, &bad, *lent_);
  if (error != 0) {
    failed_ = true;
    return SendResult::failed;
  }
  if (growing_ != 0) [[unlikely]] {
    current_ = Window(peer_.windows, growing_, format_.unit_log2());
    limit_ = limit();
    growing_ = 0;
  }
  return SendResult::done;
}

bool Sender::drained() {
  auto all = [&] {
    if (next_ != posted() || completed_.load(std::memory_order_seq_cst) != next_) return false;
    const uint64_t requests = completed_requests_.load(std::memory_order_seq_cst);
    RDMAKIT_INVARIANT(requests == posted_requests_, "%llu requests completed, of %llu",
                      static_cast<unsigned long long>(requests),
                      static_cast<unsigned long long>(posted_requests_));
    return true;
  };
  if (!established() || failed_ || all()) return true;
  awaited_other_.store(true, std::memory_order_seq_cst);
  return all();
}

SendResult Sender::ping() {
  if (failed_) return SendResult::failed;
  if (!established()) return SendResult::closed;
  if (ping_.load(std::memory_order_acquire) != 0) return SendResult::full;
  // Before it is posted, or the pong could come first.
  ping_.store(kPingUnanswered | kPingPosted, std::memory_order_release);
  void* word = words_ + size_t{options_.depth - 1} * 8;
  const WorkId id{Work::control, slot_, generation_, static_cast<uint32_t>(Control::ping), 0};
  if (post_word(qp_, peer_, kPing, word, mr_->lkey, id.encode(), counters.posts) == 0)
    return SendResult::done;
  failed_ = true;
  return SendResult::failed;
}

Violation Sender::pong() {
  const uint32_t before = ping_.fetch_and(~kPingUnanswered, std::memory_order_acq_rel);
  return (before & kPingUnanswered) != 0 ? Violation::none : Violation::credit;
}

Violation Sender::credit(uint32_t word) {
  const uint64_t units = credited_.load(std::memory_order_relaxed);
  const uint64_t notifications = credited_notifications_.load(std::memory_order_relaxed);
  const uint64_t more_units = format_.units_of_grains((word - format_.grains(units)) & kCreditGrainMask);
  const uint64_t more_notifications = ((word >> kCreditGrainBits) - notifications) & kCreditNotificationMask;
  if (more_units > posted_.load(std::memory_order_acquire) - units ||
      more_notifications > notifications_.load(std::memory_order_acquire) - notifications)
    return Violation::credit;
  credited_.store(units + more_units, std::memory_order_seq_cst);
  credited_notifications_.store(notifications + more_notifications, std::memory_order_seq_cst);
  return Violation::none;
}

void Sender::complete(const WorkId& id) {
  const uint64_t requests = completed_requests_.load(std::memory_order_relaxed);
  const uint64_t units = completed_.load(std::memory_order_relaxed);
  const uint64_t reached = units + ((id.high - units) & 0xffffff);
  RDMAKIT_INVARIANT(reached <= posted_.load(std::memory_order_acquire), "%llu units completed",
                    static_cast<unsigned long long>(reached));
  completed_requests_.store(requests + ((id.low - requests) & 0xffff), std::memory_order_seq_cst);
  completed_.store(reached, std::memory_order_seq_cst);
}
// --- end of the hot path -------------------------------------------------------------------------

}  // namespace rdmakit::ring
