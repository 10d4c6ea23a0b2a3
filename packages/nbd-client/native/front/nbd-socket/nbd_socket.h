// The front of an NBD connection in its transmission phase.
//
//   socket -> InputStream -> decode, check -> RequestExecutor
//   socket <- ReplyQueue  <- heads         <- answered()
//
// receive.cc   life, the stream of requests and payloads
// reply.cc     what a request is answered, and BLOCK_STATUS, which is nothing but an answer
#pragma once

#include <cstdint>
#include <vector>

#include "base/unique_fd.h"
#include "front/nbd-socket/input_stream.h"
#include "front/nbd-socket/payload_pace.h"
#include "front/nbd-socket/reply_queue.h"
#include "protocol/request.h"
#include "rdma/arena.h"
#include "request/request_executor.h"

namespace rdmakit::nbd {

using namespace volume;

class NbdSocket {
 public:
  NbdSocket(RequestExecutor& requests, const Arena& arena, const Volume& volume);

  // Takes over a socket in transmission phase. `longest` (ns): receive() with `waits` blocks for no longer.
  void open(UniqueFd socket, const Terms& terms, uint64_t longest);
  // It ends now; the socket stays until close().
  void drop();
  void close() { socket_.reset(); }
  int descriptor() const { return socket_.get(); }
  UniqueFd give_away();
  // From now on every new request is answered ESHUTDOWN.
  void refuse_new() { refusing_ = true; }
  // From now on nothing is read but the rest of a request that has begun.
  void stop_taking() { yielding_ = true; }
  void resume() { yielding_ = false; }
  bool yielding() const { return yielding_; }
  bool may_part() const { return yielding_ && !mid_request(); }
  // nullptr: it continues; else the reason why it must end now.
  const char* failure() const { return failure_; }
  // Why it ended, if its client wanted it to.
  const char* farewell() const { return farewell_; }
  bool remote() const { return terms_.remote; }

  // ---- hot path ----
  bool receive(bool waits);
  bool take(uint64_t now);
  void check_time(uint64_t now);
  bool send(uint64_t now);
  // The slot whose reply is being sent, or kNone.
  uint16_t sending() const { return replies_.empty() ? kNone : replies_.front(); }
  // All is said after the client's goodbye, or it takes too long. Then it ends.
  bool is_over(uint64_t now) const {
    return linger_deadline_ != 0 && (requests_.quiet() || now >= linger_deadline_);
  }
  // The last recv(2) filled all the room it had, so there is more.
  bool more_input() const { return more_input_; }
  // There was no room to receive into.
  bool input_full() const { return input_full_; }
  bool wants_input() const {
    return !end_of_file_ && !input_ended_ && !input_full_ && (!yielding_ || mid_request());
  }
  bool wants_output() const { return output_blocked_; }
  // See Front::pause(): while the kernel sends the rest of a payload.
  uint64_t pause(uint64_t now) { return blocks_in_recv() ? pace_.pause(rest_of_payload(), now) : 0; }
  bool blocks_in_recv() const { return wants_input() && !output_blocked_ && may_block_; }
  // When a client that said goodbye must have taken its answers; 0: none.
  uint64_t linger_deadline() const { return linger_deadline_; }
  // When a remote client must have sent the rest of a request, or taken more of its answers; 0: none.
  uint64_t stall_deadline() const {
    if (input_deadline_ == 0 || output_deadline_ == 0) return input_deadline_ + output_deadline_;
    return input_deadline_ < output_deadline_ ? input_deadline_ : output_deadline_;
  }

 private:
  bool mid_request() const { return payload_left_ > 0 || !input_.unread().empty(); }
  // Bytes of it that have not arrived.
  uint32_t rest_of_payload() const;
  // Bytes that may be received now.
  size_t wanted() const;
  bool begin_request();
  bool take_payload();
  void finish_payload();
  void end_input(const char* reason);
  bool says_farewell() const;
  bool has_whole_request() const;
  void check_end_of_file();
  void time_input();
  void time_output(bool moved);
  void fail(const char* why) {
    if (failure_ == nullptr) failure_ = why;
  }

  void queue_answers();
  void report_status(uint16_t index);
  void make_head(uint16_t index);
  void make_error_head(uint16_t index);

  RequestExecutor& requests_;
  const Arena& arena_;
  const Volume& volume_;
  UniqueFd socket_;
  Terms terms_;
  InputStream input_;
  std::vector<ReplyHead> heads_;  // by slot
  ReplyQueue replies_;

  uint64_t now_ = 0;
  uint16_t writing_ = kNone;     // slot of the WRITE whose payload is arriving
  uint32_t payload_left_ = 0;    // of it
  uint64_t payload_offset_ = 0;  // in the volume, of its next byte
  PayloadPace pace_;
  bool end_of_file_ = false;  // nothing more comes; what came is still worked on
  bool input_ended_ = false;  // no request follows
  bool input_full_ = false;
  bool more_input_ = false;
  bool output_blocked_ = false;
  bool may_block_ = false;
  bool refusing_ = false;
  bool yielding_ = false;
  uint64_t linger_deadline_ = 0;
  uint64_t input_deadline_ = 0;
  uint64_t output_deadline_ = 0;
  const char* failure_ = nullptr;
  const char* farewell_ = "";
};

}  // namespace rdmakit::nbd
