// ibv_qp: a reliable connection through two areas of shared memory.
//
// Locks, in the order in which they are taken: ending_mutex_ (one end at a time), the receive queue's
// CompletionQueue::members_lock() (taking arrivals), send_lock_ (the send queue and what goes to the
// peer), a completion queue's ring. receive_lock_ guards post_recv callers among each other only.
//   queue_pair.cc          life and death
//   queue_pair_send.cc     posting and completing sends
//   queue_pair_execute.cc  doing one
//   queue_pair_window.cc   binding and ending memory windows
//   queue_pair_receive.cc  posting receives and taking arrivals
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "rdmakit/handle.h"
#include "shm/mapping/hazard.h"
#include "shm/mapping/layout.h"
#include "shm/mapping/sleep_lock.h"
#include "shm/progress_thread.h"
#include "shm/setup/link.h"
#include "shm/setup/peer.h"
#include "software/queue_pair.h"

namespace rdmakit::shm {

class CompletionQueue;
class Connection;
class ProtectionDomain;

// A receive as its owner relies on it; the peer has a copy.
struct ReceiveWork {
  uint64_t wr_id;
  uint64_t length;
  uint32_t sge_count;

  // Hot path. `own` and this are ours to rely on; the entry is a copy for the peer, who could write to it.
  void post(const ibv_recv_wr& request, ibv_sge* own, ReceiveEntry& entry) {
    wr_id = request.wr_id;
    length = 0;
    entry.sge_count = sge_count = static_cast<uint32_t>(request.num_sge);
    for (uint32_t i = 0; i < sge_count; i++) {
      const ibv_sge& sge = own[i] = request.sg_list[i];
      entry.sges[i] = {sge.addr, sge.length, sge.lkey};
      length += sge.length;
    }
  }
};

// Why a connection ends, and the reports to both sides.
struct Failure {
  enum Event : uint32_t { kNothing = 0, kFatal = 1, kAccess = 2, kRequest = 4 };
  ibv_wc_status oldest_send = IBV_WC_WR_FLUSH_ERR;  // all others get IBV_WC_WR_FLUSH_ERR
  int status = 0;                                   // of the id's `disconnected` event; 0 is an orderly end
  int peer_status = 0;                              // of the peer's
  Event event = kNothing;                           // asynchronous event of the queue pair
  Blame peer_blame = Blame::nothing;                // what the peer's tells
  bool peer_keeps_rules = true;                     // its hazard is worth waiting for

  static Failure lost(int error) {
    return {.oldest_send = IBV_WC_RETRY_EXC_ERR, .status = error, .peer_status = error};
  }
  // A request of this side was wrong, as its completion tells.
  static Failure own(Blame blame) {
    return {.status = EPROTO, .peer_status = ECONNABORTED, .peer_blame = blame};
  }
  // A message could not be received, as its completion tells.
  static Failure receive() { return {.status = EPROTO, .peer_status = ECONNABORTED}; }
  // This side cannot continue.
  static Failure fatal(int error) { return {.status = error, .peer_status = ECONNABORTED, .event = kFatal}; }
  // The peer wrote or sent invalid data.
  static Failure violation() {
    return {.status = EPROTO, .peer_status = ECONNABORTED, .event = kFatal, .peer_keeps_rules = false};
  }
  // The peer has not cleared its hazard within kPeerPatience.
  static Failure stopped() {
    return {.status = ETIMEDOUT, .peer_status = ECONNABORTED, .event = kFatal, .peer_keeps_rules = false};
  }
  // The peer uses memory that it has given up: until it stops, that memory is not the application's.
  static Failure misuse() { return {.status = EPROTO, .peer_status = ECONNABORTED, .event = kFatal}; }
};

class QueuePair final : public software::QueuePairBase {
 public:
  // Null and errno when the attributes ask for too much. Grants go back into `attributes->cap`.
  static std::unique_ptr<QueuePair> create(ibv_pd* pd, ibv_qp_init_attr* attributes);
  ~QueuePair();

  // The id that made this queue pair, which is notified of the end of its connection.
  void set_connection(const std::shared_ptr<Connection>& connection);
  std::weak_ptr<Connection> connection() const { return connection_; }

  // For the greeting.
  AreaShape shape() const { return shape_; }
  int area_fd() const { return area_fd_.get(); }
  int table_fd() const;
  int event_fd() const;

  // INIT → RTS. 0 or an errno value.
  int start(std::unique_ptr<Peer> peer, std::shared_ptr<Link> link);
  int modify(ibv_qp_attr* attributes, int mask);
  void query(ibv_qp_attr* attributes, ibv_qp_init_attr* init) const;
  // Moves to the error state, as if for `failure`. With Failure{} that is an orderly disconnect. Does not
  // wait: if the peer is in the middle of a copy, receives are flushed and the connection's end is reported
  // when the peer has cleared its hazard, or after kPeerPatience. Returns the status of the first failure.
  int fail(const Failure& failure);
  // The same, by the progress thread: for callers that hold a lock which fail() takes. Allocates nothing.
  void fail_later(const Failure& failure);
  // Ends the connection and makes sure that no thread works for this queue pair any more. Waits for the peer,
  // unlike fail(). False: the peer may still continue a copy.
  bool retire();

  // `lent`: DataPathVerbs::post_send_lent.
  int post_send(ibv_send_wr* request, ibv_send_wr** bad, const LentBytes* lent = nullptr);
  int post_receive(ibv_recv_wr* request, ibv_recv_wr** bad);

  // For the receive completion queue, under its members_lock: takes up to `capacity` arrivals.
  int consume(int capacity, ibv_wc* completions);
  bool has_arrival(bool solicited_only) const;
  // When the last arrival that consume() took was published, if its queue is stamped.
  uint64_t arrival_time() const { return arrival_time_; }
  void arm(uint32_t armed);
  // A peer has taken the arming away, because it brought something.
  bool was_disarmed() const;

  // Sends requests that need not wait any more; ends those that waited for the peer's hazard.
  void progress();
  void progress_from_poll();  // the same under a members_lock: a failure is left to the progress thread

  // The peer may not copy memory of this process that is not shared. False: it was given some already.
  bool out_of_reach();
  // Some is registered for peers.
  bool gives_unshared();
  // Segments of the peer; on the progress thread. 0 or an errno value.
  int add_segment(uint32_t number, uint32_t generation, int fd);
  void remove_segment(uint32_t number, uint32_t generation);
  // Segments of this process.
  void announce(const std::shared_ptr<Segment>& segment, uint32_t number);
  void withdraw(const std::shared_ptr<Segment>& segment, uint32_t number);

  // When this returns, all copies that this process makes itself (in a post_send, or into a receive that it
  // polls) and that were in progress have ended.
  void finish_own_copies();
  const std::shared_ptr<Hazard>& hazard() const { return hazard_; }

 private:
  struct Request;
  struct Outcome;
  class Pieces;
  struct SendWork;
  QueuePair(ibv_pd* pd, const ibv_qp_init_attr& attributes, AreaShape shape,
            std::shared_ptr<SharedMapping> area, UniqueFd area_fd);

  int reset();
  bool finish_end();
  void look_soon();
  void run_errand();
  void raise_events();

  CompletionQueue* send_queue() const;
  CompletionQueue* receive_queue() const;
  ProtectionDomain* domain() const;
  std::shared_ptr<Link> link();

  // queue_pair_send.cc, under send_lock_
  int check(const ibv_send_wr& request, uint64_t& length) const;
  static int check_local(const ibv_send_wr& request);
  bool has_room() const;
  void enqueue(const ibv_send_wr& request, uint32_t length);
  bool drain();  // false: it failed
  bool settle(const Outcome& outcome, uint64_t wr_id, ibv_wr_opcode opcode, uint32_t length, bool signaled);
  void report_send(uint64_t wr_id, ibv_wr_opcode opcode, uint32_t length, ibv_wc_status status,
                   uint32_t vendor_error);
  void set_waiting(bool waiting);
  void tick_soon();
  void flush_sends(ibv_wc_status oldest);
  uint8_t* inline_data(uint32_t index) const {
    return &inline_[size_t{index & send_mask_} * cap_.max_inline_data];
  }

  // queue_pair_execute.cc, under send_lock_
  Outcome execute(const Request& request);
  Outcome send(const Request& request);
  Outcome write(const Request& request);
  Outcome read(const Request& request);
  Outcome atomic(const Request& request);
  Outcome send_and_invalidate(const Request& request);
  Outcome bind(const Request& request);
  Outcome invalidate(const Request& request);
  Outcome place(const Request& request, const ReceiveEntry& entry);
  ibv_wc_status check_local(const Request& request, uint32_t access) const;
  bool has_receive();
  bool hold(uint32_t key);
  void let_go();
  bool can_touch(const RemotePiece& piece);
  void publish_payload(const Request& request);
  void publish(Slot& slot, SlotKind kind, const Request& request);
  void wake();

  // queue_pair_receive.cc
  bool take_next(ibv_wc& completion);
  bool take(const Slot& slot, const ReceiveWork& work, const ibv_sge* sges, ibv_wc& completion);
  void flush_receives();

  const AreaShape shape_;
  UniqueFd area_fd_;  // until the peer has it
  std::shared_ptr<SharedMapping> area_;
  std::shared_ptr<Hazard> hazard_;
  std::unique_ptr<uint8_t[]> rings_;  // works, scatter/gather lists and inline data of both queues

  // The send side.
  alignas(kApart) SleepLock send_lock_;
  std::atomic<bool> waiting_{false};  // the oldest send cannot be done yet
  uint32_t revoking_ = 0;             // the window whose end the oldest send waits for
  uint32_t held_ = 0;                 // the hazard as the peer sees it
  const LentBytes* lent_ = nullptr;   // during a post_send
  uint32_t position_ = 0;             // messages sent that took a receive
  uint32_t posted_ = 0;               // receives of the peer, as last read
  uint32_t send_mask_ = 0;
  uint32_t send_head_ = 0;                // the oldest that is not done
  uint32_t send_tail_ = 0;                // the next to be posted
  std::atomic<uint32_t> send_polled_{0};  // the last whose completion was polled, plus 1
  bool peer_stamped_ = false;             // the peer wants the time of arrivals
  std::unique_ptr<Peer> peer_;
  std::shared_ptr<Link> link_;
  std::chrono::steady_clock::time_point revoking_until_;
  std::atomic<bool> ticks_{false};  // the progress thread is to look at the waiting sends soon
  Failure end_;                     // for the request that ended the connection
  SendWork* send_works_ = nullptr;
  ibv_sge* send_sges_ = nullptr;
  uint8_t* inline_ = nullptr;

  // The receive side.
  alignas(kApart) AreaHeader* const header_;
  Slot* const slots_;
  const uint64_t* const stamps_;
  uint32_t receive_mask_ = 0;
  uint32_t receive_head_ = 0;                // the next arrival; under members_lock
  bool broken_ = false;                      // no more arrivals are taken; under members_lock
  uint64_t arrival_time_ = 0;                // under members_lock
  std::atomic<uint32_t> receive_polled_{0};  // the last that was polled, plus 1
  ReceiveWork* receive_works_ = nullptr;
  ibv_sge* receive_sges_ = nullptr;
  alignas(kApart) SleepLock receive_lock_;
  uint64_t floor_ = UINT32_MAX;
  std::atomic<uint32_t> receive_tail_{0};

  ProgressThread::Errand errand_{[this] { run_errand(); }};
  SleepLock later_lock_;
  bool fails_later_ = false;
  Failure later_;
  std::atomic<uint32_t> events_{0};  // Failure::Event bits that have not been told

  std::mutex ending_mutex_;
  bool ended_ = false;
  bool at_rest_ = false;  // and the peer has cleared its hazard, or was given up
  Failure ending_;
  Hazard::Clock::time_point ending_since_;
  std::weak_ptr<Connection> connection_;
  uint64_t connection_number_ = 0;  // at the progress thread
};

}  // namespace rdmakit::shm
