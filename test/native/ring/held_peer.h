// A connection on a held device: this end lays frames out as JavaScript does, and its peer, which is memory,
// gets what was posted when the test says so, and looks at every frame.
#pragma once

#include <arpa/inet.h>

#include <cstring>
#include <deque>

#include "held_poller.h"

namespace ring_test {

struct Variant {
  ring::Version version;
  bool immediate;  // notifications come with a WRITE; else by SEND
  bool lends;      // the device takes lent bytes from where they are
};

// A message; the seed makes its payload.
struct Message {
  ring::FrameType type;
  uint32_t length;
  uint32_t seed;
};

class Peer {
 public:
  Peer(const Variant& variant) : format_(variant.version), immediate_(variant.immediate) {}

  void expect(const Message& message) { expected_.push_back(message); }
  void take(const ibv_send_wr& request) {
    CHECK(request.num_sge == 1);
    const ibv_sge& from = *request.sg_list;
    const auto* const bytes = reinterpret_cast<const uint8_t*>(from.addr);
    if (request.opcode == IBV_WR_SEND) {
      uint32_t word;
      CHECK(!immediate_ && from.length == sizeof word);
      std::memcpy(&word, bytes, sizeof word);
      return published(word);
    }
    const bool last = request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    CHECK(last ? immediate_ : request.opcode == IBV_WR_RDMA_WRITE);
    const uint64_t at = request.wr.rdma.remote_addr - kPeerAddress;
    CHECK(at < ring_.size() && from.length <= ring_.size() - at, "%u bytes at %llu", from.length,
          static_cast<unsigned long long>(at));
    std::memcpy(ring_.data() + at, bytes, from.length);
    ++writes_;
    if (last) published(ntohl(request.imm_data));
  }
  // Of all that was published, which it has consumed.
  uint32_t credit() const { return ring::encode_credit(format_.grains(end_), notifications_); }
  bool waits() const { return !expected_.empty(); }

  uint64_t over_the_end = 0;  // batches of two WRITEs
  uint64_t pads = 0;

 private:
  void published(uint32_t units) {
    constexpr uint32_t kSize = 1u << kLog2Capacity;
    const uint32_t mask = (kSize >> format_.unit_log2()) - 1;
    ++notifications_;
    over_the_end += writes_ == 2;
    CHECK(writes_ == 1 || writes_ == 2);
    writes_ = 0;
    for (const uint64_t end = end_ + units; end_ != end;) {
      uint8_t* const at = ring_.data() + (size_t{end_ & mask} << format_.unit_log2());
      const auto to_end = static_cast<uint32_t>(ring_.data() + ring_.size() - at);
      ring::Frame frame;
      CHECK(format_.read(at, frame) == ring::Violation::none);
      const uint32_t header = format_.header(frame.type);
      const uint32_t taken = format_.units_of(frame.type, frame.length);
      CHECK(taken <= end - end_ && header + frame.length <= to_end);
      if (frame.type == ring::FrameType::pad) {
        CHECK(header + frame.length == to_end);
        ++pads;
      } else {
        CHECK(!expected_.empty());
        const Message& message = expected_.front();
        CHECK(frame.type == message.type && frame.length == message.length &&
              frame.immediate == message.seed);
        CHECK(fixture::is_noise(at + header, frame.length, message.seed), "message %u of %u bytes",
              message.seed, frame.length);
        expected_.pop_front();
      }
      // What comes next to this place must all come.
      std::memset(at, 0xdb, size_t{taken} << format_.unit_log2());
      end_ += taken;
    }
  }

  const ring::FrameFormat format_;
  const bool immediate_;
  std::vector<uint8_t> ring_ = std::vector<uint8_t>(size_t{1} << kLog2Capacity, 0xdb);
  std::deque<Message> expected_;
  uint64_t end_ = 0;
  uint64_t notifications_ = 0;
  uint64_t writes_ = 0;  // since the last notification
};

class Line {
 public:
  explicit Line(const Variant& variant)
      : device(variant.lends),
        poller(device, ring::Mode::caller),
        peer(variant),
        format(variant.version),
        number_(poller.connect(variant.version, variant.immediate)) {
    poller.turns();
    device.sent();
  }

  // False: there is no room. `lends`: all but the payload, which the next flush() lends.
  bool lay_out(ring::FrameType type, uint32_t length, bool lends = false) {
    CHECK(lent_.empty());
    const uint32_t header = format.header(type);
    const ring::SendResult result = poller->reserve(number_, next, header + length);
    next = poller->event_ring().slot_word(ring::slot_of(number_), ring::EventRing::kStaging).load();
    keep();
    if (result == ring::SendResult::full) return false;
    CHECK(result == ring::SendResult::done);
    uint8_t* const at = device.memory() + (size_t{next & mask()} << format.unit_log2());
    const Message message{type, length, ++messages_};
    format.write(at, {type, length, 0, message.seed});
    if (lends) {
      lent_.resize(length);
      place_ = static_cast<uint32_t>(at + header - device.memory());
      std::memset(at + header, 0x11, length);
    }
    fixture::fill_noise(lends ? lent_.data() : at + header, length, message.seed);
    peer.expect(message);
    next += format.units(header + length);
    return true;
  }
  // What was lent is something else as soon as the call is over.
  ring::SendResult flush() {
    const ring::SendResult result = lent_.empty()
                                        ? poller->flush(number_, next, false)
                                        : poller->flush_lent(number_, next, false, place_, lent_.data(),
                                                             static_cast<uint32_t>(lent_.size()));
    std::fill(lent_.begin(), lent_.end(), uint8_t{0xee});
    lent_.clear();
    keep();
    return result;
  }
  // Lends `length` bytes that belong `offset` bytes behind the start of staging.
  ring::SendResult lend(uint32_t offset, uint32_t length) {
    std::vector<uint8_t> bytes(length);
    return poller->flush_lent(number_, next, false, offset, bytes.data(), length);
  }
  // The peer gets what was posted, and gives credit for it. It is not complete yet.
  void arrive() {
    if (arrive_unread()) credit();
  }
  bool arrive_unread() {
    if (arrived_ == posted_.size()) return false;
    for (; arrived_ < posted_.size(); ++arrived_) peer.take(posted_[arrived_].request);
    return true;
  }
  void credit() {
    device.notify(peer.credit());
    poller.turns();
  }
  // What has arrived completes, up to the last that is signaled. Until then the device may have read it
  // again.
  void complete() {
    size_t count = arrived_;
    while (count > 0 && (posted_[count - 1].request.send_flags & IBV_SEND_SIGNALED) == 0) --count;
    for (size_t i = 0; i < count; ++i) {
      const Posted& each = posted_.front();
      CHECK(std::memcmp(reinterpret_cast<const void*>(each.request.sg_list->addr), each.bytes.data(),
                        each.bytes.size()) == 0,
            "written to before it was complete");
      if ((each.request.send_flags & IBV_SEND_SIGNALED) != 0) device.complete(each.request.wr_id);
      posted_.pop_front();
    }
    arrived_ -= count;
    poller.turns();
  }
  size_t posted() const { return posted_.size(); }
  uint32_t mask() const { return (1u << (kLog2Capacity - format.unit_log2())) - 1; }
  uint32_t number() const { return number_; }

  Device device;
  Poller poller;
  Peer peer;
  const ring::FrameFormat format;
  uint32_t next = 0;

 private:
  struct Posted {
    ibv_send_wr request;
    std::vector<uint8_t> bytes;
  };
  void keep() {
    for (const ibv_send_wr& request : device.sent()) {
      const auto* const from = reinterpret_cast<const uint8_t*>(request.sg_list->addr);
      posted_.push_back({request, {from, from + request.sg_list->length}});
    }
    CHECK(posted_.size() <= kSendDepth, "%zu requests of %u", posted_.size(), kSendDepth);
  }

  const uint32_t number_;
  uint32_t messages_ = 0;
  std::vector<uint8_t> lent_;
  uint32_t place_ = 0;  // of it
  std::deque<Posted> posted_;
  size_t arrived_ = 0;
};

}  // namespace ring_test
