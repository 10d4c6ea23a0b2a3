#include "engine/connection.h"

#include <algorithm>

#include "engine/clock.h"

namespace rdmakit::nbd {

namespace {
// After DISC or end of file the client has this long to take the answers that it still gets.
constexpr uint64_t kLinger = 10'000'000'000;
}  // namespace

Connection::Connection(Volume& volume, const Arena& arena, RdmaQueue& rdma, LaneStatistics& statistics)
    : volume_(volume),
      arena_(arena),
      rdma_(rdma),
      statistics_(statistics),
      input_(arena),
      slots_(kRequests),
      replies_(arena, slots_) {
  waiting_.reserve(kOperations);
}

void Connection::open(int socket) {
  socket_.reset(socket);
  open_ = true;
  input_.reset();
  replies_.reset();
  writing_ = kNone;
  payload_left_ = 0;
  end_of_file_ = input_ended_ = input_full_ = more_input_ = output_blocked_ = read_waits_ = false;
  refusing_ = false;
  linger_deadline_ = 0;
  reason_ = "";
  drop_reason_ = nullptr;
  statistics_.connections.add();
}

void Connection::drop(const char* reason) {
  if (!is_open()) return;
  if (reason_[0] == '\0') reason_ = reason;
  open_ = false;
  drop_reason_ = nullptr;
  linger_deadline_ = 0;
  writing_ = kNone;
  payload_left_ = 0;
  replies_.reset();
  reads_.clear();
  read_waits_ = false;
  for (RequestSlot& slot : slots_) {
    if (!slot.used) continue;
    slot.sent = slot.replied = slot.issued = slot.received = true;
    slot.queued = false;
  }
  for (Operation* operation : waiting_) finish_unposted(*operation, false);
  waiting_.clear();
  for (uint16_t i = 0; i < kRequests; i++) {
    if (slots_[i].used) release_if_done(i);
  }
}

// ---- hot path begins: no allocation, no log, no lock, no system call but recv and sendmsg ----

bool Connection::step(uint64_t now, bool look) {
  now_ = now;
  bool moved = look && receive();
  if (!waiting_.empty()) moved |= retry_waiting();
  moved |= parse();
  if (end_of_file_ && !input_ended_) check_end_of_file();
  moved |= start_reads();
  if (drop_reason_ != nullptr) drop(drop_reason_);
  return moved;
}

bool Connection::receive() {
  if (!is_open() || end_of_file_ || input_ended_) return false;
  const InputStream::Status status = input_.receive(socket_.get());
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

bool Connection::parse() {
  bool moved = false;
  while (is_open() && !input_ended_ && drop_reason_ == nullptr) {
    if (!(payload_left_ > 0 ? take_payload() : begin_request())) break;
    moved = true;
  }
  return moved;
}

bool Connection::begin_request() {
  const auto unread = input_.unread();
  if (unread.size() < sizeof(RequestHeader) || free_slots_.size() == 0) return false;
  // A request starts at most two operations here, and never the ones held in reserve.
  if (rdma_.available() < kReservedOperations + 2) return false;
  Request request;
  if (!decode_request(unread.data(), request)) {
    drop_later("bad request magic");
    return false;
  }
  input_.consume(sizeof(RequestHeader));
  if (request.command == kCmdDisconnect) {
    end_input("disconnected by the client");
    return true;
  }
  const uint16_t index = free_slots_.pop();
  RequestSlot& slot = slots_[index];
  slot.begin(request, now_);
  statistics_.in_flight.set(kRequests - free_slots_.size());
  slot.error = refusing_ ? kEshutdown : validate_request(request, volume_.exported());

  if (request.command == kCmdWrite) {
    if (request.length > kMaxDrainedPayload) {
      slot.sent = true;
      release_if_done(index);
      drop_later("WRITE far beyond the largest payload");
      return false;
    }
    writing_ = index;
    payload_left_ = request.length;
    payload_offset_ = request.offset;
    if (payload_left_ == 0) finish_payload();
    return true;
  }
  slot.received = true;
  if (slot.error == kOk && request.command == kCmdRead) {
    slot.queued = true;
    reads_.push(index);
    return true;
  }
  if (slot.error == kOk) {
    // FLUSH, and FUA on anything, have nothing to do: they promise that writes answered before are on
    // the server, and no write is answered before its completion says so (RdmaQueue confirms it by a
    // fence where the completion alone does not). The server's memory is the storage; nothing lies
    // between.
    if (request.command == kCmdTrim) clear_pages(request);
    if (request.command == kCmdWriteZeroes) write_zeroes(index);
  }
  slot.issued = true;  // only now: an edge of zeros may be over before the other one has started
  reply_if_ready(index);
  return true;
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

void Connection::operation_finished(Operation& operation, bool succeeded, uint64_t now) {
  now_ = now;
  const uint64_t page = operation.offset / kPage;
  if (operation.claimed) {
    const PageState to = succeeded ? PageState::written : operation.claimed_from;
    if (!volume_.settle(page, operation.length / kPage, operation.slab_version, to)) succeeded = false;
  } else if (operation.kind != Operation::Kind::read && operation.stage == Operation::Stage::posted &&
             volume_.version(operation.offset) != operation.slab_version) {
    succeeded = false;  // the slab moved meanwhile: the bytes are at its old place
  }
  if (operation.chunk != kNone) input_.unpin(operation.chunk);
  const uint16_t index = operation.request;
  if (index != kNone) {
    RequestSlot& slot = slots_[index];
    slot.outstanding--;
    if (operation.kind == Operation::Kind::read) slot.pending[operation.part]--;
    if (!succeeded) fail_request(index, kEio);
    if (operation.kind == Operation::Kind::read) update_parts(slot);
    reply_if_ready(index);
    release_if_done(index);
  }
  rdma_.give_back(operation);
}

void Connection::fail_request(uint16_t index, ErrorCode error) {
  RequestSlot& slot = slots_[index];
  if (slot.error != kOk || slot.sent) return;
  if (slot.replied) {
    // The header said that all is well and its data are on their way: only the end of the connection
    // can tell the client otherwise ("Simple reply message").
    return drop_later("a READ failed after its reply had begun");
  }
  slot.error = error;
  slot.issued = true;
}

void Connection::reply_if_ready(uint16_t index) {
  RequestSlot& slot = slots_[index];
  if (slot.replied || !slot.received) return;
  if (slot.error == kOk) {
    const bool ready = slot.streams() ? slot.parts_ready >= kWindow : slot.issued && slot.outstanding == 0;
    if (!ready) return;
  }
  slot.replied = true;
  slot.header.magic = kSimpleReplyMagic;
  slot.header.error = slot.error;
  slot.header.cookie = slot.request.cookie;
  replies_.push(index);
  if (slot.error != kOk) return statistics_.errors.add();
  switch (slot.request.command) {
    case kCmdRead:
      statistics_.reads.add();
      statistics_.bytes_read.add(slot.request.length);
      statistics_.read_latency.add(now_ - slot.started);
      break;
    case kCmdWrite:
      statistics_.writes.add();
      statistics_.bytes_written.add(slot.request.length);
      statistics_.write_latency.add(now_ - slot.started);
      break;
    case kCmdFlush:
      statistics_.flushes.add();
      break;
    case kCmdTrim:
      statistics_.trims.add();
      break;
    default:
      statistics_.write_zeroes.add();
  }
}

void Connection::release_if_done(uint16_t index) {
  RequestSlot& slot = slots_[index];
  if (!slot.sent || slot.outstanding > 0 || slot.queued) return;
  for (uint16_t i = 0; i < slot.window; i++) free_chunks_.push(slot.chunk[i]);
  slot.used = false;
  free_slots_.push(index);
  statistics_.in_flight.set(kRequests - free_slots_.size());
}

bool Connection::send(uint64_t now) {
  if (!is_open()) return false;
  bool moved = false;
  if (!replies_.empty()) {
    const uint64_t before = replies_.bytes_sent();
    const auto status = replies_.send(socket_.get(), [this](uint16_t index) {
      slots_[index].sent = true;
      release_if_done(index);
    });
    moved = replies_.bytes_sent() != before;
    output_blocked_ = status == ReplyQueue::Status::blocked;
    if (status == ReplyQueue::Status::failed) drop_later("connection reset");
  }
  if (drop_reason_ != nullptr) {
    drop(drop_reason_);
    return true;
  }
  if (linger_deadline_ != 0 && (quiet() || now >= linger_deadline_)) {
    drop(reason_);
    return true;
  }
  return moved;
}

void Connection::operation_doomed(Operation& operation) {
  if (operation.request == kNone) return;
  fail_request(operation.request, kEio);
  reply_if_ready(operation.request);
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
