#include "ibverbs/async_events.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <cerrno>

#include "base/epoll.h"
#include "ibverbs/shared_receive_queues.h"

namespace rdmakit::ibverbs {
namespace {

uint64_t element_of(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return reinterpret_cast<uint64_t>(event.element.cq);
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return reinterpret_cast<uint64_t>(event.element.qp);
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return reinterpret_cast<uint64_t>(event.element.srq);
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      return static_cast<uint64_t>(event.element.port_num);
    default:
      return 0;
  }
}

}  // namespace

int AsyncEvents::start() {
  if (epoll_ < 0) epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return errno;
  return reader_.joinable() ? 0 : reader_.start("rdmakit-async", [this] { run(); });
}

uint64_t AsyncEvents::watch(ibv_context* context, Provider::AsyncSink sink) {
  const std::lock_guard lock(mutex_);
  if (const int error = start(); error != 0) {
    errno = error;
    return 0;
  }
  if (!watched_.contains(context)) {
    fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
    if (epoll_watch(epoll_, EPOLL_CTL_ADD, context->async_fd, EPOLLIN, {.ptr = context}) != 0) return 0;
  }
  watched_[context].emplace(++last_token_, std::move(sink));
  return last_token_;
}

void AsyncEvents::unwatch(ibv_context* context, uint64_t token) {
  const std::lock_guard lock(mutex_);
  const auto found = watched_.find(context);
  if (found == watched_.end()) return;
  found->second.erase(token);
  if (!found->second.empty()) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, context->async_fd, nullptr);
  watched_.erase(found);
}

void AsyncEvents::forget(ibv_context* context) {
  const std::lock_guard lock(mutex_);
  if (watched_.erase(context) > 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, context->async_fd, nullptr);
}

void AsyncEvents::run() {
  for (;;) {
    epoll_event ready[16];
    const int count = epoll_wait(epoll_, ready, 16, -1);
    if (count < 0 && errno != EINTR) return;
    for (int i = 0; i < count; ++i) drain(static_cast<ibv_context*>(ready[i].data.ptr));
  }
}

void AsyncEvents::drain(ibv_context* context) {
  const std::lock_guard lock(mutex_);
  // It may have been closed between epoll's answer and the lock.
  const auto found = watched_.find(context);
  if (found == watched_.end()) return;
  ibv_async_event event{};
  while (lib_.get_async_event(context, &event) == 0) {
    const AsyncEvent told{event.event_type, element_of(event)};
    if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED) note_limit_reached(event.element.srq);
    // At once: the thread that destroys the element waits for it (ibv_ack_async_event(3)).
    lib_.ack_async_event(&event);
    for (const auto& [token, sink] : found->second) sink(told);
  }
  // A device that is gone would be readable, and fail, for ever.
  if (errno != EAGAIN && errno != EINTR) epoll_ctl(epoll_, EPOLL_CTL_DEL, context->async_fd, nullptr);
}

}  // namespace rdmakit::ibverbs
