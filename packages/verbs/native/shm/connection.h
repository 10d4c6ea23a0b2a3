// ConnectionId: one end of a connection over a Unix socket, or a listener.
//
//   resolve ──► resolved ──connect──► await_reply ──accept──► await_segments ──► established
//   listener ─accept(2)─► await_request ──► requested ──accept──► await_segments ──► established
//
// All of setup happens on the progress thread; calls from elsewhere check, note what is wanted, and
// leave the rest to it.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "provider.h"
#include "shm/frame.h"
#include "shm/link.h"
#include "shm/progress_thread.h"
#include "shm/queue_pair.h"
#include "software/arrivals.h"

namespace rdmakit::shm {

class Connection final : public ConnectionId, public ProgressThread::Client {
 public:
  static std::shared_ptr<Connection> create();
  ~Connection() override;

  void set_sink(Sink sink) override;
  int listen(const sockaddr* address, socklen_t length, int backlog) override;
  int resolve(const sockaddr* address, socklen_t length, int timeout_ms) override;
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
  bool settled() override;

  void on_ready() override;
  void on_deadline() override;

  // For the progress thread.
  uint64_t number() const { return number_; }
  // Called by destroy_qp.
  void forget_qp(QueuePair* queue_pair);
  // The established connection of this id is over. Takes no lock and no reference.
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
    await_segments,
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
  void set_deadline(int timeout_ms);
  void clear_deadline();
  int take_parameters(const ConnectParameters& parameters);
  void later(void (Connection::*step)(Events&));
  int socket() const { return link_ == nullptr ? socket_.get() : link_->socket(); }
  void stop_watching();

  // handshake.cc; under mutex_ on the progress thread
  void fail(int status, Events& events);
  void start_connect(Events& events);
  void read_reply(Events& events);
  void read_request();
  void finish_accept(Events& events);
  int send_greeting(FrameType type, int status);
  void begin(const GreetingFrame& greeting, Frame& frame, Events& events);
  void read_frames(Events& events);
  int take_frame(Frame& frame, Events& events);
  void lost(const Failure& failure, Events& events);

  // listener.cc
  void accept_sockets();
  void handshake_over(Connection& id, bool whole);

  mutable std::mutex mutex_;
  std::condition_variable delivered_;
  State state_ = State::idle;
  uint64_t number_ = 0;
  UniqueFd socket_;  // until link_ has it
  std::shared_ptr<Link> link_;
  sockaddr_storage local_{};
  sockaddr_storage peer_{};
  socklen_t peer_length_ = 0;
  int timeout_ms_ = 0;
  ProgressThread::Clock::time_point deadline_ = ProgressThread::Clock::time_point::max();
  ProgressThread::Clock::time_point retry_until_ = ProgressThread::Clock::time_point::max();
  QueuePair* queue_pair_ = nullptr;
  std::shared_ptr<Hazard> hazard_;          // of a queue pair that is gone
  std::vector<uint8_t> private_data_;       // to the peer
  std::vector<uint8_t> peer_private_data_;  // from it
  std::unique_ptr<Frame> request_;          // what the peer asked for
  bool owes_synchronized_ = false;          // it is sent when the initiator's has come
  bool answered_ = false;                   // accept or reject was called

  // Events: `pending_` until there is a sink, then straight to it, one at a time.
  std::shared_ptr<Sink> sink_;
  std::deque<CmEvent> pending_;
  bool delivering_ = false;

  // Of a listener.
  using Arrivals = software::Arrivals<Connection>;
  Arrivals arrivals_{0};
  bool paused_ = false;  // out of descriptors: tried again after a while
  dev_t file_device_ = 0;
  ino_t file_inode_ = 0;
  void unlink_file();
  // Of such a handshake.
  std::weak_ptr<Connection> listener_;
};

}  // namespace rdmakit::shm
