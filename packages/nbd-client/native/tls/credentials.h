// The server's credentials and its demands on clients: X.509 certificates or shared keys.
#pragma once

#include <memory>
#include <string>

#include "protocol/handshake.h"
#include "tls/library.h"

namespace rdmakit::nbd {

struct TlsOptions {
  TlsMode mode = TlsMode::off;
  // One of the two. A folder with server-cert.pem, server-key.pem and ca-cert.pem (the names that nbdkit
  // and qemu use), or a file with a line "name:hex key" for each client, as psktool writes it
  // (shared_keys.h). No other user may have access to server-key.pem, or to the file, nor write ca-cert.pem
  // where it decides who is let in (private_file.h).
  std::string certificates = {};
  std::string shared_keys = {};
  // With certificates: a client must have one that ca-cert.pem has signed.
  bool verify_peer = false;
};

// Immutable, so any number of sessions may share it. Outlives them.
class TlsCredentials {
 public:
  // nullptr with `why`.
  static std::unique_ptr<TlsCredentials> load(const TlsOptions& options, std::string& why);
  TlsCredentials(const TlsCredentials&) = delete;
  TlsCredentials& operator=(const TlsCredentials&) = delete;
  ~TlsCredentials();

  const GnuTls& library() const { return library_; }
  // Whether a completed handshake proves that the operator knows the client.
  bool prove_clients() const { return shared_keys_ != nullptr || verify_peer_; }
  const std::string& shared_keys_file() const { return shared_keys_file_; }
  // Sets a fresh server session up. 0 or a GnuTLS error.
  int apply(gnutls_session_t session) const;

 private:
  explicit TlsCredentials(const GnuTls& library) : library_(library) {}
  bool load_certificates(const TlsOptions& options, std::string& why);
  bool load_shared_keys(const TlsOptions& options, std::string& why);

  const GnuTls& library_;
  gnutls_certificate_credentials_t certificates_ = nullptr;
  gnutls_psk_server_credentials_t shared_keys_ = nullptr;
  std::string shared_keys_file_;
  gnutls_priority_t priorities_ = nullptr;
  bool verify_peer_ = false;
};

}  // namespace rdmakit::nbd
