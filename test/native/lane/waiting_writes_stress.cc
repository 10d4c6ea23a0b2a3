// Parts of WRITEs that wait: what ends them, and that nothing waits for itself. A second.
#include "bare_lane.h"

namespace lane_waiting_writes_stress {

using namespace fixture;

constexpr uint64_t kSlab = BareLane::kSlab;
using Mode = Server::Mode;
using Answers = std::vector<BareLane::Answer>;

void write_noise(BareLane& lane, uint64_t cookie, uint64_t offset, uint32_t length) {
  std::vector<uint8_t> bytes(length);
  fill_noise(bytes.data(), length, cookie);
  lane.begin(kCmdWrite, cookie, offset, length);
  lane.send(bytes.data(), length);
}

// A WRITE fails while a part of it waits for a page. Its client writes the part's other page anew: the part
// must not come later and overwrite that.
void an_answered_error_ends_all_parts() {
  BareLane lane;
  constexpr uint64_t kFirst = kSlab - kPage, kClaimed = kSlab, kFree = kSlab + kPage;
  for (const uint32_t server : {0, 1}) lane.set_mode(server, Mode::hung);
  write_noise(lane, 1, kClaimed, kPage);
  write_noise(lane, 2, kFirst, 3 * kPage);
  CHECK(lane.state(kClaimed) == PageState::claimed && lane.state(kFree) == PageState::unset);
  lane.set_mode(0, Mode::dead);
  CHECK((lane.answers() == Answers{{2, kEio}}));
  write_noise(lane, 3, kFree, kPage);
  lane.set_mode(1, Mode::healthy);
  CHECK((lane.answers() == Answers{{1, kOk}, {3, kOk}}));
  CHECK(lane.has_noise(kClaimed, kPage, 1) && lane.has_noise(kFree, kPage, 3));
}

// A client that closes without a word may write the same pages over another connection: what waits for a
// server is not written when that comes back.
void a_client_that_leaves_ends_what_waits() {
  BareLane lane;
  lane.volume.set_waits();
  lane.set_mode(0, Mode::dead);
  write_noise(lane, 1, 0, kPage);
  write_noise(lane, 2, kPage, kPage);
  CHECK(lane.answers().empty() && !lane.requests->quiet());
  lane.leave();
  CHECK((lane.answers() == Answers{{1, kEio}, {2, kEio}}) && lane.requests->quiet());
  lane.come_back(0);
  CHECK(lane.state(0) == PageState::unset && lane.state(kPage) == PageState::unset);
}

// A payload whose parts are of two pages, with zeros between. It comes in pieces, each of which fills a chunk
// of the lane's memory; slabs end where pieces do. Twelve leave 18 operations, as one of them has few parts,
// and the next one needs 21: it takes those that are kept in reserve, too.
constexpr uint32_t kPiecePages = 64, kPieces = 13;
constexpr uint32_t kPieceBytes = kPiecePages * kPage;
constexpr uint32_t kLength = (kPieces + 1) * kPieceBytes;
bool is_zeros(uint32_t page) {
  const uint32_t each = page / kPiecePages == 5 ? 9 : 3;
  const uint32_t at = page % kPiecePages;
  return at % each == each - 1 || at == kPiecePages - 1;
}

// One WRITE that has all operations, at servers that hang: its bytes. The last piece is not sent.
std::vector<uint8_t> take_all_operations(BareLane& lane, uint32_t length = kLength) {
  std::vector<uint8_t> data(length);
  fill_noise(data.data(), length, 1);
  for (uint32_t page = 0; page < length / kPage; page++)
    if (is_zeros(page)) std::memset(&data[size_t{page} * kPage], 0, kPage);
  lane.volume.set_waits();
  for (const uint32_t server : {0, 1}) lane.set_mode(server, Mode::hung);
  lane.begin(kCmdWrite, 1, 0, length);
  for (uint32_t piece = 0; piece < kPieces; piece++)
    lane.send_at_once(&data[size_t{piece} * kPieceBytes], kPieceBytes);
  CHECK(lane.queue->available() == 0);
  return data;
}

void send_rest(BareLane& lane, const std::vector<uint8_t>& data) {
  constexpr size_t kSent = size_t{kPieces} * kPieceBytes;
  lane.send(&data[kSent], data.size() - kSent);
}

// All operations wait for a server. When it is back each goes by itself.
void all_operations_wait() {
  BareLane lane;
  const std::vector<uint8_t> data = take_all_operations(lane);
  for (const uint32_t server : {0, 1}) lane.set_mode(server, Mode::dead);
  CHECK(lane.queue->available() == 0 && lane.queue->outstanding() == 0);
  for (const uint32_t half : {0, 1}) lane.come_back(half);
  send_rest(lane, data);
  CHECK((lane.answers() == Answers{{1, kOk}}));
  for (uint32_t page = 0; page < kLength / kPage; page++)
    CHECK(lane.state(page * kPage) == (is_zeros(page) ? PageState::unset : PageState::written));
}

// A client closes while all operations wait, so that the rest of what it sent has not been looked at. With
// DISC at its end it waits for its answer.
void a_client_leaves_with_its_rest_unread(bool farewell) {
  BareLane lane;
  const std::vector<uint8_t> data = take_all_operations(lane, kLength - kPieceBytes / 2);
  for (const uint32_t server : {0, 1}) lane.set_mode(server, Mode::dead);
  send_rest(lane, data);
  if (farewell) lane.begin(kCmdDisconnect, 2, 0, 0);
  lane.leave();
  CHECK((lane.answers() == (farewell ? Answers{} : Answers{{1, kEio}})) &&
        lane.requests->quiet() == !farewell);
  for (const uint32_t half : {0, 1}) lane.come_back(half);
  CHECK((lane.answers() == (farewell ? Answers{{1, kOk}} : Answers{})));
}

// … and the rest will never be whole: none of it is written.
void a_client_leaves_within_a_payload() {
  BareLane lane;
  const std::vector<uint8_t> data = take_all_operations(lane);
  for (const uint32_t server : {0, 1}) lane.set_mode(server, Mode::dead);
  lane.send(&data[size_t{kPieces} * kPieceBytes], kPieceBytes / 2);
  for (const uint32_t half : {0, 1}) lane.come_back_later(half);
  lane.shut();
  CHECK(lane.socket->receive(false) && lane.requests->resume(BareLane::kNow));
  lane.socket->take(BareLane::kNow);
  lane.queue->flush(BareLane::kNow);
  CHECK(lane.queue->outstanding() == 0 && lane.socket->failure() != nullptr);
  lane.drop();
}

// All operations wait, and each needs one more, since its pages are not alike any more: the request fails.
void all_operations_need_another() {
  BareLane lane;
  const std::vector<uint8_t> data = take_all_operations(lane);
  for (const uint32_t server : {0, 1}) lane.set_mode(server, Mode::dead);
  CHECK(lane.queue->available() == 0 && lane.queue->outstanding() == 0);
  for (uint32_t page = 0; page < kLength / kPage; page++) {  // another lane has written the second of each
    if (is_zeros(page) || page % kPiecePages % 3 != 1) continue;
    CHECK(lane.volume.pages().claim(page, 1, PageState::unset) == 1);
    lane.volume.pages().settle(page, 1, PageState::written);
  }
  for (const uint32_t half : {0, 1}) lane.come_back(half);
  send_rest(lane, data);
  CHECK((lane.answers() == Answers{{1, kEio}}) && lane.requests->quiet());
}

// A payload that is here and waits for an operation: its client has not stalled.
void the_lane_has_no_operation() {
  constexpr uint64_t kStall = 30 * kSecond;
  BareLane lane(kStall);
  const std::vector<uint8_t> data = take_all_operations(lane, kLength - kPieceBytes / 2);
  send_rest(lane, data);
  CHECK(lane.unsent() == 0 && !lane.socket->input_full() && lane.answers().empty());
  lane.socket->check_time(BareLane::kNow);
  lane.socket->check_time(BareLane::kNow + 100 * kStall);
  CHECK(lane.socket->failure() == nullptr);
  for (const uint32_t server : {0, 1}) lane.set_mode(server, Mode::healthy);
  CHECK((lane.answers() == Answers{{1, kOk}}));
}

STRESS(lane_waiting_writes) {
  timed("an answered error", an_answered_error_ends_all_parts);
  timed("a client that leaves", a_client_that_leaves_ends_what_waits);
  timed("all operations wait", all_operations_wait);
  for (const bool farewell : {false, true})
    timed("unread", [=] { a_client_leaves_with_its_rest_unread(farewell); });
  timed("within a payload", a_client_leaves_within_a_payload);
  timed("all operations need another", all_operations_need_another);
  timed("the lane has no operation", the_lane_has_no_operation);
  return 0;
}

}  // namespace lane_waiting_writes_stress
