// Executes the requests that a front takes, on a lane's memory and queue: everything that decides where a
// page is and whether it is right. It never calls the front: answers wait in answered() until the front takes
// them.
//
//   front -> begin(), write()  -> RequestSlot -> operations -> RdmaQueue
//                                     ^                            |
//   front <- answered()      <--------+------ operation_decided <--+
//         -> sent()                           operation_over
//
// request_executor.cc  life, requests, answers
// read.cc              READ
// write.cc             WRITE, WRITE_ZEROES, TRIM
// completion.cc        how operations end
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rdma/arena.h"
#include "rdma/index_stack.h"
#include "rdma/rdma_queue.h"
#include "rdma/statistics.h"
#include "refill/page_repair.h"
#include "request/buffer_pins.h"
#include "request/read_ahead.h"
#include "request/request_slot.h"
#include "volume/volume.h"

namespace rdmakit::volume {

class RequestExecutor {
 public:
  RequestExecutor(Volume& volume, const Arena& arena, RdmaQueue& rdma, LaneStatistics& statistics,
                  OperationListener& listener, uint64_t read_ahead);

  // ---- life ----
  // A front opens. Only when idle(). Of the output chunks it takes the first `taken` for buffers of its own.
  // Where it `brings_memory`, READs go there, and all that is left is for reading ahead.
  void open(uint16_t taken, bool brings_memory);
  // The answers are not wanted any more; operations end by themselves.
  void drop();
  // The front continues elsewhere. Only when quiet().
  void part();
  bool is_open() const { return open_; }
  // Nothing is left of any request: another front may open.
  bool idle() const { return !open_ && free_slots_.size() == kRequests; }
  // Every request so far is answered and the answers are out.
  bool quiet() const { return free_slots_.size() == kRequests; }
  // When idle, with no operation outstanding: all that was taken is free again.
  void check_rest() const;

  // ---- hot path: the front ----
  // Requests may be taken. A request starts at most three operations at once, and never the ones held in
  // reserve.
  bool has_room() const { return free_slots_.size() > 0 && rdma_.available() >= kReservedOperations + 3; }
  // Takes a request: its slot. With an `error` (errno value) it is refused, and nothing is done but the
  // answer. All but a WRITE starts at once. The payload of a WRITE follows, also of one that is refused.
  uint16_t begin(const Request& request, int error);
  // The next bytes of a WRITE's payload that is not refused, at most kMaxWrite; `at`: where in the volume.
  // Whole pages of it as long as more is to come, so that a page is never split in two. Their `buffer` is
  // pinned already. Only when has_operation().
  void write(uint16_t index, uint64_t at, uint8_t* memory, uint32_t length, uint16_t buffer);
  bool has_operation() const { return rdma_.available() > kReservedOperations; }
  void end_payload(uint16_t index);
  RequestSlot& slot(uint16_t index) { return slots_[index]; }
  std::vector<RequestSlot>& slots() { return slots_; }
  // Slots that are answered: the front takes each from there, once. Of a READ that streams only the first
  // parts are ready then.
  IndexQueue<kRequests>& answered() { return answered_; }
  // READs that stream and failed when they were answered already, each once.
  IndexQueue<kRequests>& failed_late() { return failed_late_; }
  // The answer is out. Once for each.
  void sent(uint16_t index) {
    slots_[index].released = true;
    release_if_done(index);
  }
  // The WRITE will never be here in full.
  void withdraw(uint16_t index) { sent(index); }
  // The client has closed without a word. Parts of its WRITEs that still wait will never be posted: it may
  // write the same pages over another connection, and then they would be old.
  void client_left() { client_left_ = true; }
  // Only its request uses the slot's buffer now.
  bool has_buffer_alone(const RequestSlot& slot) const {
    return slot.outstanding == 0 && !slot.queued && pins_.count(slot.request.buffer) == 1;
  }
  BufferPins& pins() { return pins_; }
  const BufferPins& pins() const { return pins_; }

  // ---- hot path: the lane ----
  // Continues waiting operations. True: something moved.
  bool resume(uint64_t now);
  // After the front has taken its requests. `sending`: the slot whose data the front is sending, or kNone.
  bool start_reads(uint16_t sending);
  // When nothing is to be sent.
  void read_ahead() { ahead_.advance(now_); }
  // See OperationListener.
  void operation_acknowledged(Operation& operation, uint64_t now);
  void operation_decided(Operation& operation, bool succeeded, uint64_t now);
  void operation_over(Operation& operation);
  bool may_move(const Operation& operation) const;

  // A request waits for a page that another lane may be filling, which causes no wake-up.
  bool waits_for_page() const {
    return waiting_.size() > paced_ || !moving_.empty() || read_waits_ || repair_.waits_for_page();
  }
  // Operations under way that no request waits for.
  uint32_t unawaited() const { return ahead_.unawaited(); }
  // When the limits of a server let the next operation start that they hold back; 0: there is none.
  uint64_t next_turn() const { return next_turn_; }

 private:
  enum class Backed { held, queued, lost };

  void begin_without_payload(uint16_t index);
  void answer_if_ready(uint16_t index);
  void count_answer(const RequestSlot& slot);
  void fail_request(uint16_t index, int error, uint64_t offset);
  void release_if_done(uint16_t index);
  uint64_t first_lost(const Request& request) const;
  bool backup_has(uint64_t page, PageState state) const;

  // The outcome of a step.
  enum class Progress : uint8_t {
    proceed,
    again,  // something changed between two looks
    waits,  // for a page, an operation or its turn
    over,   // nothing is left to do
  };
  // The pages at the cursor of a READ.
  struct ReadStep {
    uint32_t part;
    uint32_t within;  // the part
    uint64_t offset;  // in the volume
    uint64_t limit;   // bytes, to the end of the part and of the slab
    uint64_t page;
    uint64_t head;   // in the page
    uint64_t run;    // pages in the same state
    uint32_t bytes;  // of them
    PageState state;
    SlabPlace place;
  };
  bool lend_chunks(RequestSlot& slot);
  bool issue_read(uint16_t index);
  Progress look_at_pages(const RequestSlot& slot, ReadStep& step);
  uint8_t* memory_of(uint16_t index, const ReadStep& step) const;
  void read_zeroes(RequestSlot& slot, uint8_t* memory, const ReadStep& step);
  Progress read_pages(uint16_t index, uint8_t* memory, ReadStep& step);
  Backed look_at_backup(const SlabPlace& place, uint64_t page, uint64_t& run);
  void read_from(Operation& operation, const Replica* source);
  void update_parts(RequestSlot& slot);

  // The pages at the beginning of a part of a WRITE.
  struct WriteStep {
    uint64_t page;
    uint64_t head;   // in the page
    uint64_t limit;  // bytes, to the end of the data and of the slab
    PageState state;
    SlabPlace place;
    bool part_of_page;
  };
  void write_zeroes(uint16_t index);
  void zero_edge(uint16_t index, uint64_t offset, uint64_t length);
  void clear_pages(uint16_t index);
  void start(Operation& operation);
  bool advance(Operation& operation);
  bool clear_claimed(Operation& operation);
  Progress skip_zeroes(Operation& operation, WriteStep& step);
  Progress find_place(Operation& operation, WriteStep& step);
  Progress claim_and_post(Operation& operation, const WriteStep& step);
  Operation& split(Operation& operation, uint64_t bytes);
  bool give_up_placing(Operation& operation);
  bool fill_with_zeroes(uint64_t page);
  bool retry_waiting();
  void wait_for_turn(uint64_t turn) { next_turn_ = next_turn_ == 0 ? turn : std::min(next_turn_, turn); }

  void answer(Operation& operation, bool succeeded, int error = EIO);
  void finish_unposted(Operation& operation, bool succeeded, int error = EIO);
  bool may_start_anew(const Operation& operation) const;
  void start_anew(Operation& operation);
  void finish_read(Operation& operation, bool succeeded);
  void end_waits();
  bool move_reads();
  bool repair_reads();
  bool move_read(Operation& operation);

  Volume& volume_;
  const Arena& arena_;
  RdmaQueue& rdma_;
  LaneStatistics& statistics_;
  bool open_ = false;
  bool client_left_ = false;
  uint16_t taken_chunks_ = 0;
  std::vector<RequestSlot> slots_;
  IndexStack<kRequests> free_slots_;
  IndexStack<kOutputChunks> free_chunks_;
  BufferPins pins_;
  IndexQueue<kRequests> answered_;
  IndexQueue<kRequests> failed_late_;
  IndexQueue<kRequests> reads_;      // READs with more to issue, first come first served
  std::vector<Operation*> waiting_;  // parts of WRITEs that wait for a page or an operation
  std::vector<Operation*> moving_;   // parts of READs whose server failed, or has failed before
  std::vector<Operation*> wrong_;    // parts of READs that do not match their checksums
  PageRepair repair_;                // of one of them at a time
  ReadAhead ahead_;

  uint64_t now_ = 0;
  bool read_waits_ = false;
  bool read_paced_ = false;
  size_t paced_ = 0;    // of waiting_, for their turn
  size_t starved_ = 0;  // of waiting_, for an operation
  uint64_t next_turn_ = 0;
  uint64_t retried_at_ = 0;  // ns: waiting_
};

}  // namespace rdmakit::volume
