// Life of an NBD connection, and its stream of requests and payloads.
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "front/nbd-socket/nbd_socket.h"
#include "front/volume_request.h"

namespace rdmakit::nbd {

// After DISC or end of file the client has this long to take the answers that it still gets.
constexpr uint64_t kLinger = 10 * kSecond;
constexpr uint32_t kSlowest = 256 << 10;  // bytes of payload a second, see Terms::stall

NbdSocket::NbdSocket(RequestExecutor& requests, const Arena& arena, const Volume& volume)
    : requests_(requests),
      arena_(arena),
      volume_(volume),
      input_(arena, requests.pins()),
      heads_(kRequests),
      replies_(arena, requests.slots(), heads_) {}

void NbdSocket::open(UniqueFd socket, const Terms& terms, uint64_t longest) {
  socket_ = std::move(socket);
  terms_ = terms;
  const timeval timeout{0, static_cast<suseconds_t>(longest / 1'000)};
  may_block_ =
      !terms.remote && setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0;
  requests_.open(0, false);
  input_.reset();
  replies_.reset(terms.exported.offset);
  writing_ = kNone;
  payload_left_ = 0;
  end_of_file_ = input_ended_ = input_full_ = more_input_ = output_blocked_ = false;
  refusing_ = yielding_ = false;
  linger_deadline_ = input_deadline_ = output_deadline_ = 0;
  pace_.reset();
  failure_ = nullptr;
  farewell_ = "";
}

void NbdSocket::drop() {
  failure_ = nullptr;
  linger_deadline_ = input_deadline_ = output_deadline_ = 0;
  writing_ = kNone;
  payload_left_ = 0;
  replies_.reset(0);
}

UniqueFd NbdSocket::give_away() {
  yielding_ = false;
  linger_deadline_ = input_deadline_ = output_deadline_ = 0;
  return std::move(socket_);
}

// ---- hot path begins: no allocation, no log, no lock, no system call but recv and sendmsg ----

bool NbdSocket::receive(bool waits) {
  if (end_of_file_ || input_ended_) return false;
  const size_t limit = wanted();
  if (limit == 0) {
    more_input_ = false;
    return false;
  }
  const size_t before = input_.unread().size();
  const InputStream::Status status = input_.receive(socket_.get(), limit, waits);
  pace_.received(input_.unread().size() - before);
  input_full_ = status == InputStream::Status::full;
  more_input_ = status == InputStream::Status::received && input_.filled();
  switch (status) {
    case InputStream::Status::received:
      return true;
    case InputStream::Status::ended:
      end_of_file_ = true;
      if (!says_farewell()) requests_.client_left();  // before what waits is tried again
      return true;
    case InputStream::Status::failed:
      requests_.client_left();
      fail("connection reset");
      return true;
    default:
      return false;
  }
}

size_t NbdSocket::wanted() const {
  if (!yielding_) return SIZE_MAX;
  if (!mid_request()) return 0;
  const size_t request = payload_left_ > 0 ? payload_left_ : sizeof(RequestHeader);
  const size_t unread = input_.unread().size();
  return request > unread ? request - unread : 0;
}

bool NbdSocket::take(uint64_t now) {
  now_ = now;
  bool moved = false;
  if (end_of_file_ && !input_ended_) check_end_of_file();  // nothing more of a WRITE that will never be whole
  while (!input_ended_ && failure_ == nullptr && (payload_left_ > 0 ? take_payload() : begin_request()))
    moved = true;
  if (end_of_file_ && !input_ended_) check_end_of_file();
  pace_.judge(now);
  return moved;
}

uint32_t NbdSocket::rest_of_payload() const {
  const size_t unread = input_.unread().size();
  return payload_left_ > unread ? payload_left_ - static_cast<uint32_t>(unread) : 0;
}

// At end of file: the last that came is DISC.
bool NbdSocket::says_farewell() const {
  const auto unread = input_.unread();
  NbdRequest last;
  return unread.size() >= sizeof(RequestHeader) &&
         decode_request(unread.last(sizeof(RequestHeader)).data(), last) && last.command == kCmdDisconnect;
}

// At end of file: the client's DISC, or what it sent before it closed without.
bool NbdSocket::has_whole_request() const {
  const size_t unread = input_.unread().size();
  return payload_left_ > 0 ? payload_left_ <= unread : unread >= sizeof(RequestHeader);
}

void NbdSocket::check_end_of_file() {
  if (has_whole_request()) return;
  // A WRITE whose payload never came is not answered; what of it was written was never promised.
  if (payload_left_ > 0) return fail("closed by the client in the middle of a WRITE");
  end_input("closed by the client");
}

void NbdSocket::end_input(const char* reason) {
  input_ended_ = true;
  farewell_ = reason;
  linger_deadline_ = now_ + kLinger;
}

void NbdSocket::check_time(uint64_t now) {
  now_ = now;
  if (terms_.stall != 0) time_input();
}

// Runs while a request is here in part and nothing but its rest is missing.
void NbdSocket::time_input() {
  const size_t unread = input_.unread().size();
  // A payload that is here may still wait for memory or an operation, which is not its sender's fault.
  const bool partial = payload_left_ > 0 ? rest_of_payload() > 0 && !input_full_
                                         : unread > 0 && unread < sizeof(RequestHeader);
  if (!partial || end_of_file_ || input_ended_) {
    input_deadline_ = 0;
  } else if (input_deadline_ == 0) {
    input_deadline_ = now_ + terms_.stall + payload_left_ / kSlowest * kSecond;
  } else if (now_ >= input_deadline_) {
    fail("the client did not finish a request in time");
  }
}

bool NbdSocket::begin_request() {
  const auto unread = input_.unread();
  if (unread.size() < sizeof(RequestHeader) || !requests_.has_room()) return false;
  NbdRequest request;
  if (!decode_request(unread.data(), request)) {
    fail("bad request magic");
    return false;
  }
  input_.consume(sizeof(RequestHeader));
  input_deadline_ = 0;
  if (request.command == kCmdDisconnect) {
    end_input("disconnected by the client");
    return true;
  }
  const auto error = static_cast<int>(refusing_ ? kEshutdown : validate_request(request, terms_));
  const volume::Request asked = to_volume(request, terms_, error);
  const uint16_t index = requests_.begin(asked, error);
  heads_[index].begin(request);
  if (request.command == kCmdBlockStatus && error == 0) report_status(index);
  if (request.command != kCmdWrite) return true;
  if (request.length > kMaxDrainedPayload) {
    requests_.withdraw(index);
    fail("WRITE far beyond the largest payload");
    return false;
  }
  writing_ = index;
  payload_left_ = request.length;
  payload_offset_ = asked.offset;
  if (payload_left_ == 0) finish_payload();
  return true;
}

bool NbdSocket::take_payload() {
  const auto unread = input_.unread();
  auto take = static_cast<uint32_t>(std::min<size_t>(unread.size(), payload_left_));
  if (requests_.slot(writing_).error != 0) {
    if (take == 0) return false;
    input_.consume(take);
    payload_left_ -= take;
  } else {
    // Whole pages of the volume as long as more is to come, so that a page is never split in two.
    if (take < payload_left_) {
      if (take < PayloadPace::kPiece && !input_.filled()) return false;
      const uint64_t end = (payload_offset_ + take) / kPage * kPage;
      if (end <= payload_offset_) return false;
      take = static_cast<uint32_t>(end - payload_offset_);
    }
    if (!requests_.has_operation()) return false;
    const uint16_t chunk = input_.pin();
    const uint64_t at = payload_offset_;
    input_.consume(take);
    payload_offset_ += take;
    payload_left_ -= take;
    requests_.write(writing_, at, unread.data(), take, chunk);
  }
  if (payload_left_ == 0) finish_payload();
  return true;
}

void NbdSocket::finish_payload() { requests_.end_payload(std::exchange(writing_, kNone)); }

// ---- hot path ends ----

}  // namespace rdmakit::nbd
