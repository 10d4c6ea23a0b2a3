// What is posted while the device holds it back: over the ring's end, and of bytes that are lent. A tenth of
// a second, one with a sanitizer.
#include <random>

#include "held_peer.h"

namespace ring_held_requests_stress {

using namespace ring_test;
using ring::FrameType;
using ring::SendResult;

template <typename Test>
void each_variant(Test test) {
  for (const ring::Version version : {ring::Version::two, ring::Version::three})
    for (const bool immediate : {true, false})
      for (const bool lends : {true, false}) test(Variant{version, immediate, lends});
}

// Room for a frame across the ring's end: the first 1500 bytes are free again.
void to_the_middle(Line& line) {
  CHECK(line.lay_out(FrameType::data, 1500) && line.flush() == SendResult::done);
  line.arrive();
  line.complete();
  CHECK(line.posted() == 0);
}

// A frame, a pad behind it, and the frame that did not fit before the ring's end: two WRITEs, one
// notification of all.
void two_writes(const Variant& variant) {
  for (const bool lent : {false, true}) {
    Line line(variant);
    to_the_middle(line);
    CHECK(line.lay_out(FrameType::request, 1300) && line.lay_out(FrameType::data, 1400, lent));
    CHECK(line.posted() == 0 && line.flush() == SendResult::done);
    CHECK(line.posted() == (variant.immediate ? 2 : 3), "%zu requests", line.posted());
    line.arrive();
    CHECK(line.peer.over_the_end == 1 && line.peer.pads == 1 && !line.peer.waits());
    // All of it is consumed, and the device may still read it.
    CHECK(!line.lay_out(FrameType::data, 2000));
    line.complete();
    CHECK(line.lay_out(FrameType::data, 2000) && line.flush() == SendResult::done);
    line.arrive();
    CHECK(!line.peer.waits());
  }
}

// All is complete, and the peer has yet to read it.
void not_consumed(const Variant& variant) {
  Line line(variant);
  for (int i = 0; i < 2; ++i) CHECK(line.lay_out(FrameType::data, 2000) && line.flush() == SendResult::done);
  CHECK(line.arrive_unread());
  line.complete();
  CHECK(line.posted() == 0 && !line.lay_out(FrameType::data, 1000));
  line.credit();
  CHECK(line.lay_out(FrameType::data, 1000) && line.flush() == SendResult::done);
  line.arrive();
  CHECK(!line.peer.waits());
}

// A batch that ends exactly where the ring does, whose last payload is lent.
void to_the_very_end(const Variant& variant) {
  Line line(variant);
  const uint32_t header = line.format.header(FrameType::data);
  CHECK(line.lay_out(FrameType::data, 2048 - header) && line.lay_out(FrameType::data, 2048 - header, true));
  CHECK((line.next & line.mask()) == 0 && line.flush() == SendResult::done);
  line.arrive();
  CHECK(line.peer.over_the_end == 0 && line.peer.pads == 0 && !line.peer.waits());
}

// No place in the send queue: what was lent is in its own place then, and is posted from there.
void lent_and_full(const Variant& variant) {
  Line line(variant);
  SendResult result;
  do {
    CHECK(line.lay_out(FrameType::data, 200, true));
    result = line.flush();
  } while (result == SendResult::done);
  CHECK(result == SendResult::full && line.posted() > 0);
  line.arrive();
  CHECK(line.peer.waits());
  line.complete();
  const int lent = line.device.lent_posts;
  CHECK(variant.lends == (lent > 0));
  CHECK(line.flush() == SendResult::done && line.device.lent_posts == lent);
  line.arrive();
  CHECK(!line.peer.waits());
}

// Only the last payload of a batch may be lent, and only bytes of the batch.
void no_place(const Variant& variant) {
  const auto refused = [&](int offset, uint32_t length, int posted = 0) {
    Line line(variant);
    for (int i = 1; i <= 2; ++i) {
      CHECK(line.lay_out(FrameType::data, 1000));
      if (i <= posted) CHECK(line.flush() == SendResult::done);
    }
    const size_t before = line.posted();
    const auto end = static_cast<int>(line.next << line.format.unit_log2());
    CHECK(line.lend(static_cast<uint32_t>(end + offset), length) == SendResult::failed);
    CHECK(line.posted() == before && line.device.sent().empty());
  };
  const int unit = 1 << ring::FrameFormat(variant.version).unit_log2();
  refused(-999, 1000);          // beyond the end
  refused(-1000 - unit, 1000);  // a unit or more before it
  refused(-unit - 8, 8);
  refused(-1500, 1500, 1);  // more than the batch
  refused(-1000, 1000, 2);  // there is no batch
}

// Frames of all lengths, many laps; what was posted arrives late and completes later still.
void many(const Variant& variant) {
  std::mt19937 random(1);
  Line line(variant);
  const auto now_and_then = [&](uint32_t often) { return random() % often == 0; };
  const int messages = fixture::effort(600);
  uint64_t lent = 0;
  for (int i = 0; i < messages || line.peer.over_the_end < 5 || lent < 50; ++i) {
    const uint32_t length = 1 + static_cast<uint32_t>(random()) % (now_and_then(3) ? 2032 : 200);
    const FrameType type = now_and_then(4) ? FrameType::request : FrameType::data;
    const bool lends = now_and_then(3);
    for (int tries = 0; !line.lay_out(type, length, lends); ++tries) {
      CHECK(tries < 8, "there is never room");
      line.arrive();
      if (tries > 0) line.complete();
    }
    if (lends || now_and_then(3)) {
      lent += lends;
      for (int tries = 0; line.flush() == SendResult::full; ++tries) {
        CHECK(tries < 8, "there is never a place");
        line.arrive();
        if (tries > 0) line.complete();
      }
    }
    if (now_and_then(8)) line.arrive();
    if (now_and_then(16)) line.complete();
  }
  CHECK(line.flush() == SendResult::done ||
        (line.arrive(), line.complete(), line.flush()) == SendResult::done);
  line.arrive();
  CHECK(!line.peer.waits() && line.peer.pads > 0);
  CHECK((line.device.lent_posts > 0) == variant.lends);
}

STRESS(ring_held_requests) {
  fixture::timed("two WRITEs", [] { each_variant(two_writes); });
  fixture::timed("not consumed", [] { each_variant(not_consumed); });
  fixture::timed("to the very end", [] { each_variant(to_the_very_end); });
  fixture::timed("lent, and the send queue is full", [] { each_variant(lent_and_full); });
  fixture::timed("lent, and no place", [] { each_variant(no_place); });
  fixture::timed("many", [] { each_variant(many); });
  return 0;
}

}  // namespace ring_held_requests_stress
