// ConnectionId: one end of a connection on its way through TCP and MPA setup, or a listener.
//
//   resolve ──► resolved ──connect──► connecting ──TCP──► await_reply ──► established
//   listener ─accept(2)─► await_request ──► requested ──accept──► (await_rtr) ──► established
//
// All of setup happens on the progress thread; calls from elsewhere check, note what is wanted, and
// leave the rest to it. The socket becomes the queue pair's when the connection is established.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/unique_fd.h"
#include "iwarp/mpa.h"
#include "iwarp/progress_thread.h"
#include "iwarp/queue_pair.h"
#include "provider.h"
#include "software/arrivals.h"

namespace rdmakit::iwarp {

class Connection final : public ConnectionId, public ProgressThread::Client {
 public:
  static std::shared_ptr<Connection> create();
  ~Connection() override;

  void set_sink(Sink sink) override;
  int listen(const sockaddr* address, socklen_t length, int backlog) override;
  int resolve(const sockaddr* address, socklen_t length, int timeout_ms) override;
  void add_alternative(const sockaddr* address, socklen_t length) override;
  ibv_context* context() override;
  ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) override;
  int connect(const ConnectParameters& parameters) override;
  int accept(const ConnectParameters& parameters) override;
  int reject(const std::vector<uint8_t>& private_data) override;
  int disconnect() override;
  sockaddr_storage local_address() const override;
  sockaddr_storage peer_address() const override;
  void close() override;
  bool closes_at_once() override;

  void on_ready() override;
  void on_deadline() override;

  // Called by destroy_qp.
  void forget_qp(QueuePair* queue_pair);
  // The established connection of this id is over. Takes no lock and no reference: the caller holds
  // the queue pair's locks.
  static void queue_pair_ended(std::weak_ptr<Connection> id, int status);

  // Its listener's (software/arrivals.h), on the progress thread.
  bool arriving() const;
  void give_way();

 private:
  enum class State : uint8_t {
    idle,
    listening,
    resolved,
    connecting,
    await_reply,
    await_request,
    requested,
    await_rtr,
    established,
    ended,  // failed, rejected or disconnected
    closed,
  };
  using Events = std::vector<CmEvent>;

  Connection() = default;

  // connection.cc
  void emit(Events&& events);
  void deliver_pending();
  void enter(State state);
  void set_deadline(std::chrono::milliseconds timeout);
  void clear_deadline();
  int take_parameters(const ConnectParameters& parameters);
  // Runs `step` on the progress thread under mutex_, then emits what it leaves in its argument.
  void later(void (Connection::*step)(Events&));

  // handshake.cc: what both sides do; like the next two under mutex_ on the progress thread
  void fail(int status, Events& events);
  bool read_frame(MpaFrame& frame, int& error);
  bool send_all(const std::vector<uint8_t>& bytes);
  void establish(QueuePair::StartParameters&& parameters, std::vector<uint8_t>&& private_data,
                 Events& events);

  // handshake_initiator.cc
  void start_connect(Events& events);
  void try_address(Events& events);
  void address_failed(int status, Events& events);
  void connect_tcp(Events& events);
  void tcp_connected(Events& events);
  void read_reply(Events& events);
  void try_first_revision(Events& events);

  // handshake_responder.cc
  void read_request();
  void finish_accept(Events& events);
  void read_first_fpdu(Events& events);
  void send_rejection(const std::vector<uint8_t>& private_data);

  // listener.cc
  void accept_sockets();
  void handshake_over(Connection& id, bool whole);

  mutable std::mutex mutex_;
  std::condition_variable delivered_;
  State state_ = State::idle;
  uint64_t number_ = 0;
  UniqueFd socket_;
  sockaddr_storage local_{};
  sockaddr_storage peer_{};
  socklen_t peer_length_ = 0;
  int timeout_ms_ = 0;
  // Addresses that were not tried yet, and until when one of all must have answered.
  std::deque<std::pair<sockaddr_storage, socklen_t>> alternatives_;
  ProgressThread::Clock::time_point answer_by_ = ProgressThread::Clock::time_point::max();
  ProgressThread::Clock::time_point deadline_ = ProgressThread::Clock::time_point::max();
  QueuePair* queue_pair_ = nullptr;

  // What this side asks for; then what both agreed on.
  uint32_t inbound_reads_ = 0;
  uint32_t outbound_reads_ = 0;
  uint8_t revision_ = kMpaEnhancedRevision;  // of the request
  std::vector<uint8_t> private_data_;
  std::vector<uint8_t> received_;
  MpaFrame peer_frame_;
  bool answered_ = false;  // accept or reject was called

  // Events: `pending_` until there is a sink, then straight to it, one at a time.
  std::shared_ptr<Sink> sink_;
  std::deque<CmEvent> pending_;
  bool delivering_ = false;

  // Of a listener.
  using Arrivals = software::Arrivals<Connection>;
  Arrivals arrivals_{0};
  bool paused_ = false;  // out of descriptors: tried again after a while
  // Of such a handshake.
  std::weak_ptr<Connection> listener_;
};

}  // namespace rdmakit::iwarp
