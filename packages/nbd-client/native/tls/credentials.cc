#include "tls/credentials.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace rdmakit::nbd {

namespace {

// "MUST support TLS version 1.2, SHOULD support any later"; nothing older.
constexpr const char* kPriorities = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
constexpr const char* kSharedKeyPriorities =
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:+ECDHE-PSK:+DHE-PSK:+PSK";

bool readable(const std::string& file, std::string& why) {
  if (access(file.c_str(), R_OK) == 0) return true;
  why = file + ": " + strerror(errno);
  return false;
}

}  // namespace

std::unique_ptr<TlsCredentials> TlsCredentials::load(const TlsOptions& options, std::string& why) {
  if (options.certificates.empty() == options.shared_keys.empty()) {
    why = "TLS needs either a folder of certificates or a file of shared keys";
    return nullptr;
  }
  if (options.verify_peer && options.certificates.empty()) {
    why =
        "verifying clients by certificate needs certificates; with shared keys every client has proved "
        "itself";
    return nullptr;
  }
  const GnuTls* library = load_gnutls(why);
  if (library == nullptr) return nullptr;
  std::unique_ptr<TlsCredentials> made(new TlsCredentials(*library));
  made->verify_peer_ = options.verify_peer;
  const bool shared = !options.shared_keys.empty();
  if (!(shared ? made->load_shared_keys(options, why) : made->load_certificates(options, why)))
    return nullptr;
  const int error =
      library->priority_init(&made->priorities_, shared ? kSharedKeyPriorities : kPriorities, nullptr);
  if (error != GNUTLS_E_SUCCESS) {
    why = std::string("TLS: ") + library->strerror(error);
    return nullptr;
  }
  return made;
}

bool TlsCredentials::load_certificates(const TlsOptions& options, std::string& why) {
  const std::string certificate = options.certificates + "/server-cert.pem";
  const std::string key = options.certificates + "/server-key.pem";
  const std::string authority = options.certificates + "/ca-cert.pem";
  if (!readable(certificate, why) || !readable(key, why)) return false;
  int error = library_.certificate_allocate_credentials(&certificates_);
  if (error == GNUTLS_E_SUCCESS)
    error = library_.certificate_set_x509_key_file(certificates_, certificate.c_str(), key.c_str(),
                                                   GNUTLS_X509_FMT_PEM);
  if (error < 0) {
    why = certificate + " and " + key + ": " + library_.strerror(error);
    return false;
  }
  if (!options.verify_peer) return true;
  if (!readable(authority, why)) return false;
  const int found =
      library_.certificate_set_x509_trust_file(certificates_, authority.c_str(), GNUTLS_X509_FMT_PEM);
  if (found > 0) return true;
  why = authority + ": " + (found == 0 ? "no certificate in it" : library_.strerror(found));
  return false;
}

bool TlsCredentials::load_shared_keys(const TlsOptions& options, std::string& why) {
  if (!readable(options.shared_keys, why)) return false;
  int error = library_.psk_allocate_server_credentials(&shared_keys_);
  if (error == GNUTLS_E_SUCCESS)
    error = library_.psk_set_server_credentials_file(shared_keys_, options.shared_keys.c_str());
  if (error == GNUTLS_E_SUCCESS) return true;
  why = options.shared_keys + ": " + library_.strerror(error);
  return false;
}

TlsCredentials::~TlsCredentials() {
  if (certificates_ != nullptr) library_.certificate_free_credentials(certificates_);
  if (shared_keys_ != nullptr) library_.psk_free_server_credentials(shared_keys_);
  if (priorities_ != nullptr) library_.priority_deinit(priorities_);
}

int TlsCredentials::apply(gnutls_session_t session) const {
  int error = library_.priority_set(session, priorities_);
  if (error != GNUTLS_E_SUCCESS) return error;
  if (shared_keys_ != nullptr) return library_.credentials_set(session, GNUTLS_CRD_PSK, shared_keys_);
  error = library_.credentials_set(session, GNUTLS_CRD_CERTIFICATE, certificates_);
  if (error != GNUTLS_E_SUCCESS || !verify_peer_) return error;
  library_.certificate_server_set_request(session, GNUTLS_CERT_REQUIRE);
  library_.session_set_verify_cert(session, nullptr, 0);
  return GNUTLS_E_SUCCESS;
}

}  // namespace rdmakit::nbd
