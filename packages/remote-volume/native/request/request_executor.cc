#include "request/request_executor.h"

#include "rdmakit/invariant.h"

namespace rdmakit::volume {

RequestExecutor::RequestExecutor(Volume& volume, const Arena& arena, RdmaQueue& rdma,
                                 LaneStatistics& statistics, OperationListener& listener, uint64_t read_ahead)
    : volume_(volume),
      arena_(arena),
      rdma_(rdma),
      statistics_(statistics),
      slots_(kRequests),
      repair_(volume, rdma, statistics, listener, false),
      ahead_(volume, arena, rdma, statistics, free_chunks_, read_ahead) {
  waiting_.reserve(kOperations);
  moving_.reserve(kOperations);
  wrong_.reserve(kOperations);
}

// Nothing is under way, also nothing that is read ahead.
void RequestExecutor::open(uint16_t taken, bool brings_memory) {
  open_ = true;
  client_left_ = false;
  taken_chunks_ = taken;
  free_chunks_.reset(taken);
  ahead_.share_chunks(!brings_memory);
  pins_.clear();
  answered_.clear();
  failed_late_.clear();
  read_waits_ = read_paced_ = false;
  statistics_.connections.add();
}

void RequestExecutor::drop() {
  open_ = false;
  reads_.clear();
  answered_.clear();
  failed_late_.clear();
  read_waits_ = read_paced_ = false;
  next_turn_ = 0;
  for (RequestSlot& slot : slots_) {
    if (!slot.used) continue;
    slot.released = slot.answered = slot.issued = slot.received = true;
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

void RequestExecutor::part() {
  open_ = false;
  ahead_.stop([](Operation&) {});  // where all is quiet no READ waits
}

void RequestExecutor::check_rest() const {
  RDMAKIT_INVARIANT(idle() && reads_.empty() && answered_.empty() && failed_late_.empty(),
                    "%zu slots are free; %zu wait to be read, %zu are answered", free_slots_.size(),
                    reads_.size(), answered_.size());
  RDMAKIT_INVARIANT(waiting_.empty() && moving_.empty() && wrong_.empty() && !repair_.busy(),
                    "%zu operations wait, %zu move, %zu are wrong", waiting_.size(), moving_.size(),
                    wrong_.size());
  const size_t chunks = kOutputChunks - taken_chunks_;
  RDMAKIT_INVARIANT(rdma_.available() == kOperations && free_chunks_.size() == chunks,
                    "%zu operations and %zu of %zu chunks are free", rdma_.available(), free_chunks_.size(),
                    chunks);
  RDMAKIT_INVARIANT(!pins_.any(), "%u chunks are the front's", taken_chunks_);
}

// ---- hot path begins: no allocation, no log, no lock, no system call ----

bool RequestExecutor::resume(uint64_t now) {
  now_ = now;
  paced_ = 0;
  next_turn_ = 0;
  bool moved = false;
  if (!waiting_.empty()) moved |= retry_waiting();
  if (!moving_.empty()) moved |= move_reads();
  if (!wrong_.empty() || repair_.busy()) moved |= repair_reads();
  return moved;
}

uint16_t RequestExecutor::begin(const Request& request, int error) {
  const uint16_t index = free_slots_.pop();
  RequestSlot& slot = slots_[index];
  RDMAKIT_INVARIANT(!slot.used, "slot %u", index);
  slot.begin(request, now_);
  slot.failures = volume_.last_failure();
  slot.backed_up = rdma_.backed_up();
  statistics_.in_flight.set(kRequests - free_slots_.size());
  if (request.buffer != kNone) pins_.pin(request.buffer);
  slot.error = error;
  if (request.kind != RequestKind::write) begin_without_payload(index);
  return index;
}

void RequestExecutor::begin_without_payload(uint16_t index) {
  RequestSlot& slot = slots_[index];
  slot.received = true;
  if (slot.error == 0 && slot.is_read()) {
    slot.queued = true;
    reads_.push(index);
    ahead_.saw(slot.request.offset, slot.request.length);
    return;
  }
  if (slot.error == 0) {
    // FLUSH, and whatever asks for a WRITE to be safe, has nothing to do: it promises that WRITEs answered
    // before are on the server, and none is answered before its completion says so (RdmaQueue confirms it by
    // a fence where the completion alone does not). The server's memory is the storage; nothing lies between.
    if (slot.request.kind == RequestKind::trim) clear_pages(index);
    if (slot.request.kind == RequestKind::write_zeroes) write_zeroes(index);
  }
  slot.issued = true;  // only now: an edge of zeros may be over before the other one has started
  answer_if_ready(index);
}

void RequestExecutor::write(uint16_t index, uint64_t at, uint8_t* memory, uint32_t length, uint16_t buffer) {
  Operation& operation = rdma_.take(Operation::Kind::write);
  operation.request = index;
  operation.chunk = buffer;
  operation.offset = at;
  operation.length = length;
  operation.memory = memory;
  slots_[index].outstanding++;
  start(operation);
}

void RequestExecutor::end_payload(uint16_t index) {
  slots_[index].received = slots_[index].issued = true;
  answer_if_ready(index);
}

// ---- answers ----

void RequestExecutor::answer_if_ready(uint16_t index) {
  RequestSlot& slot = slots_[index];
  if (slot.answered || !slot.received) return;
  if (slot.error == 0) {
    const bool ready = slot.streams() ? slot.parts_ready >= kWindow : slot.issued && slot.outstanding == 0;
    if (!ready) return;
    if (slot.writes() && (slot.failures != volume_.last_failure() || slot.backed_up != rdma_.backed_up())) {
      const uint64_t lost = first_lost(slot.request);
      if (lost != RequestSlot::kNowhere) fail_request(index, EIO, lost);
    }
  }
  slot.answered = true;
  answered_.push(index);
  count_answer(slot);
}

void RequestExecutor::fail_request(uint16_t index, int error, uint64_t offset) {
  RequestSlot& slot = slots_[index];
  if (slot.error != 0 || slot.released) return;
  if (slot.answered && !slot.failed_late) {
    slot.failed_late = true;
    failed_late_.push(index);
  }
  // Its front has reported success and the data are on their way: the rest is up to the front.
  if (slot.answered && !slot.request.fragments) return;
  slot.error = error;
  slot.failed_at = offset;
  slot.issued = true;
  if (!slot.answered) return;
  slot.parts_before_failure = slot.parts_ready;
  statistics_.errors.add();
}

void RequestExecutor::count_answer(const RequestSlot& slot) {
  if (slot.error != 0) return statistics_.errors.add();
  // The lane's clock goes back when it is set by the kernel's.
  const uint64_t taken = now_ > slot.started ? now_ - slot.started : 0;
  switch (slot.request.kind) {
    case RequestKind::read:
      statistics_.reads.add();
      statistics_.bytes_read.add(slot.request.length);
      statistics_.read_latency.add(taken);
      break;
    case RequestKind::write:
      statistics_.writes.add();
      statistics_.bytes_written.add(slot.request.length);
      statistics_.write_latency.add(taken);
      break;
    case RequestKind::flush:
      statistics_.flushes.add();
      break;
    case RequestKind::trim:
      statistics_.trims.add();
      break;
    case RequestKind::cache:
      statistics_.caches.add();
      break;
    case RequestKind::describe:
      statistics_.block_statuses.add();
      break;
    case RequestKind::write_zeroes:
      statistics_.write_zeroes.add();
  }
}

void RequestExecutor::release_if_done(uint16_t index) {
  RequestSlot& slot = slots_[index];
  RDMAKIT_INVARIANT(slot.used, "slot %u", index);
  if (!slot.released || slot.outstanding > 0 || slot.queued) return;
  for (uint16_t i = 0; i < slot.window; i++) free_chunks_.push(slot.chunk[i]);
  if (slot.request.buffer != kNone) pins_.unpin(slot.request.buffer);
  slot.used = false;
  free_slots_.push(index);
  statistics_.in_flight.set(kRequests - free_slots_.size());
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
