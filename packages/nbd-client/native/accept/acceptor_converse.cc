// The acceptor's conversation with one client, in plaintext or over TLS, up to the lane.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "accept/acceptor_session.h"

namespace rdmakit::nbd {

// False: errno says why not all of it.
bool Acceptor::send_output(Session& session) {
  for (;;) {
    const auto output = session.handshake.output();
    if (output.empty()) return true;
    const ssize_t bytes = session.encrypted ? session.tls->send(output.data(), output.size())
                                            : send(session.socket.get(), output.data(), output.size(),
                                                   MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes <= 0) return false;
    session.handshake.sent(static_cast<size_t>(bytes));
  }
}

// True: the session is over, one way or the other.
bool Acceptor::converse(Session& session, uint64_t now) {
  Handshake& handshake = session.handshake;
  for (;;) {
    if (!send_output(session)) {
      if (errno != EAGAIN && errno != EINTR) return true;
      watch(session, EPOLLOUT);
      return false;
    }
    switch (handshake.phase()) {
      case Handshake::Phase::closed:
        if (!handshake.aborted()) refuse(session.peer, handshake.reason());
        return true;
      case Handshake::Phase::wants_tls:
        switch (start_tls(session)) {
          case TlsSession::Step::done:
            handshake.tls_started();
            continue;
          case TlsSession::Step::again:
            watch(session, session.tls->wants_output() ? EPOLLOUT : EPOLLIN);
            return false;
          case TlsSession::Step::failed:
            return true;
        }
        return true;
      case Handshake::Phase::transmission:
        hand_over(session);
        return true;
      case Handshake::Phase::wants_lane:
        session.lane = host_.reserve_lane();
        if (session.lane != nullptr) {
          session.lane_deadline = 0;
          handshake.grant();
          continue;
        }
        if (session.lane_deadline == 0) session.lane_deadline = now + options_.lane_wait_ns;
        if (now >= session.lane_deadline) {
          session.lane_deadline = 0;
          refuse(session.peer, "all lanes are busy");
          handshake.refuse(kRepErrPolicy, "all connections of this server are in use, try again later");
          continue;
        }
        watch(session, EPOLLRDHUP);
        return false;
      case Handshake::Phase::negotiating:
        break;
    }
    const auto room = handshake.input();
    const ssize_t bytes = session.encrypted
                              ? session.tls->receive(room.data(), room.size())
                              : recv(session.socket.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (bytes > 0) {
      session.heard = now;
      handshake.received(static_cast<size_t>(bytes));
      continue;
    }
    if (bytes == 0 || (errno != EAGAIN && errno != EINTR)) return true;
    watch(session, EPOLLIN);
    return false;
  }
}

TlsSession::Step Acceptor::start_tls(Session& session) {
  if (session.tls == nullptr) session.tls = TlsSession::open(*credentials_, session.socket.get());
  if (session.tls == nullptr) {
    refuse(session.peer, "TLS: out of memory");
    return TlsSession::Step::failed;
  }
  const TlsSession::Step step = session.tls->shake_hands();
  if (step == TlsSession::Step::done) session.encrypted = true;
  if (step == TlsSession::Step::failed) {
    char reason[100];
    snprintf(reason, sizeof reason, "TLS: %s", session.tls->reason());
    refuse(session.peer, reason);
  }
  return step;
}

std::unique_ptr<NbdClient> Acceptor::client_of(UniqueFd socket, const Session& session) const {
  auto client = std::make_unique<NbdClient>();
  client->socket = std::move(socket);
  client->terms = session.handshake.terms();
  client->terms.stall = options_.stall_timeout_ns;
  return client;
}

void Acceptor::hand_over(Session& session) {
  unwatch(session);
  if (!session.encrypted) {
    NbdLane* const lane = std::exchange(session.lane, nullptr);
    return lane->attach(client_of(std::move(session.socket), session));
  }
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    return refuse(session.peer, "TLS: no descriptors left");
  UniqueFd ours(pair[0]);
  UniqueFd theirs(pair[1]);
  auto pump = std::make_unique<TlsPump>(std::move(session.tls), std::move(session.socket), std::move(ours),
                                        options_.parting_ns);
  if (pump->start() != 0) return refuse(session.peer, "TLS: no thread can be started (ulimit -u, TasksMax=)");
  pumps_.push_back(std::move(pump));
  NbdLane* const lane = std::exchange(session.lane, nullptr);
  lane->attach(client_of(std::move(theirs), session));
}

}  // namespace rdmakit::nbd
