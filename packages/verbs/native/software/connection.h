// The common part of the ConnectionIds of the software providers: states, events to the application,
// deadlines, and the places of a listener. The setup protocol differs per provider.
//
//   resolve ──► resolved ──connect──► connecting ──► await_reply ──────────────► (completing) ──► established
//   listener ─accept(2)─► await_request ──► requested ──accept──► (completing) ──► established
//
// All of setup happens on the progress thread; calls on other threads validate, record the request, and leave
// the rest to it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/unique_fd.h"
#include "provider/provider.h"
#include "software/arrivals.h"
#include "software/progress_thread.h"

namespace rdmakit::software {

class ConnectionBase : public ConnectionId, public ProgressThread::Client {
 public:
  void set_sink(Sink sink) final;
  ibv_context* context() final;
  ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) final;
  int connect(const ConnectParameters& parameters) final;
  int accept(const ConnectParameters& parameters) final;
  int reject(const std::vector<uint8_t>& private_data) final;
  int disconnect() final;
  sockaddr_storage local_address() const final;
  sockaddr_storage peer_address() const final;
  void close() final;
  bool closes_at_once() final;

  void on_ready() final;
  void on_deadline() override;

  // Called by destroy_qp.
  virtual void forget_qp(ibv_qp* queue_pair);

  // Its listener's (software/arrivals.h), on the progress thread.
  bool arriving() const;
  void give_way();

 protected:
  enum class State : uint8_t {
    idle,
    listening,
    resolved,
    connecting,
    await_reply,
    await_request,
    requested,
    completing,  // the rest is up to the peer
    established,
    ended,  // failed, rejected or disconnected
    closed,
  };
  using Events = std::vector<CmEvent>;
  static constexpr int kAcceptedAtOnce = 64;  // then others have their turn
  static constexpr std::chrono::milliseconds kAcceptPause{100};

  ConnectionBase(ProgressThread& thread, ibv_context* device, size_t max_private_data);
  ~ConnectionBase() override;
  // To be called once, of an id that has its owner.
  void enroll();

  // --- Each provider's own. Under mutex_, but for accept_sockets; on the progress thread where Events are.

  // In INIT, and it knows this id. Null and errno.
  virtual ibv_qp* make_queue_pair(ibv_pd* pd, ibv_qp_init_attr* attributes) = 0;
  // An orderly disconnect.
  virtual void end_queue_pair() = 0;
  // The id is closed next.
  virtual void closing() = 0;
  // Gives back the socket and what came through it.
  virtual void release() = 0;
  // 0 or an errno value.
  virtual int take_parameters(const ConnectParameters& parameters);
  virtual void start_connect(Events& events) = 0;
  virtual void finish_accept(Events& events) = 0;
  virtual void send_rejection(const std::vector<uint8_t>& private_data) = 0;
  virtual void fail(int status, Events& events) = 0;
  // The established connection is over, or one that is completing.
  virtual void queue_pair_over(int status, Events& events) = 0;
  virtual void read_reply(Events& events) = 0;
  // Leaves `await_request` when a whole request is there (`requested`), or none will come (`ended`).
  virtual void read_request() = 0;
  // The private data of the request.
  virtual std::vector<uint8_t> take_private_data() = 0;
  // 0, or the errno value for which connections must wait.
  virtual int accept_sockets() = 0;
  // Likewise, while the listener cannot be watched again.
  virtual int resume_accepting() = 0;
  // In any other state.
  virtual void socket_ready(Events& events) = 0;
  virtual void deadline_over(Events& events) = 0;

  // --- Shared.

  // On the progress thread, without mutex_.
  void emit(Events&& events);
  void enter(State state);
  void set_deadline(std::chrono::milliseconds timeout);
  void clear_deadline();
  // The address is a good one.
  int resolve_to(const sockaddr* address, socklen_t length, int timeout_ms);
  // Takes no lock and no reference: the caller may hold the queue pair's locks.
  static void tell_over(ProgressThread& thread, std::weak_ptr<ConnectionBase> id, int status);
  // `id` has its socket: its request is awaited. Under the mutexes of both.
  void await_request_of(const std::shared_ptr<ConnectionBase>& id, std::chrono::milliseconds timeout);
  // There is nothing to accept with: tried again after a while.
  void pause_accepting();

  mutable std::mutex mutex_;
  std::condition_variable delivered_;
  State state_ = State::idle;
  uint64_t number_ = 0;
  UniqueFd socket_;
  sockaddr_storage local_{};
  sockaddr_storage peer_{};
  socklen_t peer_length_ = 0;
  int timeout_ms_ = 0;
  ProgressThread::Clock::time_point deadline_ = ProgressThread::Clock::time_point::max();
  ibv_qp* queue_pair_ = nullptr;
  bool had_queue_pair_ = false;
  std::vector<uint8_t> private_data_;  // to the peer
  bool answered_ = false;              // accept or reject was called

  // For a listener.
  Arrivals<ConnectionBase> arrivals_{0};
  bool paused_ = false;  // out of descriptors: tried again after a while

 private:
  void deliver_pending();
  // Runs `step` on the progress thread under mutex_, then emits the events in its argument.
  void later(void (ConnectionBase::*step)(Events&));
  void handshake_over(ConnectionBase& id, bool whole);

  ProgressThread& thread_;
  ibv_context* const device_;
  const size_t max_private_data_;

  // Events: `pending_` until there is a sink, then straight to it, one at a time.
  std::shared_ptr<Sink> sink_;
  std::deque<CmEvent> pending_;
  bool delivering_ = false;

  // For a handshake that a listener has accepted.
  std::weak_ptr<ConnectionBase> listener_;
};

// What differs between providers by its types alone. `Own`: the provider's connection, which befriends this.
template <typename Own, typename QueuePair>
class ConnectionOf : public ConnectionBase {
 public:
  static std::shared_ptr<Own> create() {
    const std::shared_ptr<Own> connection(std::unique_ptr<Own>(new Own).release());
    connection->enroll();
    return connection;
  }

 protected:
  using ConnectionBase::ConnectionBase;
  QueuePair* queue_pair() const { return static_cast<QueuePair*>(queue_pair_); }

 private:
  ibv_qp* make_queue_pair(ibv_pd* pd, ibv_qp_init_attr* attributes) override {
    std::unique_ptr<QueuePair> made = QueuePair::create(pd, attributes);
    if (made == nullptr) return nullptr;
    ibv_qp_attr init{};
    init.qp_state = IBV_QPS_INIT;
    made->modify(&init, IBV_QP_STATE);
    made->set_connection(std::static_pointer_cast<Own>(shared_from_this()));
    return made.release();
  }
  void end_queue_pair() override { queue_pair()->fail({}); }
};

}  // namespace rdmakit::software
