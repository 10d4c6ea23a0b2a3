// One NBD connection in its transmission phase, served by a lane with the lane's memory and queue.
//
//   socket -> InputStream -> parse -> RequestSlot -> operations -> RdmaQueue
//                                          ^                            |
//   socket <- ReplyQueue  <----------------+------ operation_decided <--+
//
// connection.cc         life, parsing
// connection_read.cc    READ
// connection_write.cc   WRITE, WRITE_ZEROES, TRIM
// connection_reply.cc   BLOCK_STATUS, replies
// connection_end.cc     how operations end
// connection_device.cc  a ublk device in the place of the socket
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/unique_fd.h"
#include "front/device_queue.h"
#include "front/input_stream.h"
#include "front/reply_queue.h"
#include "front/request_slot.h"
#include "rdma/arena.h"
#include "rdma/index_stack.h"
#include "rdma/rdma_queue.h"
#include "rdma/statistics.h"
#include "refill/page_repair.h"
#include "request/read_ahead.h"
#include "volume/volume.h"

namespace rdmakit::nbd {

using namespace volume;

class Connection {
 public:
  // So long (ns) a wait for the next request may last in which nothing else is heard.
  static constexpr uint64_t kDoze = 8'000'000;

  Connection(Volume& volume, const Arena& arena, RdmaQueue& rdma, LaneStatistics& statistics,
             OperationListener& listener, uint64_t read_ahead);

  // Takes over a socket in transmission phase. Only when idle().
  void open(int socket, const Terms& terms);
  // The same for a queue of a ublk device, by the thread that serves it.
  void open(std::unique_ptr<DeviceQueue> device, const Terms& terms);
  // Ends it now, without answers to what is under way. Its operations run out by themselves.
  void drop(const char* reason);
  // From now on every new request is answered ESHUTDOWN. One of a device is for whoever serves the queue
  // next, or the driver's own, who fails it when there is nobody.
  void refuse_new() { (of_device() ? yielding_ : refusing_) = true; }

  // From now on nothing is read but the rest of a request that has begun. When may_part(), part() ends the
  // connection here and gives its socket; of a device there is none, and it rests until resume(), or until
  // its thread ends. See hand_over.cc.
  void yield();
  bool may_part() const {
    return yielding_ && !mid_request() && quiet() && (device_ == nullptr || !device_->pending());
  }
  int part();
  void resume();

  bool is_open() const { return open_; }
  // Nothing is left of a connection: the lane may take another.
  bool idle() const { return !open_ && free_slots_.size() == kRequests; }
  // After the last connection, with no operation outstanding: all that it had is free again.
  void check_rest() const;
  // Every request so far is answered and the answers are sent.
  bool quiet() const { return free_slots_.size() == kRequests && replies_.empty() && answered_.empty(); }
  // Also after drop(), until close_socket(). Of a device: what is readable when a request has come.
  int socket() const { return device_ == nullptr ? socket_.get() : device_->descriptor(); }
  void close_socket() {
    socket_.reset();
    device_.reset();
  }
  const char* reason() const { return reason_; }

  // ---- hot path ----
  // Receives (if `look`), parses, and starts what can be started. True: something moved.
  bool step(uint64_t now, bool look);
  // Waits in recv(2) for what comes next, and receives it; step() then works on it. False: nothing came
  // within kDoze. Only where dozes().
  bool doze() { return receive(true); }
  bool dozes() const { return wants_input() && !output_blocked_ && may_doze_; }
  // Sends replies, and ends the connection when it is over. True: something moved.
  bool send(uint64_t now);
  // See OperationListener.
  void operation_acknowledged(Operation& operation, uint64_t now);
  void operation_decided(Operation& operation, bool succeeded, uint64_t now);
  void operation_over(Operation& operation);
  bool may_move(const Operation& operation) const;

  // The last recv(2) filled all the room it had, so there is more.
  bool more_input() const { return more_input_; }
  // There was no room to receive into.
  bool input_full() const { return input_full_; }

  // What a sleeping lane must watch.
  bool wants_input() const {
    return is_open() && !end_of_file_ && !input_ended_ && !input_full_ && (!yielding_ || mid_request());
  }
  bool wants_output() const { return is_open() && output_blocked_; }
  // Something waits for a page that another lane may be filling, which wakes nobody.
  bool waits_for_page() const {
    return waiting_.size() > paced_ || !moving_.empty() || read_waits_ || repair_.waits_for_page();
  }
  // Operations under way that no request waits for.
  uint32_t unawaited() const { return ahead_.unawaited(); }
  // When the limits of a server let the next operation start that they hold back; 0: there is none.
  uint64_t next_turn() const { return next_turn_; }
  // When a client that said goodbye must have taken its answers; 0: none.
  uint64_t linger_deadline() const { return linger_deadline_; }
  // When a remote client must have sent the rest of a request, or taken more of its answers; 0: none.
  uint64_t stall_deadline() const {
    if (input_deadline_ == 0 || output_deadline_ == 0) return input_deadline_ + output_deadline_;
    return input_deadline_ < output_deadline_ ? input_deadline_ : output_deadline_;
  }
  // A client beyond our control, which should hear why its requests fail before the connection ends.
  bool remote() const { return terms_.remote; }
  bool of_device() const { return device_ != nullptr; }

 private:
  void begin_anew(const Terms& terms);
  bool receive(bool waits = false);
  bool receive_from_device(bool waits);
  bool begin_from_device();
  bool commit_to_device();
  void pin_again(uint16_t chunk);
  void unpin(uint16_t chunk);
  bool mid_request() const { return payload_left_ > 0 || !input_.unread().empty(); }
  // Bytes that may be received now.
  size_t wanted() const;
  bool parse();
  bool begin_request();
  uint16_t begin(const Request& request);
  void begin_without_payload(uint16_t index);
  bool take_payload();
  void finish_payload();
  void end_input(const char* reason);
  void time_input();
  void time_output(bool moved);
  void check_end_of_file();
  void drop_later(const char* reason) {
    if (drop_reason_ == nullptr) drop_reason_ = reason;
  }

  void reply_if_ready(uint16_t index);
  void count_reply(const RequestSlot& slot);
  void make_head(RequestSlot& slot);
  void make_error_head(RequestSlot& slot);
  void fail_request(uint16_t index, ErrorCode error, uint64_t offset);
  void report_status(uint16_t index);
  void release_if_done(uint16_t index);

  bool start_reads();
  bool issue_read(uint16_t index);
  enum class Backed { held, queued, lost };
  Backed look_at_backup(const SlabPlace& place, uint64_t page, uint64_t& run);
  void read_from(Operation& operation, const Replica* source);
  void update_parts(RequestSlot& slot);

  void write_zeroes(uint16_t index);
  void zero_edge(uint16_t index, uint64_t offset, uint64_t length);
  void clear_pages(uint16_t index);
  void start(Operation& operation);
  bool advance(Operation& operation);
  bool give_up_placing(Operation& operation);
  bool fill_with_zeroes(uint64_t page);
  bool retry_waiting();
  void wait_for_turn(uint64_t turn) { next_turn_ = next_turn_ == 0 ? turn : std::min(next_turn_, turn); }

  void answer(Operation& operation, bool succeeded, ErrorCode error = kEio);
  void finish_unposted(Operation& operation, bool succeeded, ErrorCode error = kEio);
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
  UniqueFd socket_;
  bool open_ = false;
  Terms terms_;
  InputStream input_;
  std::vector<RequestSlot> slots_;
  IndexStack<kRequests> free_slots_;
  IndexStack<kOutputChunks> free_chunks_;
  std::unique_ptr<DeviceQueue> device_;  // in the place of socket_ and what receives from it
  IndexQueue<kDeviceDepth> arrived_;     // tags
  IndexQueue<kRequests> answered_;       // slots
  std::array<uint16_t, kDeviceDepth> tag_buffer_{};
  std::array<uint16_t, kDeviceBuffers> buffer_pins_{};  // who reads or writes it, besides the kernel
  std::array<bool, kDeviceBuffers> retired_{};          // free when nobody does
  IndexStack<kDeviceBuffers> spare_buffers_;
  uint16_t ended_tags_ = 0;
  bool of_device_ = false;       // the present connection or, until it is idle(), the last one
  IndexQueue<kRequests> reads_;  // READs with more to issue, first come first served
  ReplyQueue replies_;
  std::vector<Operation*> waiting_;  // parts of WRITEs that wait for a page or an operation
  std::vector<Operation*> moving_;   // parts of READs whose server failed, or has failed before
  std::vector<Operation*> wrong_;    // parts of READs that do not match their checksums
  PageRepair repair_;                // of one of them at a time
  ReadAhead ahead_;

  uint64_t now_ = 0;
  uint16_t writing_ = kNone;     // slot of the WRITE whose payload is arriving
  uint32_t payload_left_ = 0;    // of it
  uint64_t payload_offset_ = 0;  // in the volume, of its next byte
  bool end_of_file_ = false;     // nothing more comes; what came is still worked on
  bool input_ended_ = false;     // no request follows
  bool input_full_ = false;
  bool more_input_ = false;
  bool output_blocked_ = false;
  bool may_doze_ = false;
  bool refusing_ = false;
  bool yielding_ = false;
  bool read_waits_ = false;
  bool read_paced_ = false;
  size_t paced_ = 0;  // of waiting_, for their turn
  uint64_t next_turn_ = 0;
  uint64_t linger_deadline_ = 0;
  uint64_t input_deadline_ = 0;
  uint64_t output_deadline_ = 0;
  const char* reason_ = "";
  const char* drop_reason_ = nullptr;
};

}  // namespace rdmakit::nbd
