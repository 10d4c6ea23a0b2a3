// Payloads of which a piece is held back: while all memory is pinned, while no operation is free, and when
// what went before it fails. One second, six with ThreadSanitizer.
#include "bare_lane.h"

namespace lane_payload_held_stress {

using namespace fixture;

constexpr uint64_t kSlab = BareLane::kSlab;
using Mode = Server::Mode;
using Answers = std::vector<BareLane::Answer>;

std::vector<uint8_t> noise(uint32_t length, uint64_t seed) {
  std::vector<uint8_t> bytes(length);
  fill_noise(bytes.data(), length, seed);
  return bytes;
}

// Those bytes of a payload a page at a time, as nbd.ko sends it.
void send_pages(BareLane& lane, const std::vector<uint8_t>& data, size_t from, size_t end) {
  for (; from < end; from += kPage) lane.send(data.data() + from, kPage);
}

// More WRITEs than the lane has memory for, to servers of which first none and then one is so slow that
// nothing completes.
void memory_is_pinned(uint64_t offset) {
  BareLane lane;
  constexpr uint32_t kLength = 4 << 20;
  constexpr uint32_t kWrites = 3;
  for (const uint32_t server : {0, 1}) lane.set_mode(server, Mode::hung);
  const auto start = [&](uint64_t cookie) { return offset + (cookie - 1) * kLength; };
  for (uint64_t cookie = 1; cookie <= kWrites; cookie++) {
    lane.begin(kCmdWrite, cookie, start(cookie), kLength);
    send_pages(lane, noise(kLength, cookie), 0, kLength);
  }
  const auto is_full = [&] {
    for (uint16_t chunk = 0; chunk < kInputChunks; chunk++) CHECK(lane.requests->pins().count(chunk) > 0);
    CHECK(lane.socket->input_full() && !lane.socket->wants_input() && lane.unsent() > 0);
    CHECK(lane.answers().empty());
  };
  is_full();
  const size_t unsent = lane.unsent();
  lane.set_mode(0, Mode::healthy);
  CHECK(lane.unsent() < unsent);
  is_full();
  lane.set_mode(1, Mode::healthy);
  Answers answers = lane.answers();
  std::sort(answers.begin(), answers.end(), [](auto& a, auto& b) { return a.cookie < b.cookie; });
  CHECK((answers == Answers{{1, kOk}, {2, kOk}, {3, kOk}}));
  for (uint64_t cookie = 1; cookie <= kWrites; cookie++)
    CHECK(lane.has_noise(start(cookie), kLength, cookie), "WRITE %llu",
          static_cast<unsigned long long>(cookie));
}

// Behind the first piece every other page is zeros, so that each of the rest takes an operation. When none is
// free, `more` pages come: a piece that would be held back anyway, or that has to wait, or all there is.
void no_operation(uint32_t more) {
  BareLane lane;
  constexpr uint32_t kLength = 3 << 20;
  for (const uint32_t server : {0, 1}) lane.set_mode(server, Mode::hung);
  std::vector<uint8_t> data = noise(kLength, 1);
  const auto is_zeros = [](uint32_t at) { return at >= PayloadPace::kPiece && at % (2 * kPage) == 0; };
  for (uint32_t at = 0; at < kLength; at += kPage)
    if (is_zeros(at)) std::memset(&data[at], 0, kPage);
  lane.begin(kCmdWrite, 1, 0, kLength);
  size_t sent = 0;
  for (size_t bytes = PayloadPace::kPiece; lane.requests->has_operation(); bytes = kPage) {
    CHECK(sent + bytes < kLength);
    lane.send(data.data() + sent, bytes);
    sent += bytes;
  }
  CHECK(lane.queue->available() <= kReservedOperations);
  const size_t end = std::min<size_t>(sent + size_t{more} * kPage, kLength);
  const uint32_t outstanding = lane.queue->outstanding();
  send_pages(lane, data, sent, end);
  CHECK(lane.queue->outstanding() == outstanding && lane.answers().empty());
  lane.set_mode(0, Mode::healthy);
  lane.set_mode(1, Mode::healthy);
  send_pages(lane, data, end, kLength);
  CHECK((lane.answers() == Answers{{1, kOk}}));
  for (uint32_t at = 0; at < kLength; at += kPage)
    CHECK(lane.state(at) == (is_zeros(at) ? PageState::unset : PageState::written));
}

// The first piece of a payload fails, at once or when it is under way, while `held` pages behind it are held
// back: the rest is dropped. The piece before those is at another server, and takes longer than all else.
void first_piece_fails(bool at_once, uint32_t held) {
  BareLane lane;
  constexpr uint32_t kLength = 4 << 20;
  constexpr uint64_t kStart = kSlab - PayloadPace::kPiece;
  constexpr uint64_t kNext = 9 * kSlab;  // another WRITE
  for (const uint32_t server : {0, 1}) lane.set_mode(server, Mode::hung);
  if (at_once) lane.volume.fail(0, 0, "as the test wants");
  const std::vector<uint8_t> data = noise(kLength, 1);
  lane.begin(kCmdWrite, 1, kStart, kLength);
  size_t sent = (at_once ? 1 : 2) * size_t{PayloadPace::kPiece};
  send_pages(lane, data, 0, sent);
  CHECK(lane.queue->outstanding() == (at_once ? 0 : 2));
  send_pages(lane, data, sent, sent + held * size_t{kPage});
  sent += held * size_t{kPage};
  if (!at_once) {
    CHECK(lane.queue->outstanding() == 2 && lane.statistics.errors.get() == 0);
    lane.set_mode(0, Mode::dead);
    CHECK(lane.queue->outstanding() == 1);
  }
  send_pages(lane, data, sent, kLength - kPage);
  // Its client is still sending.
  CHECK(lane.answers().empty());
  send_pages(lane, data, kLength - kPage, kLength);
  CHECK((lane.answers() == Answers{{1, kEio}}) && lane.statistics.errors.get() == 1);
  CHECK(lane.requests->quiet() == at_once);
  lane.begin(kCmdWrite, 2, kNext, kLength / 4);
  send_pages(lane, noise(kLength / 4, 2), 0, kLength / 4);
  lane.begin(kCmdFlush, 3, 0, 0);
  CHECK((lane.answers() == Answers{{3, kOk}}));
  lane.set_mode(1, Mode::healthy);
  CHECK((lane.answers() == Answers{{2, kOk}}) && lane.has_noise(kNext, kLength / 4, 2));
  CHECK(lane.statistics.errors.get() == 1);
  // What was under way is written, and nothing of the rest.
  for (uint32_t at = 0; at < kLength; at += kPage) {
    const bool written = !at_once && at >= PayloadPace::kPiece && at < 2 * PayloadPace::kPiece;
    CHECK(lane.state(kStart + at) == (written ? PageState::written : PageState::unset), "page %u",
          at / kPage);
  }
}

// The first piece fails when no memory is left to receive the rest: what is under way at the other server has
// it.
void fails_while_memory_is_pinned() {
  BareLane lane;
  constexpr uint32_t kLength = 12 << 20;
  for (const uint32_t server : {0, 1}) lane.set_mode(server, Mode::hung);
  lane.begin(kCmdWrite, 1, 0, kLength);
  send_pages(lane, noise(kLength, 1), 0, kLength);
  CHECK(lane.socket->input_full() && lane.unsent() > 0);
  lane.begin(kCmdFlush, 2, 0, 0);
  lane.set_mode(0, Mode::dead);
  CHECK((lane.answers() == Answers{{1, kEio}, {2, kOk}}));
  CHECK(lane.unsent() == 0 && !lane.requests->quiet() && lane.requests->pins().any());
  lane.set_mode(1, Mode::healthy);
  CHECK(lane.answers().empty() && lane.statistics.errors.get() == 1);
}

STRESS(lane_payload_held) {
  timed("memory is pinned", [] { memory_is_pinned(0); });
  timed("memory is pinned, parts of pages", [] { memory_is_pinned(1000); });
  for (const uint32_t more : {1u, 15u, 16u, 1'000u})
    timed("no operation is free", [=] { no_operation(more); });
  for (const uint32_t held : {0u, 3u, 15u}) {
    timed("the first piece fails at once", [=] { first_piece_fails(true, held); });
    timed("the first piece fails under way", [=] { first_piece_fails(false, held); });
  }
  timed("it fails while memory is pinned", fails_while_memory_is_pinned);
  return 0;
}

}  // namespace lane_payload_held_stress
