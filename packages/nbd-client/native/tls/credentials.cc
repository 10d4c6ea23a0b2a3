#include "tls/credentials.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "system/private_file.h"
#include "tls/shared_keys.h"

namespace rdmakit::nbd {

using namespace volume;

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

// `check` is check_private for a secret file, or check_unwritable.
bool is_safe(const std::string& file, int (*check)(int, const std::string&, std::string&), std::string& why) {
  const UniqueFd opened(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!opened) {
    why = file + ": " + strerror(errno);
    return false;
  }
  return check(opened.get(), file, why) == 0 && check_folder(file, why) == 0;
}

// Called by GnuTLS. 0: `key`, which it frees; 1: there is no such client (it continues with a random key, so
// that the client cannot tell); -1: an error.
int give_key(gnutls_session_t session, const char* name, gnutls_datum_t* key) {
  std::string why;
  const auto& credentials = *static_cast<const TlsCredentials*>(load_gnutls(why)->session_get_ptr(session));
  std::string text;
  if (read_shared_keys(credentials.shared_keys_file(), text, why) != 0) return -1;
  const std::string_view hex = find_shared_key(text, name);
  if (hex.empty()) return 1;
  const gnutls_datum_t digits{reinterpret_cast<unsigned char*>(text.data()) + (hex.data() - text.data()),
                              static_cast<unsigned>(hex.size())};
  return credentials.library().hex_decode2(&digits, key) == GNUTLS_E_SUCCESS ? 0 : -1;
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
  if (!readable(certificate, why) || !is_safe(key, check_private, why)) return false;
  int error = library_.certificate_allocate_credentials(&certificates_);
  if (error == GNUTLS_E_SUCCESS)
    error = library_.certificate_set_x509_key_file(certificates_, certificate.c_str(), key.c_str(),
                                                   GNUTLS_X509_FMT_PEM);
  if (error < 0) {
    why = certificate + " and " + key + ": " + library_.strerror(error);
    return false;
  }
  if (!options.verify_peer) return true;
  // Who can write it can let any client in.
  if (!is_safe(authority, check_unwritable, why)) return false;
  const int found =
      library_.certificate_set_x509_trust_file(certificates_, authority.c_str(), GNUTLS_X509_FMT_PEM);
  if (found > 0) return true;
  why = authority + ": " + (found == 0 ? "no certificate in it" : library_.strerror(found));
  return false;
}

bool TlsCredentials::load_shared_keys(const TlsOptions& options, std::string& why) {
  std::string text;
  if (read_shared_keys(options.shared_keys, text, why) != 0) {
    why = "--tls-psk " + why;
    return false;
  }
  if (!has_shared_key(text)) {
    why = "--tls-psk " + options.shared_keys + " has no line \"name:hex key\"";
    return false;
  }
  shared_keys_file_ = options.shared_keys;
  const int error = library_.psk_allocate_server_credentials(&shared_keys_);
  if (error != GNUTLS_E_SUCCESS) {
    why = options.shared_keys + ": " + library_.strerror(error);
    return false;
  }
  library_.psk_set_server_credentials_function(shared_keys_, give_key);
  return true;
}

TlsCredentials::~TlsCredentials() {
  if (certificates_ != nullptr) library_.certificate_free_credentials(certificates_);
  if (shared_keys_ != nullptr) library_.psk_free_server_credentials(shared_keys_);
  if (priorities_ != nullptr) library_.priority_deinit(priorities_);
}

int TlsCredentials::apply(gnutls_session_t session) const {
  int error = library_.priority_set(session, priorities_);
  if (error != GNUTLS_E_SUCCESS) return error;
  if (shared_keys_ != nullptr) {
    library_.session_set_ptr(session, const_cast<TlsCredentials*>(this));
    return library_.credentials_set(session, GNUTLS_CRD_PSK, shared_keys_);
  }
  error = library_.credentials_set(session, GNUTLS_CRD_CERTIFICATE, certificates_);
  if (error != GNUTLS_E_SUCCESS || !verify_peer_) return error;
  library_.certificate_server_set_request(session, GNUTLS_CERT_REQUIRE);
  library_.session_set_verify_cert(session, nullptr, 0);
  return GNUTLS_E_SUCCESS;
}

}  // namespace rdmakit::nbd
