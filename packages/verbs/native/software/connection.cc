#include "software/connection.h"

#include <cerrno>
#include <cstring>

namespace rdmakit::software {

ConnectionBase::ConnectionBase(ProgressThread& thread, ibv_context* device, size_t max_private_data)
    : thread_(thread), device_(device), max_private_data_(max_private_data) {}

ConnectionBase::~ConnectionBase() { thread_.forget(number_); }

void ConnectionBase::enroll() {
  number_ = thread_.enroll(std::static_pointer_cast<ConnectionBase>(shared_from_this()));
}

// --- Events. emit and deliver_pending run on the progress thread only, without mutex_.

void ConnectionBase::emit(Events&& events) {
  if (events.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    for (CmEvent& event : events) pending_.push_back(std::move(event));
  }
  deliver_pending();
}

void ConnectionBase::deliver_pending() {
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

void ConnectionBase::set_sink(Sink sink) {
  std::shared_ptr<Sink> replaced;  // destroyed after the lock is released: it may own anything
  {
    std::unique_lock lock(mutex_);
    if (state_ == State::closed) return;
    replaced = std::exchange(sink_, std::make_shared<Sink>(std::move(sink)));
    // It may be running, and what it uses goes when this returns.
    if (!thread_.on_this_thread()) delivered_.wait(lock, [&] { return !delivering_; });
  }
  thread_.post([weak = weak_from_this()] {
    if (const auto self = std::static_pointer_cast<ConnectionBase>(weak.lock())) self->deliver_pending();
  });
}

bool ConnectionBase::closes_at_once() {
  const std::lock_guard lock(mutex_);
  if (had_queue_pair_) return false;
  return state_ == State::listening || state_ == State::requested || state_ == State::ended;
}

void ConnectionBase::close() {
  std::shared_ptr<Sink> sink;  // destroyed after the lock is released: it may own anything
  std::deque<CmEvent> pending;
  std::vector<std::shared_ptr<ConnectionBase>> silent;
  std::unique_lock lock(mutex_);
  if (state_ != State::closed) {
    if (queue_pair_ != nullptr) end_queue_pair();
    closing();
    enter(State::closed);
    release();
    pending.swap(pending_);
    silent = arrivals_.end();
    sink.swap(sink_);
  }
  if (!thread_.on_this_thread()) delivered_.wait(lock, [&] { return !delivering_; });
  lock.unlock();
  for (const auto& id : silent) id->close();
}

// --- The calls of an application.

ibv_context* ConnectionBase::context() {
  const std::lock_guard lock(mutex_);
  return state_ == State::idle || state_ == State::listening ? nullptr : device_;
}

int ConnectionBase::resolve_to(const sockaddr* address, socklen_t length, int timeout_ms) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::idle) return EINVAL;
    std::memcpy(&peer_, address, length);
    peer_length_ = length;
    timeout_ms_ = timeout_ms;
    enter(State::resolved);
  }
  thread_.post([weak = weak_from_this()] {
    const auto self = std::static_pointer_cast<ConnectionBase>(weak.lock());
    if (self == nullptr) return;
    Events events;
    events.push_back({CmEvent::Type::route_resolved, 0, {}, nullptr});
    self->emit(std::move(events));
  });
  return 0;
}

ibv_qp* ConnectionBase::create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  const std::lock_guard lock(mutex_);
  if ((state_ != State::resolved && state_ != State::requested) || queue_pair_ != nullptr) {
    errno = EINVAL;
    return nullptr;
  }
  queue_pair_ = make_queue_pair(pd, attributes);
  if (queue_pair_ != nullptr) had_queue_pair_ = true;
  return queue_pair_;
}

void ConnectionBase::forget_qp(ibv_qp* queue_pair) {
  const std::lock_guard lock(mutex_);
  if (queue_pair_ == queue_pair) queue_pair_ = nullptr;
}

void ConnectionBase::tell_over(ProgressThread& thread, std::weak_ptr<ConnectionBase> id, int status) {
  if (id.expired()) return;
  thread.post([id = std::move(id), status] {
    const auto self = id.lock();
    if (self == nullptr) return;
    Events events;
    {
      const std::lock_guard lock(self->mutex_);
      self->queue_pair_over(status, events);
    }
    self->emit(std::move(events));
  });
}

void ConnectionBase::later(void (ConnectionBase::*step)(Events&)) {
  thread_.post([weak = weak_from_this(), step] {
    const auto self = std::static_pointer_cast<ConnectionBase>(weak.lock());
    if (self == nullptr) return;
    Events events;
    {
      const std::lock_guard lock(self->mutex_);
      if (self->state_ != State::closed) (self.get()->*step)(events);
    }
    self->emit(std::move(events));
  });
}

int ConnectionBase::connect(const ConnectParameters& parameters) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::resolved) return EINVAL;
  const int error = take_parameters(parameters);
  if (error != 0) return error;
  enter(State::connecting);
  later(&ConnectionBase::start_connect);
  return 0;
}

int ConnectionBase::accept(const ConnectParameters& parameters) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::requested || answered_) return EINVAL;
  const int error = take_parameters(parameters);
  if (error != 0) return error;
  answered_ = true;
  later(&ConnectionBase::finish_accept);
  return 0;
}

int ConnectionBase::reject(const std::vector<uint8_t>& private_data) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::requested || answered_ || private_data.size() > max_private_data_) return EINVAL;
  answered_ = true;
  send_rejection(private_data);
  release();
  enter(State::ended);
  return 0;
}

int ConnectionBase::disconnect() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::ended) return 0;
  if (state_ != State::established) return ENOTCONN;
  if (queue_pair_ != nullptr) end_queue_pair();
  return 0;
}

sockaddr_storage ConnectionBase::local_address() const {
  const std::lock_guard lock(mutex_);
  return local_;
}

sockaddr_storage ConnectionBase::peer_address() const {
  const std::lock_guard lock(mutex_);
  return peer_;
}

int ConnectionBase::take_parameters(const ConnectParameters& parameters) {
  if (parameters.private_data.size() > max_private_data_) return EINVAL;
  if (parameters.qp == nullptr || parameters.qp != queue_pair_) return EINVAL;
  private_data_ = parameters.private_data;
  return 0;
}

// --- The progress thread's calls.

void ConnectionBase::on_ready() {
  Events events;
  {
    std::unique_lock lock(mutex_);
    switch (state_) {
      case State::listening:
        lock.unlock();
        if (const int error = accept_sockets(); error != 0)
          events.push_back({CmEvent::Type::accept_stalled, error, {}, nullptr});
        emit(std::move(events));
        return;
      case State::await_reply:
        read_reply(events);
        break;
      case State::await_request: {
        const std::shared_ptr<ConnectionBase> listener = listener_.lock();
        read_request();
        const bool over = state_ != State::await_request;
        const bool whole = state_ == State::requested;
        lock.unlock();
        if (over && listener != nullptr) listener->handshake_over(*this, whole);
        return;
      }
      case State::requested:
        // The initiator has nothing to say before our reply, so this is its end.
        release();
        break;
      default:
        socket_ready(events);
        break;
    }
  }
  emit(std::move(events));
}

void ConnectionBase::on_deadline() {
  Events events;
  std::shared_ptr<ConnectionBase> listener;
  {
    const std::lock_guard lock(mutex_);
    if (paused_ && state_ == State::listening) {
      paused_ = false;
      if (resume_accepting() != 0) pause_accepting();
      return;
    }
    if (deadline_ > ProgressThread::Clock::now()) return;
    switch (state_) {
      case State::await_reply:
      case State::completing:
        fail(ETIMEDOUT, events);
        break;
      case State::await_request:
        listener = listener_.lock();
        release();
        enter(State::ended);
        break;
      default:
        deadline_over(events);
        break;
    }
  }
  if (listener != nullptr) listener->handshake_over(*this, false);
  emit(std::move(events));
}

// A peer's deadline ends with the states that wait for the peer. What an established connection has one for
// is its provider's.
void ConnectionBase::enter(State state) {
  state_ = state;
  switch (state) {
    case State::connecting:
    case State::await_reply:
    case State::completing:
    case State::await_request:
      break;
    default:
      clear_deadline();
  }
}

void ConnectionBase::set_deadline(std::chrono::milliseconds timeout) {
  clear_deadline();
  deadline_ = ProgressThread::Clock::now() + timeout;
  thread_.call_at(number_, deadline_);
}

void ConnectionBase::clear_deadline() {
  if (deadline_ == ProgressThread::Clock::time_point::max()) return;
  thread_.call_off(number_, deadline_);
  deadline_ = ProgressThread::Clock::time_point::max();
}

// --- A listener's.

void ConnectionBase::pause_accepting() {
  paused_ = true;
  thread_.call_at(number_, ProgressThread::Clock::now() + kAcceptPause);
}

void ConnectionBase::await_request_of(const std::shared_ptr<ConnectionBase>& id,
                                      std::chrono::milliseconds timeout) {
  id->listener_ = std::static_pointer_cast<ConnectionBase>(shared_from_this());
  id->enter(State::await_request);
  id->set_deadline(timeout);
  arrivals_.enter(id);
}

// `id` has shown a whole request, or has failed to.
void ConnectionBase::handshake_over(ConnectionBase& id, bool whole) {
  Events events;
  std::shared_ptr<ConnectionBase> kept;
  {
    const std::lock_guard lock(mutex_);
    kept = whole ? arrivals_.shown(id) : arrivals_.leave(id);
    if (kept == nullptr) return;
    if (whole) {
      std::vector<uint8_t> private_data;
      {
        const std::lock_guard id_lock(kept->mutex_);
        private_data = kept->take_private_data();
      }
      events.push_back({CmEvent::Type::connect_request, 0, std::move(private_data), kept});
    }
  }
  emit(std::move(events));
}

bool ConnectionBase::arriving() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::await_request || (state_ == State::requested && !answered_ && socket_);
}

// A request that the application has not answered is then one whose peer has gone.
void ConnectionBase::give_way() {
  const std::lock_guard lock(mutex_);
  release();
  if (state_ == State::await_request) enter(State::ended);
}

}  // namespace rdmakit::software
