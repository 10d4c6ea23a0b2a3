#include "iwarp/setup/connection.h"

#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "iwarp/device.h"
#include "iwarp/queue-pair/queue_pair.h"

namespace rdmakit::iwarp {

Connection::Connection()
    : ConnectionOf(ProgressThread::instance(), device_context(), kMpaMaxPrivateData - kMpaEnhancedLength) {}

void Connection::closing() {
  // An initiator without an answer takes this for a responder of revision 1, and asks again. In this state
  // none has been sent, even if accept was called: the progress thread was to send it.
  if (state_ == State::requested) send_rejection({});
}

int Connection::resolve(const sockaddr* address, socklen_t length, int timeout_ms) {
  const bool ipv4 = length >= sizeof(sockaddr_in) && address->sa_family == AF_INET;
  const bool ipv6 = length >= sizeof(sockaddr_in6) && address->sa_family == AF_INET6;
  if (!ipv4 && !ipv6) return EAFNOSUPPORT;
  return resolve_to(address, ipv4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6), timeout_ms);
}

void Connection::add_alternative(const sockaddr* address, socklen_t length) {
  sockaddr_storage copy{};
  if (length > sizeof copy) return;
  std::memcpy(&copy, address, length);
  const std::lock_guard lock(mutex_);
  alternatives_.emplace_back(copy, length);
}

void Connection::queue_pair_ended(std::weak_ptr<Connection> id, int status) {
  tell_over(ProgressThread::instance(), std::move(id), status);
}

void Connection::queue_pair_over(int status, Events& events) {
  if (state_ != State::established) return;
  enter(State::ended);
  events.push_back({CmEvent::Type::disconnected, status, {}, nullptr});
}

int Connection::take_parameters(const ConnectParameters& parameters) {
  const auto depth = [](uint8_t wanted) {
    return wanted == 0 ? kMaxReadDepth : std::min<uint32_t>(wanted, kMaxReadDepth);
  };
  if (const int error = ConnectionBase::take_parameters(parameters); error != 0) return error;
  inbound_reads_ = depth(parameters.responder_resources);
  outbound_reads_ = depth(parameters.initiator_depth);
  return 0;
}

void Connection::socket_ready(Events& events) {
  if (state_ == State::connecting) {
    tcp_connected(events);
  } else if (state_ == State::completing) {
    read_first_fpdu(events);
  }
}

// An established connection has a deadline for the next look at its host.
void Connection::deadline_over(Events& events) {
  if (state_ == State::connecting) {
    address_failed(ETIMEDOUT, events);
  } else if (state_ == State::established && queue_pair_ != nullptr && queue_pair()->look_at_host()) {
    set_deadline(queue_pair()->look_interval());
  }
}

}  // namespace rdmakit::iwarp
