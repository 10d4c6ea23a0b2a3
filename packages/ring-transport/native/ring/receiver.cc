#include "ring/receiver.h"

#include <arpa/inet.h>

namespace rdmakit::ring {

Receiver::Receiver(QpRef qp, MrRef ring, uint32_t slot, uint32_t generation, uint32_t log2_capacity,
                   uint32_t depth)
    : qp_(std::move(qp)),
      mr_(std::move(ring)),
      ring_(static_cast<const uint8_t*>(mr_->addr)),
      slot_(slot),
      generation_(generation),
      capacity_(1u << (log2_capacity - kUnitLog2)),
      mask_(capacity_ - 1),
      depth_(depth),
      receives_(depth + kReservedForCredit),
      elements_(receives_.size()) {
  const uint64_t words = reinterpret_cast<uint64_t>(ring_) + (uint64_t{1} << log2_capacity);
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
  ibv_recv_wr* bad = nullptr;
  const int error = ibv_post_recv(qp_.get(), taken_, &bad);
  outstanding_ += taken_count_;
  for (; bad != nullptr && error != 0; bad = bad->next) --outstanding_;
  taken_ = nullptr;
  taken_count_ = 0;
  return error;
}

Violation Receiver::publish(uint32_t units) {
  // The peer knows of no more room than it was credited.
  if (units == 0 || units > capacity_ - (published_ - reported_)) return Violation::published;
  published_ += units;
  ++notifications_;
  return Violation::none;
}

Violation Receiver::next(Descriptor& descriptor) {
  // One copy, so that what is checked is what is used: the peer can still write here.
  FrameHeader header;
  std::memcpy(&header, at(parsed_), sizeof header);
  const uint32_t to_end = capacity_ - static_cast<uint32_t>(parsed_ & mask_);
  const uint64_t there = published_ - parsed_;
  if (header.length > max_payload(capacity_)) return Violation::frame_length;
  const uint32_t units = units_of(header.length);
  if (units > there || units > to_end) return Violation::frame_length;
  if (header.type < static_cast<uint16_t>(FrameType::data) ||
      header.type > static_cast<uint16_t>(FrameType::close) || header.flags != 0)
    return Violation::frame_type;
  if (header.type == static_cast<uint16_t>(FrameType::pad) && units != to_end) return Violation::pad;
  descriptor.offset = static_cast<uint32_t>((parsed_ & mask_) << kUnitLog2) + sizeof header;
  descriptor.length = header.length;
  descriptor.type = header.type;
  descriptor.correlation = header.correlation;
  parsed_ += units;
  descriptor.end = static_cast<uint32_t>(parsed_);
  return Violation::none;
}

int Receiver::return_credit(uint32_t released, uint32_t peer_key, uint64_t peer_address,
                            bool with_immediate) {
  released_ += static_cast<uint32_t>(released - static_cast<uint32_t>(released_));
  if (released_ - reported_ < capacity_ / 2 && notifications_ - reported_notifications_ < depth_ / 2)
    return 0;
  // Its turn comes when one of those in flight completes.
  if (credits_in_flight_ == kReservedForCredit) return 0;
  const uint32_t word = encode_credit(released_, notifications_);
  // Behind the receives' words, one for each credit that may be in flight.
  const ibv_sge& receives_end = elements_.back();
  ibv_sge element = {receives_end.addr + 8 + credits_ % kReservedForCredit * 8, sizeof word, mr_->lkey};
  ibv_send_wr request = {};
  request.wr_id = WorkId{Work::credit, slot_, generation_, 0, 0}.encode();
  request.send_flags = IBV_SEND_SIGNALED;
  if (with_immediate) {
    // Nothing is written, so the address is not looked at; it is a valid one all the same.
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = htonl(word);
    request.wr.rdma.remote_addr = peer_address;
    request.wr.rdma.rkey = peer_key;
  } else {
    std::memcpy(reinterpret_cast<void*>(element.addr), &word, sizeof word);
    if (qp_.handle()->max_inline_data >= sizeof word) request.send_flags |= IBV_SEND_INLINE;
    request.opcode = IBV_WR_SEND;
    request.sg_list = &element;
    request.num_sge = 1;
  }
  ibv_send_wr* bad = nullptr;
  if (int error = ibv_post_send(qp_.get(), &request, &bad); error != 0) return error;
  ++credits_in_flight_;
  ++credits_;
  reported_ = released_;
  reported_notifications_ = notifications_;
  return 0;
}
// --- end of the hot path -------------------------------------------------------------------------

}  // namespace rdmakit::ring
