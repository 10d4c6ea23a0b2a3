#include "tls/session.h"

#include <fcntl.h>

#include <cerrno>

namespace rdmakit::nbd {

std::unique_ptr<TlsSession> TlsSession::open(const TlsCredentials& credentials, int socket) {
  const GnuTls& library = credentials.library();
  gnutls_session_t session = nullptr;
  if (library.init(&session, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) != GNUTLS_E_SUCCESS)
    return nullptr;
  std::unique_ptr<TlsSession> made(new TlsSession(library, session));
  if (credentials.apply(session) != GNUTLS_E_SUCCESS) return nullptr;
  // GnuTLS calls recv(2) and send(2) without MSG_DONTWAIT.
  const int flags = fcntl(socket, F_GETFL);
  if (flags < 0 || fcntl(socket, F_SETFL, flags | O_NONBLOCK) != 0) return nullptr;
  library.transport_set_int2(session, socket, socket);
  return made;
}

TlsSession::~TlsSession() { library_.deinit(session_); }

TlsSession::Step TlsSession::shake_hands() {
  // Warnings are not the end, but a peer that sends nothing else must not hold the thread.
  for (int tries = 0; tries < 8; tries++) {
    error_ = library_.handshake(session_);
    if (error_ == GNUTLS_E_SUCCESS) return Step::done;
    if (error_ == GNUTLS_E_AGAIN || error_ == GNUTLS_E_INTERRUPTED) return Step::again;
    if (library_.error_is_fatal(error_) != 0) break;
  }
  return Step::failed;
}

ssize_t TlsSession::settle(ssize_t result) {
  if (result >= 0) return result;
  error_ = static_cast<int>(result);
  errno = error_ == GNUTLS_E_AGAIN || error_ == GNUTLS_E_INTERRUPTED ? EAGAIN : EPROTO;
  return -1;
}

ssize_t TlsSession::send(const void* bytes, size_t length) {
  return settle(library_.record_send(session_, bytes, length));
}

// A renegotiation, which only TLS 1.2 knows, is refused like any other error; so is the end of the
// connection without a goodbye, for bytes may be missing.
ssize_t TlsSession::receive(void* bytes, size_t length) {
  ssize_t result = library_.record_recv(session_, bytes, length);
  for (int tries = 0; result == GNUTLS_E_WARNING_ALERT_RECEIVED && tries < 8; tries++)
    result = library_.record_recv(session_, bytes, length);
  return settle(result);
}

void TlsSession::say_goodbye() { library_.bye(session_, GNUTLS_SHUT_WR); }

}  // namespace rdmakit::nbd
