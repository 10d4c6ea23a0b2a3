#include "accept/acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "accept/acceptor_session.h"
#include "base/accept_failure.h"
#include "base/clock.h"
#include "base/epoll.h"
#include "rdmakit/tcp_keepalive.h"

namespace rdmakit::nbd {

namespace {
constexpr uint64_t kAcceptPause = 100 * kMillisecond;
// A flood of bad clients must not become a flood of events.
constexpr uint64_t kReportInterval = 100 * kMillisecond;

std::string name_of(const sockaddr_storage& address, socklen_t length) {
  if (address.ss_family == AF_UNIX) return "unix";
  char host[NI_MAXHOST];
  char service[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, service,
                  sizeof service, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "unknown";
  return std::string(host) + ":" + service;
}

// A client whose host died must not keep its lane: it is probed after a silence, as by an iWARP provider, and
// disconnected when it has not answered for as long as a client may leave its answers unread (Terms::stall).
// Otherwise the kernel retransmits unacknowledged data for 15 minutes.
void set_tcp_options(int fd, uint64_t stall_timeout_ns) {
  const auto set = [fd](int option, int value) { setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value); };
  set(TCP_NODELAY, 1);
  keep_alive(fd);
  set(TCP_USER_TIMEOUT, static_cast<int>(std::min<uint64_t>(stall_timeout_ns / kMillisecond, INT_MAX)));
}
}  // namespace

Acceptor::Acceptor(Host& host, Offer offer, const AcceptorOptions& options,
                   std::unique_ptr<const TlsCredentials> credentials)
    : host_(host), offer_(std::move(offer)), options_(options), credentials_(std::move(credentials)) {}

Acceptor::~Acceptor() { join(); }

int Acceptor::start() {
  wake_.reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!wake_ || !epoll_) return errno;
  const int error = epoll_watch(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), EPOLLIN, {.ptr = this});
  if (error != 0) return error;
  return thread_.start("nbd-acceptor", [this] { run(); });
}

void Acceptor::wake() {
  if (!wake_) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = write(wake_.get(), &one, sizeof one);
}

void Acceptor::add(Listener&& listener) {
  {
    const std::lock_guard lock(orders_);
    new_listeners_.push_back(std::make_unique<Listener>(std::move(listener)));
  }
  wake();
}

void Acceptor::stop_accepting() {
  {
    const std::lock_guard lock(orders_);
    stop_accepting_ = true;
  }
  wake();
}

void Acceptor::join() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(orders_);
    stop_accepting_ = end_ = true;
  }
  wake();
  thread_.join();
  // Their lanes have ended by now; the remaining bytes are sent, and they end.
  for (const auto& pump : pumps_) pump->stop();
  pumps_.clear();
}

void Acceptor::close_descriptors() {
  wake_.reset();
  epoll_.reset();
}

// ---- the thread ----

void Acceptor::run() {
  for (;;) {
    epoll_event events[64];
    const int count = epoll_wait(epoll_.get(), events, 64, timeout_ms(now_ns()));
    const uint64_t now = now_ns();
    bool woken = false;
    for (int i = 0; i < count; i++) {
      if (events[i].data.ptr == this) {
        uint64_t value;
        [[maybe_unused]] const ssize_t ignored = read(wake_.get(), &value, sizeof value);
        woken = true;
        continue;
      }
      // A listener or a session: sessions are not destroyed before sweep(), so the pointer is good.
      const auto listener = std::find_if(listeners_.begin(), listeners_.end(),
                                         [&](const auto& each) { return each.get() == events[i].data.ptr; });
      if (listener != listeners_.end()) {
        accept_from(**listener, now);
        continue;
      }
      auto& session = *static_cast<Session*>(events[i].data.ptr);
      // While it waits for a lane nothing is read, so its leaving shows only here.
      if (session.lane_deadline != 0 && (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
        session.over = true;
      drive(session, now);
    }
    if (woken) {
      host_.woken();
      take_orders();
      const std::lock_guard lock(orders_);
      if (end_) break;
    }
    expire(now);
    sweep();
  }
  host_.woken();
}

void Acceptor::take_orders() {
  const std::lock_guard lock(orders_);
  for (auto& listener : new_listeners_) {
    const int error =
        epoll_watch(epoll_.get(), EPOLL_CTL_ADD, listener->fd(), EPOLLIN, {.ptr = listener.get()});
    if (error != 0)
      report(Event::Type::listener_failed, listener->address(), strerror(error));
    else
      listeners_.push_back(std::move(listener));
  }
  new_listeners_.clear();
  if (!stop_accepting_) return;
  listeners_.clear();
  for (auto& session : sessions_) {
    if (!session->over && session->handshake.phase() == Handshake::Phase::wants_lane) {
      session->handshake.refuse(kRepErrShutdown, "the server is shutting down");
      send_output(*session);
    }
    session->over = true;
  }
}

void Acceptor::accept_from(const Listener& listener, uint64_t now) {
  // A few at a time, so that sessions under way get their turn.
  for (int i = 0; i < 16; i++) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    const int fd = accept4(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC);
    if (fd < 0) {
      const int error = errno;
      const AcceptFailure failed = accept_failure(error);
      if (failed == AcceptFailure::connection_over) continue;
      // Without room it stays in the backlog until a client has gone, or for a while.
      if (failed == AcceptFailure::none_waiting || evict(now)) return;
      paused_until_ = now + kAcceptPause;
      watch_listeners(0);
      return report(Event::Type::listener_failed, listener.address(), strerror(error));
    }
    UniqueFd socket(fd);
    const std::string peer = name_of(address, length);
    if (!make_room(now)) {
      refuse(peer, "too many handshakes at once");
      continue;
    }
    if (address.ss_family != AF_UNIX) set_tcp_options(fd, options_.stall_timeout_ns);
    accepted_.fetch_add(1, std::memory_order_relaxed);
    auto session = std::make_unique<Session>(socket.release(), offer_);
    session->peer = peer;
    session->deadline = now + options_.handshake_timeout_ns;
    session->heard = now;
    sessions_.push_back(std::move(session));
    drive(*sessions_.back(), now);
  }
}

void Acceptor::watch_listeners(uint32_t events) {
  for (const auto& listener : listeners_)
    epoll_watch(epoll_.get(), EPOLL_CTL_MOD, listener->fd(), events, {.ptr = listener.get()});
}

// The session whose place a new client gets: the oldest of those that have negotiated nothing, else the one
// that has been silent for longest. A client that has just sent something does not make room for one that may
// never do so; nor does one that has authenticated over TLS, or waits for a lane. nullptr: none.
Acceptor::Session* Acceptor::dispensable(uint64_t now) const {
  Session* silent = nullptr;
  for (const auto& session : sessions_) {
    if (session->over) continue;
    if (!session->handshake.has_negotiated()) return session.get();
    const bool proved = session->encrypted && credentials_->prove_clients();
    if (proved || session->lane_deadline != 0 || now - session->heard < options_.idle_ns) continue;
    if (silent == nullptr || session->heard < silent->heard) silent = session.get();
  }
  return silent;
}

// False: there is none. Who goes is only marked: an event of this turn may name it.
bool Acceptor::make_room(uint64_t now) {
  const auto under_way =
      std::count_if(sessions_.begin(), sessions_.end(), [](const auto& session) { return !session->over; });
  if (under_way < options_.max_handshakes) return true;
  return evict(now);
}

bool Acceptor::evict(uint64_t now) {
  Session* const leaver = dispensable(now);
  if (leaver == nullptr) return false;
  refuse(leaver->peer, "too many handshakes at once");
  return leaver->over = true;
}

void Acceptor::refuse(const std::string& peer, const char* reason) {
  refused_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t now = now_ns();
  if (now - last_report_ < kReportInterval) return;
  last_report_ = now;
  report(Event::Type::handshake_refused, peer, reason);
}

void Acceptor::report(Event::Type type, const std::string& subject, const char* reason) {
  Event event = Event::about(type, 0, reason);
  snprintf(event.subject.data(), event.subject.size(), "%s", subject.c_str());
  host_.report(event);
}

void Acceptor::drive(Session& session, uint64_t now) {
  if (session.over) return;
  offer_.withheld_flags = host_.withheld_flags();
  session.over = converse(session, now);
}

// Closing the socket is not enough: between a fork and its exec a child holds it open too, and the epoll set
// would continue to name a session that is gone (epoll(7), question 6).
void Acceptor::unwatch(Session& session) {
  if (session.watched != 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, session.socket.get(), nullptr);
  session.watched = 0;
}

void Acceptor::watch(Session& session, uint32_t events) {
  if (session.watched == events) return;
  const int operation = session.watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  session.watched = events;
  if (epoll_watch(epoll_.get(), operation, session.socket.get(), events, {.ptr = &session}) != 0)
    session.over = true;
}

void Acceptor::expire(uint64_t now) {
  if (paused_until_ != 0 && now >= paused_until_) {
    paused_until_ = 0;
    watch_listeners(EPOLLIN);
  }
  for (size_t i = 0; i < sessions_.size(); i++) {
    Session& session = *sessions_[i];
    if (session.over) continue;
    if (now >= session.deadline) {
      refuse(session.peer, "handshake timeout");
      session.over = true;
    } else if (session.lane_deadline != 0) {
      drive(session, now);  // a lane may have become free, or the wait is over
    }
  }
}

int Acceptor::timeout_ms(uint64_t now) const {
  uint64_t next = paused_until_ == 0 ? UINT64_MAX : paused_until_;
  for (const auto& session : sessions_) {
    next = std::min(next, session->deadline);
    if (session->lane_deadline != 0) next = std::min(next, session->lane_deadline);
  }
  if (next == UINT64_MAX) return -1;
  return next <= now ? 0 : static_cast<int>(std::min<uint64_t>((next - now) / kMillisecond + 1, 60'000));
}

void Acceptor::sweep() {
  std::erase_if(sessions_, [this](const auto& session) {
    if (!session->over) return false;
    if (session->lane != nullptr) session->lane->give_up();
    unwatch(*session);
    return true;
  });
  std::erase_if(pumps_, [](const auto& pump) { return pump->finished(); });
}

}  // namespace rdmakit::nbd
