#include "shm/setup/connection.h"

#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "shm/device.h"

namespace rdmakit::shm {

Connection::Connection() : ConnectionOf(ProgressThread::instance(), device_context(), kMaxPrivateData) {}

void Connection::stop_watching() {
  if (socket() >= 0) ProgressThread::instance().unwatch(socket());
}

// The queue pair's area is shown to the peer next: what the peer stores there counts until it hangs up.
void Connection::make_link(UniqueFd socket) {
  link_ = std::make_shared<Link>(std::move(socket), number_);
  queue_pair()->hazard()->shown(link_);
}

// A queue pair that has started ends its link itself, when the peer has cleared its hazard.
void Connection::drop_link() {
  if (link_ != nullptr && !started_) link_->hang_up();
  link_.reset();
}

void Connection::closing() {
  unlink_file();
  // As the kernel does it (rdma_destroy_id(3)), and iwarp: an initiator without an answer learns that it is
  // refused, not that a connection broke.
  if (state_ == State::requested && !answered_) send_rejection({});
}

void Connection::release() {
  stop_watching();
  socket_.reset();
  drop_link();
  request_.reset();
}

int Connection::resolve(const sockaddr* address, socklen_t length, int timeout_ms) {
  if (length < sizeof(sa_family_t) || address->sa_family != AF_UNIX) return EAFNOSUPPORT;
  // Abstract names have no file, hence no permissions.
  if (length <= offsetof(sockaddr_un, sun_path) || length > sizeof(sockaddr_un) ||
      reinterpret_cast<const sockaddr_un*>(address)->sun_path[0] == 0) {
    return EINVAL;
  }
  return resolve_to(address, length, timeout_ms);
}

void Connection::forget_qp(ibv_qp* queue_pair) {
  const std::lock_guard lock(mutex_);
  if (queue_pair_ != queue_pair) return;
  hazard_ = this->queue_pair()->hazard();
  queue_pair_ = nullptr;
}

bool Connection::settled() {
  const std::lock_guard lock(mutex_);
  if (hazard_ != nullptr && !hazard_->holds_anything()) hazard_.reset();
  return hazard_ == nullptr;
}

void Connection::queue_pair_ended(std::weak_ptr<Connection> id, int status) {
  tell_over(ProgressThread::instance(), std::move(id), status);
}

void Connection::queue_pair_over(int status, Events& events) {
  const bool established = state_ == State::established;
  if (!established && state_ != State::completing) return;
  enter(State::ended);
  stop_watching();
  events.push_back({established ? CmEvent::Type::disconnected : CmEvent::Type::connect_failed,
                    established || status != 0 ? status : ECONNABORTED,
                    {},
                    nullptr});
}

void Connection::socket_ready(Events& events) {
  if (state_ == State::completing || state_ == State::established) {
    read_frames(events);
  } else {
    stop_watching();
  }
}

void Connection::on_deadline() {
  {
    const std::lock_guard lock(mutex_);
    if (link_ != nullptr) link_->flush();
    if (queue_pair_ != nullptr) queue_pair()->progress();
  }
  ConnectionBase::on_deadline();
}

// The listener's backlog was full.
void Connection::deadline_over(Events& events) {
  if (state_ != State::connecting) return;
  deadline_ = ProgressThread::Clock::time_point::max();
  start_connect(events);
}

}  // namespace rdmakit::shm
