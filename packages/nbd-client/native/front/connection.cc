#include "front/connection.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>

#include "base/clock.h"
#include "rdmakit/invariant.h"

namespace rdmakit::nbd {

namespace {
// After DISC or end of file the client has this long to take the answers that it still gets.
constexpr uint64_t kLinger = 10 * kSecond;
constexpr uint32_t kSlowest = 256 << 10;  // bytes of payload a second, see Terms::stall
}  // namespace

Connection::Connection(Volume& volume, const Arena& arena, RdmaQueue& rdma, LaneStatistics& statistics,
                       OperationListener& listener, uint64_t read_ahead)
    : volume_(volume),
      arena_(arena),
      rdma_(rdma),
      statistics_(statistics),
      input_(arena),
      slots_(kRequests),
      replies_(arena, slots_),
      repair_(volume, rdma, statistics, listener),
      ahead_(volume, arena, rdma, statistics, free_chunks_, read_ahead) {
  waiting_.reserve(kOperations);
  moving_.reserve(kOperations);
  wrong_.reserve(kOperations);
}

void Connection::open(int socket, const Terms& terms) {
  socket_.reset(socket);
  of_device_ = false;
  const timeval longest{0, kDoze / 1'000};
  may_doze_ = !terms.remote && setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest) == 0;
  free_chunks_.reset();
  ahead_.share_chunks(true);
  begin_anew(terms);
}

// Nothing is under way, also nothing that is read ahead.
void Connection::begin_anew(const Terms& terms) {
  open_ = true;
  terms_ = terms;
  input_.reset();
  replies_.reset(terms.exported.offset);
  writing_ = kNone;
  payload_left_ = 0;
  end_of_file_ = input_ended_ = input_full_ = more_input_ = output_blocked_ = read_waits_ = read_paced_ =
      false;
  refusing_ = yielding_ = false;
  linger_deadline_ = input_deadline_ = output_deadline_ = 0;
  reason_ = "";
  drop_reason_ = nullptr;
  statistics_.connections.add();
}

void Connection::drop(const char* reason) {
  if (!is_open()) return;
  if (reason_[0] == '\0') reason_ = reason;
  open_ = false;
  drop_reason_ = nullptr;
  linger_deadline_ = input_deadline_ = output_deadline_ = 0;
  writing_ = kNone;
  payload_left_ = 0;
  replies_.reset(0);
  reads_.clear();
  arrived_.clear();
  answered_.clear();
  read_waits_ = read_paced_ = false;
  next_turn_ = 0;
  for (RequestSlot& slot : slots_) {
    if (!slot.used) continue;
    slot.sent = slot.replied = slot.issued = slot.received = true;
    slot.queued = false;
  }
  for (Operation* operation : waiting_) finish_unposted(*operation, false);
  waiting_.clear();
  ahead_.stop([this](Operation& read) { finish_read(read, false); });
  for (Operation* operation : moving_) finish_read(*operation, false);
  moving_.clear();
  for (Operation* operation : wrong_) finish_read(*operation, false);
  wrong_.clear();
  repair_.cancel();
  repair_reads();
  for (uint16_t i = 0; i < kRequests; i++) {
    if (slots_[i].used) release_if_done(i);
  }
}

void Connection::check_rest() const {
  RDMAKIT_INVARIANT(idle() && reads_.empty() && replies_.empty() && arrived_.empty() && answered_.empty(),
                    "%zu slots are free; %zu wait to be read, %zu have arrived, %zu are answered",
                    free_slots_.size(), reads_.size(), arrived_.size(), answered_.size());
  RDMAKIT_INVARIANT(waiting_.empty() && moving_.empty() && wrong_.empty() && !repair_.busy(),
                    "%zu operations wait, %zu move, %zu are wrong", waiting_.size(), moving_.size(),
                    wrong_.size());
  const size_t chunks = of_device_ ? Arena::kDeviceOutputChunks : kOutputChunks;
  RDMAKIT_INVARIANT(rdma_.available() == kOperations && free_chunks_.size() == chunks,
                    "%zu operations and %zu of %zu chunks are free", rdma_.available(), free_chunks_.size(),
                    chunks);
  const bool buffered =
      std::any_of(buffer_pins_.begin(), buffer_pins_.end(), [](uint16_t pins) { return pins > 0; });
  RDMAKIT_INVARIANT(!(of_device_ ? buffered : input_.pinned()), "of device: %d", of_device_);
}

// ---- hot path begins: no allocation, no log, no lock, no system call but recv and sendmsg ----

bool Connection::step(uint64_t now, bool look) {
  now_ = now;
  paced_ = 0;
  next_turn_ = 0;
  bool moved = look && receive();
  if (!waiting_.empty()) moved |= retry_waiting();
  if (!moving_.empty()) moved |= move_reads();
  if (!wrong_.empty() || repair_.busy()) moved |= repair_reads();
  moved |= parse();
  if (end_of_file_ && !input_ended_) check_end_of_file();
  moved |= start_reads();
  // After the answers that are there: they are what the client waits for.
  if (replies_.empty() && answered_.empty() && open_ && !yielding_) ahead_.advance(now_);
  if (terms_.stall != 0) time_input();
  if (drop_reason_ != nullptr) drop(drop_reason_);
  return moved;
}

bool Connection::receive(bool waits) {
  if (!is_open() || end_of_file_ || input_ended_) return false;
  if (device_ != nullptr) return receive_from_device(waits);
  const size_t limit = wanted();
  if (limit == 0) {
    more_input_ = false;
    return false;
  }
  const InputStream::Status status = input_.receive(socket_.get(), limit, waits);
  input_full_ = status == InputStream::Status::full;
  more_input_ = status == InputStream::Status::received && input_.filled();
  switch (status) {
    case InputStream::Status::received:
      return true;
    case InputStream::Status::ended:
      end_of_file_ = true;
      return true;
    case InputStream::Status::failed:
      drop_later("connection reset");
      return true;
    default:
      return false;
  }
}

size_t Connection::wanted() const {
  if (!yielding_) return SIZE_MAX;
  if (!mid_request()) return 0;
  const size_t request = payload_left_ > 0 ? payload_left_ : sizeof(RequestHeader);
  const size_t unread = input_.unread().size();
  return request > unread ? request - unread : 0;
}

void Connection::check_end_of_file() {
  const size_t unread = input_.unread().size();
  // A WRITE whose payload never came is not answered; what of it was written was never promised.
  if (payload_left_ > unread) return drop_later("closed by the client in the middle of a WRITE");
  if (payload_left_ == 0 && unread < sizeof(RequestHeader)) end_input("closed by the client");
}

void Connection::end_input(const char* reason) {
  input_ended_ = true;
  reason_ = reason;
  linger_deadline_ = now_ + kLinger;
}

// Runs while a request is here in part and nothing but its rest is missing.
void Connection::time_input() {
  const size_t unread = input_.unread().size();
  const bool partial = payload_left_ > 0 ? !input_full_ : unread > 0 && unread < sizeof(RequestHeader);
  if (!partial || end_of_file_ || input_ended_) {
    input_deadline_ = 0;
  } else if (input_deadline_ == 0) {
    input_deadline_ = now_ + terms_.stall + payload_left_ / kSlowest * kSecond;
  } else if (now_ >= input_deadline_) {
    drop_later("the client did not finish a request in time");
  }
}

bool Connection::parse() {
  bool moved = false;
  while (is_open() && !input_ended_ && drop_reason_ == nullptr) {
    if (!(device_ != nullptr ? begin_from_device() : payload_left_ > 0 ? take_payload() : begin_request()))
      break;
    moved = true;
  }
  return moved;
}

bool Connection::begin_request() {
  const auto unread = input_.unread();
  if (unread.size() < sizeof(RequestHeader) || free_slots_.size() == 0) return false;
  // A request starts at most three operations here, and never the ones held in reserve.
  if (rdma_.available() < kReservedOperations + 3) return false;
  Request request;
  if (!decode_request(unread.data(), request)) {
    drop_later("bad request magic");
    return false;
  }
  input_.consume(sizeof(RequestHeader));
  input_deadline_ = 0;
  if (request.command == kCmdDisconnect) {
    end_input("disconnected by the client");
    return true;
  }
  const uint16_t index = begin(request);
  RequestSlot& slot = slots_[index];
  if (request.command == kCmdWrite) {
    if (request.length > kMaxDrainedPayload) {
      slot.sent = true;
      release_if_done(index);
      drop_later("WRITE far beyond the largest payload");
      return false;
    }
    writing_ = index;
    payload_left_ = request.length;
    payload_offset_ = slot.request.offset;
    if (payload_left_ == 0) finish_payload();
    return true;
  }
  begin_without_payload(index);
  return true;
}

uint16_t Connection::begin(const Request& request) {
  const uint16_t index = free_slots_.pop();
  RequestSlot& slot = slots_[index];
  RDMAKIT_INVARIANT(!slot.used, "slot %u", index);
  slot.begin(request, now_);
  statistics_.in_flight.set(kRequests - free_slots_.size());
  slot.error = refusing_ ? kEshutdown : validate_request(request, terms_);
  if (slot.error == kOk) slot.request.offset += terms_.exported.offset;
  return index;
}

void Connection::begin_without_payload(uint16_t index) {
  RequestSlot& slot = slots_[index];
  const Request& request = slot.request;
  slot.received = true;
  if (slot.error == kOk && request.command == kCmdRead) {
    slot.fragments = terms_.structured && (request.flags & kCmdFlagDf) == 0;
    slot.queued = true;
    reads_.push(index);
    ahead_.saw(slot.request.offset, slot.request.length);
    return;
  }
  if (slot.error == kOk) {
    // FLUSH, and FUA on anything, have nothing to do: they promise that writes answered before are on
    // the server, and no write is answered before its completion says so (RdmaQueue confirms it by a
    // fence where the completion alone does not). The server's memory is the storage; nothing lies
    // between.
    // Neither has CACHE: what could be brought nearer would be a copy that other lanes must hear of.
    if (request.command == kCmdTrim) clear_pages(index);
    if (request.command == kCmdWriteZeroes) write_zeroes(index);
    if (request.command == kCmdBlockStatus) report_status(index);
  }
  slot.issued = true;  // only now: an edge of zeros may be over before the other one has started
  reply_if_ready(index);
}

bool Connection::take_payload() {
  const auto unread = input_.unread();
  auto take = static_cast<uint32_t>(std::min<size_t>(unread.size(), payload_left_));
  RequestSlot& slot = slots_[writing_];
  if (slot.error != kOk) {
    if (take == 0) return false;
    input_.consume(take);
    payload_left_ -= take;
  } else {
    // Whole pages of the volume as long as more is to come, so that a page is never split in two.
    if (take < payload_left_) {
      const uint64_t end = (payload_offset_ + take) / kPage * kPage;
      if (end <= payload_offset_) return false;
      take = static_cast<uint32_t>(end - payload_offset_);
    }
    if (rdma_.available() <= kReservedOperations) return false;
    Operation& operation = rdma_.take(Operation::Kind::write);
    operation.request = writing_;
    operation.chunk = input_.pin();
    operation.offset = payload_offset_;
    operation.length = take;
    operation.memory = unread.data();
    slot.outstanding++;
    input_.consume(take);
    payload_offset_ += take;
    payload_left_ -= take;
    start(operation);
  }
  if (payload_left_ == 0) finish_payload();
  return true;
}

void Connection::finish_payload() {
  const uint16_t index = writing_;
  writing_ = kNone;
  slots_[index].received = slots_[index].issued = true;
  reply_if_ready(index);
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
