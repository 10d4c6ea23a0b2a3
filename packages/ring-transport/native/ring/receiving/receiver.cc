#include "ring/receiving/receiver.h"

#include <arpa/inet.h>

namespace rdmakit::ring {

Receiver::Receiver(QpRef qp, Version version, MrRef ring, uint32_t slot, uint32_t generation,
                   const Windows& windows, uint32_t depth)
    : qp_(std::move(qp)),
      format_(version),
      mr_(std::move(ring)),
      ring_(static_cast<const uint8_t*>(mr_->addr)),
      slot_(slot),
      generation_(generation),
      windows_(windows),
      largest_(1u << (windows.log2_capacity - format_.unit_log2())),
      window_(windows, 0, format_.unit_log2()),
      depth_(depth),
      receives_(depth + kReceivesForControl),
      elements_(receives_.size()) {
  const uint64_t words = reinterpret_cast<uint64_t>(ring_) + windows.bytes();
  for (uint32_t i = 0; i < receives_.size(); ++i) {
    // A WRITE WITH IMMEDIATE leaves the buffer alone, a SEND fills it: the same receives serve both.
    elements_[i] = {words + uint64_t{i} * 8, 8, mr_->lkey};
    receives_[i] = {};
    receives_[i].wr_id = WorkId{Work::receive, slot, generation, i, 0}.encode();
    receives_[i].sg_list = &elements_[i];
    receives_[i].num_sge = 1;
  }
}

int Receiver::start() {
  for (ibv_recv_wr& receive : receives_) {
    receive.next = taken_;
    taken_ = &receive;
  }
  taken_count_ = static_cast<uint32_t>(receives_.size());
  return repost();
}

// --- hot path ------------------------------------------------------------------------------------
// No allocation, no lock, no system call but the work itself.

Violation Receiver::take(const ibv_wc& completion, uint32_t index, uint32_t& word) {
  RDMAKIT_INVARIANT(index < receives_.size() && outstanding_ > 0, "receive %u of %zu, %u are posted", index,
                    receives_.size(), outstanding_);
  --outstanding_;
  receives_[index].next = taken_;
  taken_ = &receives_[index];
  ++taken_count_;
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    word = ntohl(completion.imm_data);
    return Violation::none;
  }
  if (completion.byte_len != sizeof word) return Violation::notification_size;
  std::memcpy(&word, reinterpret_cast<const void*>(elements_[index].addr), sizeof word);
  return Violation::none;
}

int Receiver::repost() {
  if (taken_ == nullptr) return 0;
  // A receiver that has flushed one posts no more.
  RDMAKIT_INVARIANT(outstanding_ + taken_count_ == receives_.size(),
                    "%u receives are posted, %u are taken, of %zu", outstanding_, taken_count_,
                    receives_.size());
  ibv_recv_wr* bad = nullptr;
  const int error = ibv_post_recv(qp_.get(), taken_, &bad);
  outstanding_ += taken_count_;
  for (; bad != nullptr && error != 0; bad = bad->next) --outstanding_;
  taken_ = nullptr;
  taken_count_ = 0;
  return error;
}

Violation Receiver::publish(uint32_t units) {
  // The peer knows of no more room than it was credited. It may be in a larger window than this end; next()
  // holds it to the one that its frames are in.
  if (units == 0 || units > largest_ - (published_ - reported_)) return Violation::published;
  published_ += units;
  ++notifications_;
  counters.notifications.add(1);
  return Violation::none;
}

Violation Receiver::next(Descriptor& descriptor) {
  RDMAKIT_INVARIANT(parsed_ < published_, "unit %llu, and as many are published",
                    static_cast<unsigned long long>(parsed_));
  Frame frame;
  if (const Violation violation = format_.read(ring_ + window_.place(parsed_), frame);
      violation != Violation::none)
    return violation;
  const uint32_t to_end = window_.to_end(parsed_);
  const uint64_t there = published_ - parsed_;
  if (frame.length > largest_ / 2 << format_.unit_log2()) return Violation::frame_length;
  const uint32_t header = format_.header(frame.type);
  const uint32_t units = format_.units(uint64_t{header} + frame.length);
  if (units > largest_ / 2 || units > there || units > to_end) return Violation::frame_length;
  if (parsed_ + units - reported_ > window_.capacity) return Violation::published;
  const bool pad = frame.type == FrameType::pad;
  if (pad && units != to_end) return Violation::pad;
  descriptor.offset = static_cast<uint32_t>(window_.place(parsed_)) + header;
  descriptor.length = frame.length;
  descriptor.type = static_cast<uint32_t>(frame.type);
  descriptor.correlation = frame.correlation;
  descriptor.immediate = frame.immediate;
  parsed_ += units;
  descriptor.end = static_cast<uint32_t>(parsed_);
  if (frame.type == FrameType::grow) [[unlikely]] {
    if (frame.length != 0 || frame.immediate <= window_.index || frame.immediate >= windows_.count)
      return Violation::grow;
    window_ = Window(windows_, frame.immediate, format_.unit_log2());
  } else if (!pad) {
    counters.frames.add(1);
    counters.bytes.add(frame.length);
  }
  return Violation::none;
}

Violation Receiver::ping() {
  // The peer cannot ping before it has the pong that is still owed to it.
  if (pong_owed_) return Violation::ping;
  pong_owed_ = true;
  counters.pings.add(1);
  return Violation::none;
}

int Receiver::answer(uint32_t released, const PeerRing& peer) {
  released_ += static_cast<uint32_t>(released - static_cast<uint32_t>(released_));
  // Otherwise the peer would overwrite unread frames.
  RDMAKIT_INVARIANT(reported_ <= released_ && released_ <= parsed_,
                    "%llu units are credited, %llu released, %llu read",
                    static_cast<unsigned long long>(reported_), static_cast<unsigned long long>(released_),
                    static_cast<unsigned long long>(parsed_));
  const uint64_t whole = format_.units_of_grains(format_.grains(released_));
  const bool due =
      whole - reported_ >= window_.capacity / 2 || notifications_ - reported_notifications_ >= depth_ / 2;
  // A credit or pong that waits here is sent when one of those in flight completes.
  const bool credit = due && credits_in_flight_ < kCreditsInFlight;
  const bool pong = pong_owed_ && !pong_in_flight_;
  if (!credit && !pong) return 0;
  if (int error = repost(); error != 0) return error;  // claim 2 of wire.h
  if (credit) {
    const uint32_t word = encode_credit(format_.grains(released_), notifications_);
    // Counted first: what a driver refuses without naming it (siw) may complete all the same.
    ++credits_in_flight_;
    if (int error = post_control(Control::credit, credits_++ % kCreditsInFlight, word, peer); error != 0)
      return error;
    reported_ = whole;
    reported_notifications_ = notifications_;
  }
  if (pong) {
    const uint32_t word = encode_credit(format_.grains(reported_), reported_notifications_);
    pong_in_flight_ = true;
    if (int error = post_control(Control::pong, kCreditsInFlight, word, peer); error != 0) return error;
    pong_owed_ = false;
  }
  return 0;
}

int Receiver::post_control(Control control, uint32_t place, uint32_t word, const PeerRing& peer) {
  // Behind the receives' words.
  auto* staged = reinterpret_cast<void*>(elements_.back().addr + 8 + uint64_t{place} * 8);
  const WorkId id{Work::control, slot_, generation_, static_cast<uint32_t>(control), 0};
  counters.credits_sent.add(1);
  return post_word(qp_, peer, word, staged, mr_->lkey, id.encode(), counters.posts);
}

void Receiver::control_completed(Control control) {
  RDMAKIT_INVARIANT(control == Control::credit ? credits_in_flight_ > 0 : pong_in_flight_,
                    "control %u, %u credits", static_cast<uint32_t>(control), credits_in_flight_);
  if (control == Control::credit) --credits_in_flight_;
  if (control == Control::pong) pong_in_flight_ = false;
}
// --- end of the hot path -------------------------------------------------------------------------

}  // namespace rdmakit::ring
