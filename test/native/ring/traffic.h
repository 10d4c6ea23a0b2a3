// A thread that sends numbered messages on all connections of its side, takes what arrives, and checks
// that each message comes once, in order and intact. It stands where JavaScript stands.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "fixture.h"

namespace ring_test {

struct Load {
  uint64_t messages = 20'000;  // on each connection
  uint32_t largest = 4000;     // bytes; sizes are random, small ones most likely
  uint32_t hold = 0;           // messages kept unreleased, as a slow consumer does
  bool pause = false;          // sleep now and then
  bool compute = false;        // do not look now and then, for longer than a guardian waits
  bool lane = false;           // lay frames out in staging, as JavaScript does; else by send
  uint32_t ping_every = 0;     // turns of the loop between pings; 0: none
  uint64_t stop_after = 0;     // detach the first connection when it has received as many; 0: never
};

class Traffic {
 public:
  Traffic(Side& side, std::vector<Endpoint>& ends, const Load& load, uint32_t seed)
      : side_(side), load_(load), random_(seed), streams_(ends.size()) {
    for (size_t i = 0; i < ends.size(); ++i) {
      streams_[i].end = &ends[i];
      by_slot_[ring::slot_of(ends[i].number)] = &streams_[i];
    }
    payload_.resize(load.largest);
  }

  void run() {
    const auto deadline = std::chrono::steady_clock::now() + fixture::kHang;
    while (!finished()) {
      CHECK(std::chrono::steady_clock::now() < deadline, "%s", report().c_str());
      bool progress = false;
      for (Stream& stream : streams_) progress |= send_some(stream);
      progress |= drain(256);
      progress |= act();
      ping();
      if (progress) continue;
      for (Stream& stream : streams_) release(stream, 0);
      side_.wait_for_doorbell(tail_);
    }
  }

  // After both sides have run: ends every connection.
  void detach_all() {
    closing_ = true;
    for (Stream& stream : streams_)
      if (!stream.gone) side_.poller->detach(stream.end->number);
    const auto deadline = std::chrono::steady_clock::now() + fixture::kHang;
    while (std::any_of(streams_.begin(), streams_.end(), [](Stream& stream) { return !stream.gone; })) {
      CHECK(std::chrono::steady_clock::now() < deadline, "a connection does not detach");
      if (!drain(256)) side_.wait_for_doorbell(tail_);
    }
  }

  // What a connection's counters say must be what this side knows.
  void check_counters() {
    double counted[std::size(ring::kConnectionCounters)];
    for (Stream& stream : streams_) {
      if (stream.gone || stream.ending) continue;
      CHECK(side_.poller->counters(stream.end->number, counted));
      CHECK(counted[0] >= static_cast<double>(stream.received));  // frames_received, pads too
      CHECK(load_.ping_every == 0 || (stream.pings > 0 && counted[5] > 0), "%f pings came", counted[5]);
      // credits_received: a pong for each ping but the last
      CHECK(counted[3] >= static_cast<double>(stream.pings) - 1, "%f credits for %lu pings", counted[3],
            stream.pings);
    }
  }

  uint64_t grown() const { return grown_; }
  uint64_t received() const {
    uint64_t sum = 0;
    for (const Stream& stream : streams_) sum += stream.received;
    return sum;
  }

  // What else a test does on this thread: called over and over until it is `acted`. True when it did
  // something.
  virtual bool act() { return false; }
  virtual bool acted() const { return true; }
  virtual void read_done(uint32_t tag, uint32_t status) { CHECK(false, "a READ %u: %u", tag, status); }
  virtual ~Traffic() = default;

  // Some have the longer header.
  static ring::FrameType type_of(uint32_t sequence) {
    return sequence % 5 == 3 ? ring::FrameType::request : ring::FrameType::data;
  }

  // The payload of message `sequence`: its number, then bytes that follow from it.
  static void fill(uint8_t* bytes, uint32_t length, uint64_t sequence) {
    uint64_t state = sequence * 0x9e3779b97f4a7c15u + 1;
    uint32_t at = 0;
    if (length >= 8) {
      std::memcpy(bytes, &sequence, 8);
      at = 8;
    }
    for (; at + 8 <= length; at += 8) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(bytes + at, &state, 8);
    }
    for (; at < length; ++at) bytes[at] = static_cast<uint8_t>(sequence + at);
  }

 private:
  struct Held {
    uint32_t end;
    bool released;
  };
  struct Stream {
    Endpoint* end = nullptr;
    uint64_t sent = 0;
    uint64_t received = 0;
    uint32_t next = 0;   // of the lane
    uint32_t batch = 0;  // frames laid out and not posted
    uint64_t pings = 0;
    bool full = false;
    bool dirty = false;
    bool ending = false;  // detached by this side, or broken
    bool gone = false;
    std::deque<Held> held;
    uint32_t released = 0;
    uint32_t window = 0;  // that the peer is in
  };

  bool finished() const {
    for (const Stream& stream : streams_)
      if (!stream.gone && (stream.sent < load_.messages || stream.received < load_.messages || stream.dirty))
        return false;
    return acted();
  }

  std::string report() const {
    std::string text = "stuck:";
    for (const Stream& stream : streams_)
      text += " sent " + std::to_string(stream.sent) + " received " + std::to_string(stream.received) +
              (stream.full ? " full" : "") + (stream.dirty ? " dirty" : "") + (stream.gone ? " gone" : "");
    return text;
  }

  uint32_t length_of_next() {
    const uint32_t bits = static_cast<uint32_t>(random_() % 13);
    return static_cast<uint32_t>(random_() % (std::min(load_.largest, 1u << bits) + 1));
  }

  bool send_some(Stream& stream) {
    if (stream.ending || stream.full) return false;
    bool any = false;
    for (int i = 0; i < 40 && stream.sent < load_.messages; ++i) {
      const uint32_t length = length_of_next();
      fill(payload_.data(), length, stream.sent);
      const auto result = load_.lane ? lay_out(stream, length) : send(stream, length);
      if (result == ring::SendResult::full) {
        stream.full = true;
        break;
      }
      if (result == ring::SendResult::failed) break;  // the broken event follows
      CHECK(result == ring::SendResult::done, "%d", static_cast<int>(result));
      ++stream.sent;
      stream.dirty = true;
      any = true;
    }
    if (stream.dirty) stream.dirty = flush(stream) == ring::SendResult::full;
    if (stream.dirty) stream.full = true;
    return any;
  }

  ring::SendResult send(Stream& stream, uint32_t length) {
    const auto sequence = static_cast<uint32_t>(stream.sent);
    return side_.poller->send(stream.end->number, type_of(sequence), sequence, ~sequence, payload_.data(),
                              length);
  }

  ring::SendResult lay_out(Stream& stream, uint32_t length) {
    const auto lane = [&](uint32_t word) {
      return side_.poller->event_ring()
          .slot_word(ring::slot_of(stream.end->number), ring::EventRing::kStaging + word)
          .load(std::memory_order_relaxed);
    };
    const ring::FrameFormat& format = side_.format;
    const auto sequence = static_cast<uint32_t>(stream.sent);
    const uint32_t header = format.header(type_of(sequence));
    const uint32_t units = format.units(header + length);
    if (lane(1) - stream.next < units) {
      const auto result = side_.poller->reserve(stream.end->number, stream.next, header + length);
      stream.next = lane(0);
      if (result != ring::SendResult::done) return result;
      CHECK(lane(1) - stream.next >= units);
    }
    uint8_t* at = static_cast<uint8_t*>(stream.end->staging->addr) + side_.window(lane(3)).place(stream.next);
    format.write(at, {type_of(sequence), length, sequence, ~sequence});
    std::memcpy(at + header, payload_.data(), length);
    stream.next += units;
    if (++stream.batch % 16 != 0) return ring::SendResult::done;
    // A batch that finds no place is posted later; the frame is taken all the same.
    return flush(stream) == ring::SendResult::failed ? ring::SendResult::failed : ring::SendResult::done;
  }

  ring::SendResult flush(Stream& stream) {
    return load_.lane ? side_.poller->flush(stream.end->number, stream.next, false)
                      : side_.poller->flush(stream.end->number);
  }

  void ping() {
    if (load_.ping_every == 0 || ++turns_ % load_.ping_every != 0) return;
    for (Stream& stream : streams_)
      if (!stream.ending && side_.poller->ping(stream.end->number) == ring::SendResult::done) ++stream.pings;
  }

  bool drain(int most) {
    ring::EventRing& events = side_.poller->event_ring();
    const uint32_t head = side_.head();
    if (head == tail_) return false;
    for (; most > 0 && tail_ != head; --most) take(*events.at(tail_++));
    events.word(ring::EventRing::kTail).store(tail_, std::memory_order_seq_cst);
    if (events.word(ring::EventRing::kFull).load(std::memory_order_seq_cst) != 0) side_.poller->wake();
    if (load_.pause && random_() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
    if (load_.compute && random_() % 256 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(13));
    return true;
  }

  void take(const ring::Descriptor& descriptor) {
    Stream* stream = by_slot_[ring::slot_of(descriptor.connection)];
    CHECK(stream != nullptr && stream->end->number == descriptor.connection);
    switch (descriptor.type) {
      case static_cast<uint32_t>(ring::Event::writable):
        stream->full = false;
        if (!stream->ending) stream->dirty = flush(*stream) == ring::SendResult::full;
        if (stream->dirty) stream->full = true;
        return;
      case static_cast<uint32_t>(ring::Event::broken):
        CHECK(load_.stop_after > 0 || closing_, "broke: %u %u", descriptor.offset, descriptor.length);
        detach(*stream);
        return;
      case static_cast<uint32_t>(ring::Event::detached):
        side_.poller->release(descriptor.connection);
        stream->gone = true;
        stream->dirty = false;
        return;
      case static_cast<uint32_t>(ring::Event::read):
        read_done(descriptor.correlation, descriptor.offset);
        return;
      case static_cast<uint32_t>(ring::FrameType::pad):
        stream->held.push_back({descriptor.end, true});
        break;
      case static_cast<uint32_t>(ring::FrameType::grow):
        stream->held.push_back({descriptor.end, true});
        stream->window = descriptor.immediate;
        ++grown_;
        break;
      default:
        check_message(*stream, descriptor);
        stream->held.push_back({descriptor.end, false});
    }
    release(*stream, load_.hold);
    if (load_.stop_after > 0 && stream == &streams_[0] && stream->received >= load_.stop_after)
      detach(*stream);
  }

  void detach(Stream& stream) {
    if (stream.ending) return;
    stream.ending = true;
    side_.poller->detach(stream.end->number);
  }

  void check_message(Stream& stream, const ring::Descriptor& descriptor) {
    const uint32_t sequence = ~descriptor.immediate;
    CHECK(sequence == stream.received, "message %u came for %lu", sequence, stream.received);
    CHECK(descriptor.type == static_cast<uint32_t>(type_of(sequence)));
    if (type_of(sequence) == ring::FrameType::request) CHECK(descriptor.correlation == sequence);
    ++stream.received;
    const uint8_t* data = static_cast<const uint8_t*>(stream.end->ring->addr) + descriptor.offset;
    if (expected_.size() < descriptor.length) expected_.resize(descriptor.length);
    fill(expected_.data(), descriptor.length, sequence);
    CHECK(std::memcmp(data, expected_.data(), descriptor.length) == 0, "message %u of %u bytes is corrupt",
          sequence, descriptor.length);
  }

  // Lets go of all but `keep` messages, in an order that is not theirs.
  void release(Stream& stream, size_t keep) {
    while (stream.held.size() > keep) {
      stream.held[random_() % stream.held.size()].released = true;
      stream.held.front().released = stream.held.front().released || random_() % 2 == 0;
      while (!stream.held.empty() && stream.held.front().released) {
        stream.released = stream.held.front().end;
        stream.held.pop_front();
      }
    }
    if (stream.ending) return;
    ring::EventRing& events = side_.poller->event_ring();
    const uint32_t slot = ring::slot_of(stream.end->number);
    const uint32_t reported =
        events.slot_word(slot, ring::EventRing::kReported).load(std::memory_order_relaxed);
    if (stream.released - reported < side_.window(stream.window).capacity / 2) return;
    events.slot_word(slot, ring::EventRing::kReleased).store(stream.released, std::memory_order_seq_cst);
    side_.poller->return_credit(stream.end->number);
  }

  Side& side_;
  Load load_;
  std::mt19937 random_;
  std::vector<Stream> streams_;
  Stream* by_slot_[256] = {};
  std::vector<uint8_t> payload_;
  std::vector<uint8_t> expected_ = std::vector<uint8_t>(1);
  uint32_t tail_ = 0;
  uint64_t turns_ = 0;
  uint64_t grown_ = 0;    // GROWs of the peers
  bool closing_ = false;  // the other side may have gone first
};

}  // namespace ring_test
