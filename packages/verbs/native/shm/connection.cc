#include "shm/connection.h"

#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shm/device.h"

namespace rdmakit::shm {

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
    unlink_file();
    enter(State::closed);
    stop_watching();
    socket_.reset();
    link_.reset();
    request_.reset();
    pending.swap(pending_);
    silent = arrivals_.end();
    sink.swap(sink_);
  }
  if (!ProgressThread::instance().on_this_thread()) delivered_.wait(lock, [&] { return !delivering_; });
  lock.unlock();
  for (const auto& id : silent) id->close();
}

void Connection::stop_watching() {
  if (socket() >= 0) ProgressThread::instance().unwatch(socket());
}

// --- The calls of an application.

ibv_context* Connection::context() {
  const std::lock_guard lock(mutex_);
  return state_ == State::idle || state_ == State::listening ? nullptr : device_context();
}

int Connection::resolve(const sockaddr* address, socklen_t length, int timeout_ms) {
  if (length < sizeof(sa_family_t) || address->sa_family != AF_UNIX) return EAFNOSUPPORT;
  // Abstract names have no file, hence no permissions.
  if (length <= offsetof(sockaddr_un, sun_path) || length > sizeof(sockaddr_un) ||
      reinterpret_cast<const sockaddr_un*>(address)->sun_path[0] == 0) {
    return EINVAL;
  }
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::idle) return EINVAL;
    std::memcpy(&peer_, address, length);
    peer_length_ = length;
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
  if (queue_pair_ != queue_pair) return;
  hazard_ = queue_pair->hazard();
  queue_pair_ = nullptr;
}

bool Connection::settled() {
  const std::lock_guard lock(mutex_);
  if (hazard_ != nullptr && !hazard_->holds_anything()) hazard_.reset();
  return hazard_ == nullptr;
}

void Connection::queue_pair_ended(std::weak_ptr<Connection> id, int status) {
  ProgressThread::instance().post([id = std::move(id), status] {
    const auto self = id.lock();
    if (self == nullptr) return;
    Events events;
    {
      const std::lock_guard lock(self->mutex_);
      const bool established = self->state_ == State::established;
      if (!established && self->state_ != State::await_segments) return;
      self->enter(State::ended);
      self->stop_watching();
      events.push_back({established ? CmEvent::Type::disconnected : CmEvent::Type::connect_failed,
                        established || status != 0 ? status : ECONNABORTED,
                        {},
                        nullptr});
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
  if (state_ != State::requested || answered_ || private_data.size() > kMaxPrivateData) return EINVAL;
  answered_ = true;
  private_data_ = private_data;
  send_greeting(FrameType::reject, 0);
  stop_watching();
  socket_.reset();
  request_.reset();
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
  if (parameters.private_data.size() > kMaxPrivateData) return EINVAL;
  if (parameters.qp == nullptr || parameters.qp != queue_pair_) return EINVAL;
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
        stop_watching();
        socket_.reset();
        request_.reset();
        break;
      case State::await_segments:
      case State::established:
        read_frames(events);
        break;
      default:
        stop_watching();
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
    if (link_ != nullptr) link_->flush();
    if (queue_pair_ != nullptr) queue_pair_->progress();
    if (paused_ && state_ == State::listening) {
      paused_ = false;
      ProgressThread::instance().watch(number_, socket_.get());
      return;
    }
    if (deadline_ > ProgressThread::Clock::now()) return;
    switch (state_) {
      case State::connecting:
        deadline_ = ProgressThread::Clock::time_point::max();
        start_connect(events);
        break;
      case State::await_reply:
      case State::await_segments:
        fail(ETIMEDOUT, events);
        break;
      case State::await_request:
        listener = listener_.lock();
        stop_watching();
        socket_.reset();
        enter(State::ended);
        break;
      default:
        return;
    }
  }
  if (listener != nullptr) listener->handshake_over(*this, false);
  emit(std::move(events));
}

// A peer's deadline ends with the states that wait for the peer.
void Connection::enter(State state) {
  state_ = state;
  switch (state) {
    case State::connecting:
    case State::await_reply:
    case State::await_segments:
    case State::await_request:
      break;
    default:
      clear_deadline();
  }
}

void Connection::set_deadline(int timeout_ms) {
  clear_deadline();
  deadline_ = ProgressThread::Clock::now() + std::chrono::milliseconds(timeout_ms);
  ProgressThread::instance().call_at(number_, deadline_);
}

void Connection::clear_deadline() {
  if (deadline_ == ProgressThread::Clock::time_point::max()) return;
  ProgressThread::instance().call_off(number_, deadline_);
  deadline_ = ProgressThread::Clock::time_point::max();
}

}  // namespace rdmakit::shm
