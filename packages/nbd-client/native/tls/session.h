// One TLS session of a server over a connected socket, without blocking.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>

#include "tls/credentials.h"

namespace rdmakit::nbd {

class TlsSession {
 public:
  enum class Step { done, again, failed };

  // The credentials and the socket must outlive it; the socket does not block from here on. nullptr: out of
  // memory.
  static std::unique_ptr<TlsSession> open(const TlsCredentials& credentials, int socket);
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;
  ~TlsSession();

  // Repeat while `again`, when the socket is ready for what wants_output() says.
  Step shake_hands();
  // Like send(2) and recv(2), with errno: EAGAIN, or EPROTO and reason(). After EAGAIN, repeat send() with
  // the same bytes.
  ssize_t send(const void* bytes, size_t length);
  ssize_t receive(void* bytes, size_t length);
  // Tells the peer that no more comes; best effort.
  void say_goodbye();
  // What the last `again` waits for: true: room to send, false: bytes to receive.
  bool wants_output() const { return library_.record_get_direction(session_) == 1; }
  const char* reason() const { return library_.strerror(error_); }

 private:
  TlsSession(const GnuTls& library, gnutls_session_t session) : library_(library), session_(session) {}
  ssize_t settle(ssize_t result);

  const GnuTls& library_;
  gnutls_session_t session_;
  int error_ = 0;
};

}  // namespace rdmakit::nbd
