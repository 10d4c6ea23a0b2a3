#include "ibverbs/connection.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/null_with_errno.h"
#include "ibverbs/iwarp_states.h"
#include "rdmakit/thread.h"

namespace rdmakit::ibverbs {
namespace {

// IB CM reject reason 28: the consumer (the application) refused; anything else is the fabric's own refusal,
// usually 8, "invalid service id": no process listens (IBTA spec, table of CM REJ reasons).
constexpr int kConsumerReject = 28;

// Local ACK timeout 4.096 µs × 2^16 = 268 ms: with 7 retries a silent peer is noticed after about 2 s,
// and a lost packet costs a quarter of a second instead of the 2 s that librdmacm's default makes of it.
constexpr uint8_t kAckTimeout = 16;

// How long the kernel first waits for the answer to its request for the peer's hardware address. It checks
// for the answer once when it sends the request, and again when it is notified of one or its time is over; it
// is not notified of an answer between request and wait (rdma_resolve_ip in drivers/infiniband/core/addr.c).
// So a peer that answers at once would only be found at the deadline.
constexpr std::chrono::milliseconds kFirstPatience{50};

int as_errno(int result) { return result == 0 ? 0 : (errno != 0 ? errno : EIO); }

std::chrono::milliseconds left_until(std::chrono::steady_clock::time_point deadline) {
  return std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
}

uint8_t or_maximum(uint8_t wished, uint8_t maximum) { return wished == 0 ? maximum : wished; }

rdma_conn_param connection_parameters(const ConnectParameters& parameters) {
  rdma_conn_param out{};
  out.private_data = parameters.private_data.empty() ? nullptr : parameters.private_data.data();
  out.private_data_len = static_cast<uint8_t>(parameters.private_data.size());
  out.responder_resources = or_maximum(parameters.responder_resources, RDMA_MAX_RESP_RES);
  out.initiator_depth = or_maximum(parameters.initiator_depth, RDMA_MAX_INIT_DEPTH);
  out.flow_control = 1;
  out.retry_count = 7;
  out.rnr_retry_count = 7;  // 7 = without end: a receiver that is slow is not a broken one
  return out;
}

void deliver(const Libraries& lib, rdma_cm_event* event) {
  const rdma_cm_event_type type = event->event;
  const int status = event->status;
  std::vector<uint8_t> private_data;
  const auto* bytes = static_cast<const uint8_t*>(event->param.conn.private_data);
  switch (type) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
    case RDMA_CM_EVENT_ESTABLISHED:
    case RDMA_CM_EVENT_REJECTED:
      if (bytes != nullptr) private_data.assign(bytes, bytes + event->param.conn.private_data_len);
      break;
    default:
      break;
  }
  rdma_cm_id* target = type == RDMA_CM_EVENT_CONNECT_REQUEST ? event->listen_id : event->id;
  // rdma_destroy_id waits for this event's acknowledgement, so the object behind `context` exists, even if
  // its last reference has just gone.
  auto connection = std::static_pointer_cast<Connection>(
      static_cast<Connection*>(target->context)->weak_from_this().lock());
  std::shared_ptr<Connection> request;
  rdma_cm_id* refused = nullptr;
  if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
    if (connection != nullptr) {
      request = std::make_shared<Connection>(lib, event->id);
      event->id->context = request.get();
    } else {
      refused = event->id;
    }
  }
  lib.ack_cm_event(event);
  if (refused != nullptr) lib.destroy_id(refused);
  if (connection != nullptr) connection->on_event(type, status, std::move(private_data), std::move(request));
}

// librdmacm changes the state of an id's queue pair inside of rdma_get_cm_event(3), and no call of it can
// keep that from being destroyed meanwhile. Of all ids: which one an event is about is not known before. Held
// by the event thread while it gets one, which waits for nothing but the device, and for taking a queue pair
// away from its id.
std::mutex& queue_pairs_of_events() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

bool next_event(const Libraries& lib, rdma_event_channel* channel, rdma_cm_event*& event) {
  const std::lock_guard lock(queue_pairs_of_events());
  return lib.get_cm_event(channel, &event) == 0;
}

void read_events(const Libraries& lib, rdma_event_channel* channel) {
  for (;;) {
    pollfd wait{channel->fd, POLLIN, 0};
    if (::poll(&wait, 1, -1) < 0 && errno != EINTR) return;
    rdma_cm_event* event = nullptr;
    while (next_event(lib, channel, event)) deliver(lib, event);
  }
}

// Lives as long as the process: ids come and go on it. nullptr and errno: ENODEV where there is no
// /dev/infiniband/rdma_cm (rdma_create_event_channel(3)), so no RDMA device with a driver; or why its thread
// cannot be started. The next id tries again.
rdma_event_channel* event_channel(const Libraries& lib) {
  static std::mutex mutex;
  static rdma_event_channel* channel = nullptr;
  static Thread& reader = *new Thread;
  const std::lock_guard lock(mutex);
  if (channel == nullptr) {
    channel = lib.create_event_channel();
    if (channel == nullptr) return null_with_errno(ENODEV);
    fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
  }
  if (!reader.joinable()) {
    errno = reader.start("rdmakit-cm", [&lib, read = channel] { read_events(lib, read); });
    if (errno != 0) return nullptr;
  }
  return channel;
}

}  // namespace

std::shared_ptr<Connection> create_connection(const Libraries& lib) {
  rdma_event_channel* channel = event_channel(lib);
  if (channel == nullptr) return nullptr;
  rdma_cm_id* id = nullptr;
  if (lib.create_id(channel, &id, nullptr, RDMA_PS_TCP) != 0) return nullptr;
  auto connection = std::make_shared<Connection>(lib, id);
  id->context = connection.get();
  return connection;
}

void Connection::set_sink(Sink sink) {
  std::lock_guard lock(sink_mutex_);
  if (closed_) return;
  sink_ = std::move(sink);
  while (sink_ && !waiting_.empty()) {
    sink_(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Connection::emit(CmEvent event) {
  std::lock_guard lock(sink_mutex_);
  if (closed_) return;
  if (sink_) {
    sink_(std::move(event));
  } else {
    waiting_.push_back(std::move(event));
  }
}

int Connection::listen(const sockaddr* address, socklen_t, int backlog) {
  std::lock_guard lock(id_mutex_);
  if (id_ == nullptr) return EINVAL;
  if (int error = as_errno(lib_.bind_addr(id_, const_cast<sockaddr*>(address))); error != 0) return error;
  return as_errno(lib_.listen(id_, backlog));
}

int Connection::resolve(const sockaddr* address, socklen_t length, int timeout_ms) {
  std::lock_guard lock(id_mutex_);
  if (id_ == nullptr || length > sizeof destination_) return EINVAL;
  std::memcpy(&destination_, address, length);
  resolve_deadline_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  patience_ = kFirstPatience;
  return ask_for_address();
}

int Connection::ask_for_address() {
  const auto left = left_until(resolve_deadline_);
  if (left.count() <= 0) return ETIMEDOUT;
  const auto wait = std::min(patience_, left);
  patience_ *= 2;
  return as_errno(lib_.resolve_addr(id_, nullptr, reinterpret_cast<sockaddr*>(&destination_),
                                    static_cast<int>(wait.count())));
}

ibv_context* Connection::context() {
  std::lock_guard lock(id_mutex_);
  return id_ == nullptr ? nullptr : id_->verbs;
}

ibv_qp* Connection::create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  std::lock_guard lock(id_mutex_);
  if (id_ == nullptr) return null_with_errno(EINVAL);
  if (lib_.create_cm_qp(id_, pd, attributes) != 0) return nullptr;
  note_created(id_->qp);
  register_owner(id_->qp, std::static_pointer_cast<Connection>(shared_from_this()));
  return id_->qp;
}

void Connection::destroy_qp() {
  ibv_qp* qp = nullptr;
  {
    std::lock_guard lock(id_mutex_);
    const std::lock_guard events(queue_pairs_of_events());
    if (id_ != nullptr) qp = std::exchange(id_->qp, nullptr);
  }
  // Like rdma_destroy_qp(3), which would also destroy completion queues that it created itself. Outside of
  // the lock, because it may take long, and the event thread, which serves all connections, takes the lock
  // for this one's events.
  if (qp != nullptr) lib_.destroy_qp(qp);
}

void Connection::set_ack_timeout() {
  uint8_t timeout = kAckTimeout;
  // Best effort: old kernels have no such option, iWARP has no such timeout.
  lib_.set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
}

int Connection::connect(const ConnectParameters& parameters) {
  std::lock_guard lock(id_mutex_);
  if (id_ == nullptr || parameters.private_data.size() > 255) return EINVAL;
  set_ack_timeout();
  rdma_conn_param out = connection_parameters(parameters);
  return as_errno(lib_.connect(id_, &out));
}

int Connection::accept(const ConnectParameters& parameters) {
  std::lock_guard lock(id_mutex_);
  if (id_ == nullptr || parameters.private_data.size() > 255) return EINVAL;
  set_ack_timeout();
  rdma_conn_param out = connection_parameters(parameters);
  return as_errno(lib_.accept(id_, &out));
}

int Connection::reject(const std::vector<uint8_t>& private_data) {
  std::lock_guard lock(id_mutex_);
  if (id_ == nullptr || private_data.size() > 255) return EINVAL;
  return as_errno(lib_.reject(id_, private_data.data(), static_cast<uint8_t>(private_data.size())));
}

int Connection::disconnect() {
  std::lock_guard lock(id_mutex_);
  if (id_ == nullptr) return 0;
  return as_errno(lib_.disconnect(id_));
}

sockaddr_storage Connection::local_address() const {
  std::lock_guard lock(id_mutex_);
  return id_ == nullptr ? sockaddr_storage{} : id_->route.addr.src_storage;
}

sockaddr_storage Connection::peer_address() const {
  std::lock_guard lock(id_mutex_);
  return id_ == nullptr ? sockaddr_storage{} : id_->route.addr.dst_storage;
}

void Connection::close() {
  {
    std::lock_guard lock(sink_mutex_);
    if (closed_) return;
    closed_ = true;
    sink_ = nullptr;
    waiting_.clear();
  }
  rdma_cm_id* id = nullptr;
  {
    std::lock_guard lock(id_mutex_);
    id = std::exchange(id_, nullptr);
  }
  // Outside of the lock: it waits until the event thread has acknowledged this id's events, and the
  // event thread may be waiting for the lock.
  if (id != nullptr) lib_.destroy_id(id);
}

void Connection::emit_disconnected(int status) {
  if (disconnected_ || !established_) return;
  disconnected_ = true;
  emit({CmEvent::Type::disconnected, status, {}, nullptr});
}

void Connection::on_event(rdma_cm_event_type type, int status, std::vector<uint8_t> private_data,
                          std::shared_ptr<ConnectionId> request) {
  using Type = CmEvent::Type;
  const int error = status < 0 ? -status : ECONNREFUSED;
  switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED: {
      int failure = 0;
      {
        std::lock_guard lock(id_mutex_);
        if (id_ == nullptr) return;
        const auto left = std::max(left_until(resolve_deadline_), std::chrono::milliseconds(1));
        failure = as_errno(lib_.resolve_route(id_, static_cast<int>(left.count())));
      }
      if (failure != 0) emit({Type::resolve_failed, failure, {}, nullptr});
      return;
    }
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      emit({Type::route_resolved, 0, {}, nullptr});
      return;
    case RDMA_CM_EVENT_ADDR_ERROR:
      if (status == -ETIMEDOUT) {
        int failure = 0;
        {
          std::lock_guard lock(id_mutex_);
          if (id_ != nullptr) failure = ask_for_address();
        }
        if (failure != 0) emit({Type::resolve_failed, failure, {}, nullptr});
        return;
      }
      [[fallthrough]];
    case RDMA_CM_EVENT_ROUTE_ERROR:
      emit({Type::resolve_failed, status < 0 ? -status : EHOSTUNREACH, {}, nullptr});
      return;
    case RDMA_CM_EVENT_CONNECT_REQUEST:
      emit({Type::connect_request, 0, std::move(private_data), std::move(request)});
      return;
    case RDMA_CM_EVENT_ESTABLISHED:
      established_ = true;
      {
        std::lock_guard lock(id_mutex_);
        if (id_ != nullptr && id_->qp != nullptr) note_established(id_->qp);
      }
      emit({Type::established, 0, std::move(private_data), nullptr});
      return;
    case RDMA_CM_EVENT_REJECTED:
      // iWARP reports every refusal as ECONNREFUSED; only an application's carries private data.
      if (status == kConsumerReject || (status < 0 && !private_data.empty())) {
        emit({Type::rejected, ECONNREFUSED, std::move(private_data), nullptr});
      } else {
        emit({Type::connect_failed, ECONNREFUSED, {}, nullptr});
      }
      return;
    case RDMA_CM_EVENT_UNREACHABLE:
      emit({Type::connect_failed, status < 0 ? -status : ETIMEDOUT, {}, nullptr});
      return;
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      emit({Type::connect_failed, error, {}, nullptr});
      return;
    case RDMA_CM_EVENT_DISCONNECTED: {
      {
        // Answers the peer's request and moves the queue pair to ERROR, so that outstanding requests are
        // flushed (rdma_disconnect(3)).
        std::lock_guard lock(id_mutex_);
        if (id_ != nullptr) lib_.disconnect(id_);
        if (id_ != nullptr && id_->qp != nullptr) note_disconnected(id_->qp);
      }
      emit_disconnected(0);
      return;
    }
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      emit_disconnected(ENODEV);
      return;
    default:
      return;
  }
}

}  // namespace rdmakit::ibverbs
