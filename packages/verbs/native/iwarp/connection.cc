#include "iwarp/connection.h"

#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "iwarp/device.h"
#include "iwarp/queue_pair.h"

namespace rdmakit::iwarp {
std::shared_ptr<Connection> Connection::create() {
  const std::shared_ptr<Connection> connection(std::unique_ptr<Connection>(new Connection).release());
  connection->number_ = ProgressThread::instance().enroll(
      std::weak_ptr<ProgressThread::Client>(std::static_pointer_cast<ProgressThread::Client>(connection)));
  return connection;
}

Connection::~Connection() {
  close();
  ProgressThread::instance().forget(number_);
}

// --- Events. emit and deliver_pending run on the progress thread only, without mutex_.

void Connection::emit(Events&& events) {
  if (events.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    for (CmEvent& event : events) pending_.push_back(std::move(event));
  }
  deliver_pending();
}

void Connection::deliver_pending() {
  const std::shared_ptr<ConnectionId> alive = shared_from_this();
  std::unique_lock lock(mutex_);
  while (sink_ != nullptr && !pending_.empty() && state_ != State::closed) {
    CmEvent event = std::move(pending_.front());
    pending_.pop_front();
    const std::shared_ptr<Sink> sink = sink_;
    delivering_ = true;
    lock.unlock();
    (*sink)(std::move(event));
    lock.lock();
    delivering_ = false;
    delivered_.notify_all();
  }
}

void Connection::set_sink(Sink sink) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::closed) return;
    sink_ = std::make_shared<Sink>(std::move(sink));
  }
  ProgressThread::instance().post([weak = weak_from_this()] {
    if (const auto self = std::static_pointer_cast<Connection>(weak.lock())) self->deliver_pending();
  });
}

bool Connection::closes_at_once() {
  const std::lock_guard lock(mutex_);
  return state_ == State::listening;
}

void Connection::close() {
  std::shared_ptr<Sink> sink;  // destroyed after the lock is released: it may own anything
  std::deque<CmEvent> pending;
  std::vector<std::shared_ptr<Connection>> silent;
  std::unique_lock lock(mutex_);
  if (state_ != State::closed) {
    if (queue_pair_ != nullptr) queue_pair_->fail(Failure{});
    // An initiator that is told nothing takes this for a responder of revision 1, and asks again.
    if (state_ == State::requested && !answered_) send_rejection({});
    enter(State::closed);
    socket_.reset();
    pending.swap(pending_);
    silent = arrivals_.end();
    sink.swap(sink_);
  }
  if (!ProgressThread::instance().on_this_thread()) delivered_.wait(lock, [&] { return !delivering_; });
  lock.unlock();
  for (const auto& id : silent) id->close();
}

// --- The calls of an application.

ibv_context* Connection::context() {
  const std::lock_guard lock(mutex_);
  return state_ == State::idle || state_ == State::listening ? nullptr : device_context();
}

int Connection::resolve(const sockaddr* address, socklen_t length, int timeout_ms) {
  const bool ipv4 = length >= sizeof(sockaddr_in) && address->sa_family == AF_INET;
  const bool ipv6 = length >= sizeof(sockaddr_in6) && address->sa_family == AF_INET6;
  if (!ipv4 && !ipv6) return EAFNOSUPPORT;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::idle) return EINVAL;
    peer_length_ = ipv4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&peer_, address, peer_length_);
    timeout_ms_ = timeout_ms;
    enter(State::resolved);
  }
  ProgressThread::instance().post([weak = weak_from_this()] {
    const auto self = std::static_pointer_cast<Connection>(weak.lock());
    if (self == nullptr) return;
    Events events;
    events.push_back({CmEvent::Type::route_resolved, 0, {}, nullptr});
    self->emit(std::move(events));
  });
  return 0;
}

void Connection::add_alternative(const sockaddr* address, socklen_t length) {
  sockaddr_storage copy{};
  if (length > sizeof copy) return;
  std::memcpy(&copy, address, length);
  const std::lock_guard lock(mutex_);
  alternatives_.emplace_back(copy, length);
}

ibv_qp* Connection::create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  const std::lock_guard lock(mutex_);
  if ((state_ != State::resolved && state_ != State::requested) || queue_pair_ != nullptr) {
    errno = EINVAL;
    return nullptr;
  }
  std::unique_ptr<QueuePair> made = QueuePair::create(pd, attributes);
  if (made == nullptr) return nullptr;
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  made->modify(&init, IBV_QP_STATE);
  queue_pair_ = made.release();
  queue_pair_->set_connection(std::static_pointer_cast<Connection>(shared_from_this()));
  return queue_pair_;
}

void Connection::forget_qp(QueuePair* queue_pair) {
  const std::lock_guard lock(mutex_);
  if (queue_pair_ == queue_pair) queue_pair_ = nullptr;
}

void Connection::queue_pair_ended(std::weak_ptr<Connection> id, int status) {
  if (id.expired()) return;
  ProgressThread::instance().post([id = std::move(id), status] {
    const auto self = id.lock();
    if (self == nullptr) return;
    Events events;
    {
      const std::lock_guard lock(self->mutex_);
      if (self->state_ != State::established) return;
      self->enter(State::ended);
      events.push_back({CmEvent::Type::disconnected, status, {}, nullptr});
    }
    self->emit(std::move(events));
  });
}

void Connection::later(void (Connection::*step)(Events&)) {
  ProgressThread::instance().post([weak = weak_from_this(), step] {
    const auto self = std::static_pointer_cast<Connection>(weak.lock());
    if (self == nullptr) return;
    Events events;
    {
      const std::lock_guard lock(self->mutex_);
      if (self->state_ != State::closed) (self.get()->*step)(events);
    }
    self->emit(std::move(events));
  });
}

int Connection::connect(const ConnectParameters& parameters) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::resolved) return EINVAL;
  const int error = take_parameters(parameters);
  if (error != 0) return error;
  enter(State::connecting);
  later(&Connection::start_connect);
  return 0;
}

int Connection::accept(const ConnectParameters& parameters) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::requested || answered_) return EINVAL;
  const int error = take_parameters(parameters);
  if (error != 0) return error;
  answered_ = true;
  later(&Connection::finish_accept);
  return 0;
}

int Connection::reject(const std::vector<uint8_t>& private_data) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::requested || answered_) return EINVAL;
  if (private_data.size() > kMpaMaxPrivateData - kMpaEnhancedLength) return EINVAL;
  answered_ = true;
  send_rejection(private_data);
  socket_.reset();
  enter(State::ended);
  return 0;
}

int Connection::disconnect() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::ended) return 0;
  if (state_ != State::established) return ENOTCONN;
  if (queue_pair_ != nullptr) queue_pair_->fail(Failure{});
  return 0;
}

sockaddr_storage Connection::local_address() const {
  const std::lock_guard lock(mutex_);
  return local_;
}

sockaddr_storage Connection::peer_address() const {
  const std::lock_guard lock(mutex_);
  return peer_;
}

int Connection::take_parameters(const ConnectParameters& parameters) {
  if (parameters.private_data.size() > kMpaMaxPrivateData - kMpaEnhancedLength) return EINVAL;
  if (parameters.qp == nullptr || parameters.qp != queue_pair_) return EINVAL;
  const auto depth = [](uint8_t wanted) {
    return wanted == 0 ? kMaxReadDepth : std::min<uint32_t>(wanted, kMaxReadDepth);
  };
  inbound_reads_ = depth(parameters.responder_resources);
  outbound_reads_ = depth(parameters.initiator_depth);
  private_data_ = parameters.private_data;
  return 0;
}

// --- The progress thread's calls.

void Connection::on_ready() {
  Events events;
  {
    std::unique_lock lock(mutex_);
    switch (state_) {
      case State::listening:
        lock.unlock();
        accept_sockets();
        return;
      case State::connecting:
        tcp_connected(events);
        break;
      case State::await_reply:
        read_reply(events);
        break;
      case State::await_request: {
        const std::shared_ptr<Connection> listener = listener_.lock();
        read_request();
        const bool over = state_ != State::await_request;
        const bool whole = state_ == State::requested;
        lock.unlock();
        if (over && listener != nullptr) listener->handshake_over(*this, whole);
        return;
      }
      case State::requested:
        // The initiator has nothing to say before our reply, so this is its end.
        socket_.reset();
        break;
      case State::await_rtr:
        read_first_fpdu(events);
        break;
      default:
        break;
    }
  }
  emit(std::move(events));
}

void Connection::on_deadline() {
  Events events;
  std::shared_ptr<Connection> listener;
  {
    const std::lock_guard lock(mutex_);
    if (paused_ && state_ == State::listening) {
      paused_ = false;
      ProgressThread::instance().change(number_, socket_.get(), EPOLLIN);
      return;
    }
    if (deadline_ > ProgressThread::Clock::now()) return;
    switch (state_) {
      case State::connecting:
        address_failed(ETIMEDOUT, events);
        break;
      case State::await_reply:
      case State::await_rtr:
        fail(ETIMEDOUT, events);
        break;
      case State::await_request:
        listener = listener_.lock();
        socket_.reset();
        enter(State::ended);
        break;
      case State::established:
        if (queue_pair_ == nullptr || !queue_pair_->look_at_host()) return;
        set_deadline(queue_pair_->look_interval());
        return;
      default:
        return;
    }
  }
  if (listener != nullptr) listener->handshake_over(*this, false);
  emit(std::move(events));
}

// A peer's deadline ends with the states that wait for the peer. An established connection has one for the
// next look at its host.
void Connection::enter(State state) {
  state_ = state;
  switch (state) {
    case State::connecting:
    case State::await_reply:
    case State::await_rtr:
    case State::await_request:
      break;
    default:
      clear_deadline();
  }
}

void Connection::set_deadline(std::chrono::milliseconds timeout) {
  clear_deadline();
  deadline_ = ProgressThread::Clock::now() + timeout;
  ProgressThread::instance().call_at(number_, deadline_);
}

void Connection::clear_deadline() {
  if (deadline_ == ProgressThread::Clock::time_point::max()) return;
  ProgressThread::instance().call_off(number_, deadline_);
  deadline_ = ProgressThread::Clock::time_point::max();
}

}  // namespace rdmakit::iwarp
