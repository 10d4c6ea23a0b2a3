// ibv_qp: a reliable connection over one TCP socket.
//
// Locks, in the order in which they are taken: receive_mutex_ (the socket's incoming side and the
// receive queue's head), send_mutex_ (its outgoing side and the send queue), then a completion queue's
// and a channel's own. receive_queue_mutex_ guards post_recv callers among each other only.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "base/fair_mutex.h"
#include "base/unique_fd.h"
#include "iwarp/device_events.h"
#include "iwarp/memory/memory_table.h"
#include "iwarp/poll_set.h"
#include "iwarp/queue-pair/batch.h"
#include "iwarp/queue-pair/receive_work.h"
#include "iwarp/setup/host_watch.h"
#include "iwarp/wire/ddp.h"
#include "software/queue_pair.h"

namespace rdmakit::iwarp {

class CompletionQueue;
class Connection;
class SharedReceiveQueue;

using software::kMaxMessage;
using software::kMaxSge;
using software::kMaxWorkRequests;
inline constexpr uint32_t kMaxReadDepth = 64;  // IRD and ORD; in query_device too
inline constexpr int kRemoteAccess =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// A queue pair's receive buffer: headers, small FPDUs, and the start of large ones; the rest of a large
// one goes straight from the socket to its place.
inline constexpr size_t kReceiveBuffer = 32 * 1024;
// Buffer for the payloads of READ responses that go out in one system call.
inline constexpr uint32_t kResponseStage = 64 * 1024;
// With markers every FPDU goes through the buffer as a whole.
inline constexpr size_t kMarkedReceiveBuffer = 128 * 1024;

// Why a connection ends, and the reports to both sides.
struct Failure {
  // For one outstanding send work request; all others get IBV_WC_WR_FLUSH_ERR.
  ibv_wc_status send_status = IBV_WC_WR_FLUSH_ERR;
  std::optional<uint32_t> send_index;  // none: the oldest outstanding
  // For the receive work request at the head of the receive queue.
  ibv_wc_status receive_status = IBV_WC_WR_FLUSH_ERR;
  uint32_t vendor_error = 0;  // layer, type and code of a Terminate message
  // Sent to the peer before the close.
  bool send_terminate = false;
  TerminateMessage terminate;
  std::optional<std::array<uint8_t, kReadRequestLength>> read_request;
  int status = 0;  // of the id's `disconnected` event: 0 is an orderly end

  static Failure protocol(TerminateCode code);
  static Failure blame(TerminateCode code, const Segment& segment);
  static Failure lost(int error);
};

TerminateCode rdmap_fault(MemoryTable::Fault fault);

class QueuePair : public software::QueuePairBase {
 public:
  enum class Contention { wait, give_up };

  struct StartParameters {
    UniqueFd socket;
    uint32_t inbound_reads = 0;   // IRD
    uint32_t outbound_reads = 0;  // ORD
    uint32_t max_ulpdu = 128;
    bool crc = true;
    bool send_markers = false;          // the peer asked for them
    bool receive_markers = false;       // this side did
    size_t sent = 0;                    // octets of FPDUs that are in the socket already
    bool hold_sends = false;            // until the peer's first FPDU (RFC 5044 §7.1.2: an MPA responder)
    bool read_was_sent = false;         // the first FPDU sent was a zero-length Read Request (RFC 6581)
    std::span<const uint8_t> received;  // bytes that were taken from the socket already
  };

  // Null and errno when the attributes ask for too much. Grants go back into `attributes->cap`.
  static std::unique_ptr<QueuePair> create(ibv_pd* pd, ibv_qp_init_attr* attributes);
  ~QueuePair();

  // The id that made this queue pair, which is notified of the end of its connection.
  void set_connection(std::weak_ptr<Connection> connection) { connection_ = std::move(connection); }
  std::weak_ptr<Connection> connection() const { return connection_; }

  // INIT → RTS on a socket whose MPA setup is done. 0 or an errno value.
  int start(StartParameters&& parameters);
  int modify(ibv_qp_attr* attributes, int mask);
  void query(ibv_qp_attr* attributes, ibv_qp_init_attr* init) const;
  // To the error state, as if for `failure`. With Failure{} that is an orderly disconnect.
  void fail(const Failure& failure);
  // To be called every look_interval(). False: the connection is over, perhaps because its host is gone.
  bool look_at_host();
  std::chrono::milliseconds look_interval() const { return host_watch_.interval(); }
  // Ends the connection and makes sure that no thread works for this queue pair any more.
  void retire();

  // `lent`: DataPathVerbs::post_send_lent.
  int post_send(ibv_send_wr* request, ibv_send_wr** bad, const LentBytes* lent = nullptr);
  int post_receive(ibv_recv_wr* request, ibv_recv_wr** bad);

  // Moves whatever data can be moved now. Any thread, under a poll set's or completion queue's lock.
  void progress(uint32_t events, Contention contention);
  // A set that watches this queue pair's socket from now on.
  void watch_with(PollSet* set, uint64_t token);

 private:
  struct SendWork {
    uint64_t wr_id;
    uint64_t remote_address;
    uint64_t end_position;  // of the outgoing stream, after its last byte
    uint32_t remote_key;
    uint32_t immediate;  // in network byte order; or the key to invalidate, in the host's
    uint32_t length;
    uint32_t received;       // READ
    uint32_t read_sequence;  // READ and atomics: of the request, on queue 1
    ibv_wr_opcode opcode;
    uint8_t sge_count;
    bool inlined;
    bool signaled;
    bool solicited;
    bool fence;
    bool answered;         // READ and atomics: complete with the peer's response, not with the last byte sent
    bool done;             // the response is complete
    uint64_t operands[2];  // atomics: compare or add, swap; a window's length, and its region and access
  };
  struct Receive {
    const ReceiveWork* work = nullptr;
    const ibv_sge* sges = nullptr;
  };
  // The source of FPDUs: one message at a time, from the send queue or a READ response.
  enum class Step : uint8_t {
    immediate_before,
    data,
    immediate_after,
    read_request,
    atomic_request,
    local,
    finished
  };
  struct Cursor {
    bool active = false;
    bool response = false;
    Step step = Step::finished;
    uint32_t offset = 0;
  };
  // A request of the peer that waits for its response.
  struct Response {
    bool atomic;
    ReadRequest read;
    AtomicRequest operation;
  };
  // Where an incoming payload goes.
  struct Placement {
    bool tagged = false;  // to (stag, address), else to the scatter list from `offset` on
    uint32_t stag = 0;
    uint64_t address = 0;
    const ibv_sge* sges = nullptr;
    uint32_t sge_count = 0;
    uint64_t offset = 0;
    bool failed_is_receive = false;  // a bad scatter list belongs to a receive, not to a READ
  };
  // A payload's memory, pinned.
  struct Target {
    std::array<iovec, kMaxSge + 1> pieces;
    std::array<uint32_t, kMaxSge> keys;
    std::array<MemoryTable::Pin, kMaxSge> pins;
    uint32_t count = 0;
  };
  using Result = std::optional<Failure>;

  QueuePair(ibv_pd* pd, const ibv_qp_init_attr& attributes);

  // queue_pair.cc
  int change_state(ibv_qp_state wanted);
  int reset();
  // Under receive_mutex_ and send_mutex_
  void fail_locked(const Failure& failure);
  void tell_of_end(const Failure& failure);
  void send_terminate(const Failure& failure);

  // queue_pair_post.cc
  int check(const ibv_send_wr& request, uint64_t& length) const;
  void enqueue(const ibv_send_wr& request, uint32_t length);
  void complete_sends();
  void response_complete(SendWork& work);
  void report_send(uint32_t index, ibv_wc_status status, uint32_t vendor_error);
  void flush_sends(const Failure& failure);
  void flush_receives(const Failure& failure);

  // queue_pair_transmit.cc: all under send_mutex_
  Result transmit(int sends);
  Result fill_batch();
  bool pick();
  Result append(SendWork& work, bool& fits);
  Result append_data(SendWork& work, bool& fits);
  void copy_lent();
  bool append_immediate(const SendWork& work, bool send_follows);
  bool append_read_request(SendWork& work);
  Result append_response(bool& fits);
  void response_built();
  enum class Sent { all, blocked, dead, unmapped };
  Sent send_batch();
  Failure gone_under_batch();
  Failure unmapped_under_batch() const;
  void set_backlog(bool backlog);

  // queue_pair_atomic.cc: the first two under send_mutex_, the others under receive_mutex_
  bool append_atomic_request(SendWork& work);
  Result append_atomic_response(const AtomicRequest& request, bool& fits);
  Result finish_atomic_request(const Segment& segment, const uint8_t* payload);
  Result finish_atomic_response(const Segment& segment, const uint8_t* payload);

  // queue_pair_window.cc: under send_mutex_, but for the last, which is under receive_mutex_
  int check_local(const ibv_send_wr& request) const;
  static void note_binding(const ibv_send_wr& request, SendWork& work);
  bool local_work_next() const;
  Result execute_local(const SendWork& work);
  Result invalidate_for_peer(const Segment& segment);

  // queue_pair_shared.cc: on a shared receive queue; all under receive_mutex_
  Receive next_shared_receive();
  uint64_t finish_shared_receive();
  void flush_shared_receive(const Failure& failure);

  // queue_pair_receive.cc: all under receive_mutex_
  void receive(Contention contention);
  Result receive_available();
  Failure ended();
  Result consume();
  Result consume_marked();
  Result understand(const uint8_t* ulpdu, size_t ulpdu_length, Segment& segment);
  Result place(const Segment& segment, const uint8_t* payload);
  Result consume_stream(bool& more);
  Result begin_stream(const Segment& segment, const uint8_t* fpdu, size_t ulpdu_length);
  ssize_t read_into_buffer(size_t& asked);
  ssize_t read_into_target(size_t& asked, Result& failure);

  // queue_pair_message.cc: what segments mean; all under receive_mutex_
  Result begin_segment(const Segment& segment, Placement& placement);
  Receive next_receive();
  Result begin_send(const Segment& segment, Placement& placement);
  Result begin_read_response(const Segment& segment, Placement& placement);
  Result finish_segment(const Segment& segment, const uint8_t* payload);
  Result finish_send(const Segment& segment);
  Result finish_immediate(const Segment& segment, const uint8_t* payload);
  Result finish_read_request(const Segment& segment, const uint8_t* payload);
  bool queue_response(const Response& response);
  Result finish_read_response(const Segment& segment);
  Result peer_terminated(const Segment& segment, const uint8_t* payload);
  // `datum` is what `flags` say: immediate data or the key that was invalidated.
  void complete_receive(uint32_t length, ibv_wc_opcode opcode, unsigned flags, uint32_t datum,
                        bool solicited);

  // queue_pair_memory.cc
  // Of the peer's: MemoryTable's pin, and whether this queue pair grants such access.
  MemoryTable::Pin pin_for_peer(uint32_t stag, int access, uint64_t address, uint64_t length,
                                MemoryTable::Fault& fault) const;
  Result resolve(const Placement& placement, uint64_t offset, uint32_t length, Target& target);
  Failure no_place(const Placement& placement, uint32_t length, MemoryTable::Fault fault);
  bool gather(const ibv_pd* domain, const ibv_sge* sges, uint32_t count, uint64_t offset, uint32_t length,
              int access, Target& target) const;

  CompletionQueue* send_queue() const;
  CompletionQueue* receive_queue() const;
  // Where an entry of the send queue is. Whoever posts to an empty one begins at the first place again, so
  // that the queue of a program with little under way has few pages, and those in the cache.
  uint32_t place_of(uint32_t index) const { return (index - send_base_) & send_mask_; }
  SendWork& send_work(uint32_t index) const { return send_works_[place_of(index)]; }
  ibv_sge* send_sges(uint32_t index) const {
    return &send_sges_[size_t{place_of(index)} * cap_.max_send_sge];
  }
  uint8_t* inline_data(uint32_t index) const {
    return &inline_[size_t{place_of(index)} * cap_.max_inline_data];
  }
  const ibv_sge* receive_sges(uint32_t index) const {
    return &receive_sges_[size_t{index & receive_mask_} * cap_.max_recv_sge];
  }

  std::atomic<int> remote_access_{kRemoteAccess};  // what the peer may do at all (IBV_QP_ACCESS_FLAGS)
  int socket_fd_ = -1;                             // set once by start(), before the state
  uint32_t max_ulpdu_ = 128;
  bool crc_ = true;
  bool receive_markers_ = false;
  uint32_t inbound_reads_ = 0;
  uint32_t outbound_reads_ = 0;
  std::weak_ptr<Connection> connection_;
  DeviceEvent end_event_{static_cast<ibv_qp*>(this)};

  // --- send side, under send_mutex_
  std::mutex send_mutex_;
  UniqueFd socket_;
  std::unique_ptr<SendWork[]> send_works_;
  std::unique_ptr<ibv_sge[]> send_sges_;
  std::unique_ptr<uint8_t[]> inline_;
  uint32_t send_mask_ = 0;
  uint32_t send_base_ = 0;  // the entry at the first place
  uint32_t send_head_ = 0;  // oldest that is not complete
  uint32_t send_next_ = 0;  // oldest that is not yet wholly in FPDUs
  uint32_t send_tail_ = 0;
  std::atomic<uint32_t> send_polled_{0};  // behind the last one whose completion was polled
  Cursor cursor_;
  bool response_turn_ = false;  // responses and own messages take turns
  bool hold_sends_ = false;
  std::atomic<bool> dead_{
      false};  // the socket refuses bytes: what it still has to read decides how this ends
  HostWatch host_watch_{host_silence()};
  std::chrono::steady_clock::time_point looked_{};
  uint64_t sent_position_ = 0;
  uint64_t built_position_ = 0;
  uint32_t send_sequence_ = 1;                 // MSN on queue 0 (RFC 5041: starts at 1)
  uint32_t read_request_sequence_ = 1;         // MSN on queue 1
  uint32_t atomic_response_sequence_ = 1;      // MSN on queue 3
  std::array<uint32_t, kMaxReadDepth> reads_;  // send queue indices of what waits for a response
  uint32_t reads_head_ = 0;
  uint32_t reads_tail_ = 0;
  bool rtr_response_wanted_ = false;  // to this side's first READ; written under receive_mutex_ too
  bool rtr_read_waits_ = false;       // in responses_: the peer's, for which there is a place more
  std::array<Response, kMaxReadDepth + 1> responses_;
  uint32_t responses_head_ = 0;  // the place of the oldest
  uint32_t responses_count_ = 0;
  std::unique_ptr<uint8_t[]> stage_;  // payloads of READ responses in batch_, from its start
  uint32_t stage_size_ = 0;
  uint32_t stage_used_ = 0;
  bool bound_windows_ = false;
  Result failed_work_;  // found while filling a batch; acted upon after what came before it is sent
  Batch batch_;
  const LentBytes* lent_ = nullptr;  // during a post_send
  std::atomic<bool> backlog_{false};
  struct Watch {
    PollSet* set = nullptr;
    uint64_t token = 0;
  };
  std::array<Watch, 3> watches_{};
  uint32_t watch_count_ = 0;

  // --- receive side, under receive_mutex_
  FairMutex receive_mutex_;
  std::unique_ptr<uint8_t[]> buffer_;
  size_t buffer_size_ = kReceiveBuffer;
  size_t begin_ = 0;
  size_t end_ = 0;
  uint64_t received_position_ = 0;  // with markers: of begin_ in the incoming stream
  struct Stream {
    bool active = false;
    Segment segment;
    Placement placement;
    uint32_t done = 0;  // payload bytes placed
    uint32_t pad = 0;
    uint32_t crc = 0;
  } stream_;
  bool large_next_ = false;  // a large FPDU has come, and no full read without one since
  bool peer_spoke_ = false;
  bool transmit_wanted_ = false;
  uint32_t expected_send_ = 1;
  uint32_t expected_read_request_ = 1;
  uint32_t expected_atomic_response_ = 1;
  uint32_t send_offset_ = 0;   // of the SEND that is arriving
  uint64_t write_length_ = 0;  // of the WRITE that is arriving or was the last to arrive
  bool write_continues_ = false;
  bool immediate_held_ = false;  // belongs to the next SEND
  uint32_t immediate_ = 0;       // in network byte order

  // --- receive queue: filled under receive_queue_mutex_, emptied under receive_mutex_
  std::mutex receive_queue_mutex_;
  std::unique_ptr<ReceiveWork[]> receive_works_;
  std::unique_ptr<ibv_sge[]> receive_sges_;
  uint32_t receive_mask_ = 0;
  std::atomic<uint32_t> receive_head_{0};
  std::atomic<uint32_t> receive_tail_{0};
  std::atomic<uint32_t> receive_polled_{0};  // behind the last one whose completion was polled

  // --- or a shared one: what a message that is arriving has taken is under receive_mutex_
  SharedReceiveQueue* shared_ = nullptr;
  const ibv_pd* receive_pd_ = nullptr;  // of the memory that is received into
  const ReceiveWork* taken_ = nullptr;
  DeviceEvent last_receive_event_{static_cast<ibv_qp*>(this)};
};

}  // namespace rdmakit::iwarp
