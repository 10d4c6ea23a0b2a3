// GnuTLS, loaded when a server is set up with TLS and never otherwise: one binary runs with and without it.
// It is what nbdkit, qemu and libnbd use at the other end, and shares no symbol with Node's OpenSSL.
#pragma once

#include <gnutls/gnutls.h>

#include <string>

namespace rdmakit::nbd {

#define RDMAKIT_GNUTLS(apply)                                                                             \
  apply(certificate_allocate_credentials) apply(certificate_free_credentials)                             \
      apply(certificate_set_x509_key_file) apply(certificate_set_x509_trust_file)                         \
          apply(certificate_server_set_request) apply(psk_allocate_server_credentials)                    \
              apply(psk_free_server_credentials) apply(psk_set_server_credentials_function)               \
                  apply(hex_decode2) apply(session_set_ptr) apply(session_get_ptr) apply(priority_init)   \
                      apply(priority_deinit) apply(priority_set) apply(init) apply(deinit)                \
                          apply(credentials_set) apply(session_set_verify_cert) apply(transport_set_int2) \
                              apply(handshake) apply(record_send) apply(record_recv)                      \
                                  apply(record_get_direction) apply(bye) apply(error_is_fatal)            \
                                      apply(strerror)

struct GnuTls {
#define RDMAKIT_MEMBER(name) decltype(&gnutls_##name) name = nullptr;
  RDMAKIT_GNUTLS(RDMAKIT_MEMBER)
#undef RDMAKIT_MEMBER
};

// The same for every caller. nullptr with `why`, which says what to install.
const GnuTls* load_gnutls(std::string& why);

}  // namespace rdmakit::nbd
