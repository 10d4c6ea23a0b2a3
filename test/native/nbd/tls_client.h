// A blocking NBD client over TLS with a shared key.
#pragma once

#include <gnutls/gnutls.h>

#include "negotiated_client.h"

namespace fixture {

inline constexpr const char* kName = "alice";
inline constexpr const char* kKey = "8ea2b0c4d6f81a3c5e7092b4d6f8a1c3e5071928394a5b6c7d8e9fa0b1c2d3e4";
inline constexpr const char* kWrongKey = "00a2b0c4d6f81a3c5e7092b4d6f8a1c3e5071928394a5b6c7d8e9fa0b1c2d3e4";

class TlsClient {
 public:
  explicit TlsClient(const std::string& path) : fd_(dial_unix(path)) {
    Greeting greeting;
    CHECK(read_all(fd_, &greeting, sizeof greeting));
    Bytes bytes;
    append(bytes, Be32(kHandshakeFixedNewstyle | kHandshakeNoZeroes));
    CHECK(write_all(fd_, bytes.data(), bytes.size()));
  }
  ~TlsClient() {
    if (session_ != nullptr) gnutls_deinit(session_);
    if (credentials_ != nullptr) gnutls_psk_free_client_credentials(credentials_);
    close(fd_);
  }
  int fd() const { return fd_; }

  // `behind` goes out in plaintext right after STARTTLS. False: the handshake failed.
  bool start_tls(const char* key = kKey, const Bytes& behind = {}) {
    Bytes bytes = option(kOptStartTls);
    bytes.insert(bytes.end(), behind.begin(), behind.end());
    CHECK(write_all(fd_, bytes.data(), bytes.size()));
    OptionReply reply;
    if (!read_all(fd_, &reply, sizeof reply) || reply.type != kRepAck) return false;
    CHECK(gnutls_init(&session_, GNUTLS_CLIENT | GNUTLS_NO_SIGNAL) == 0);
    CHECK(gnutls_priority_set_direct(session_, "NORMAL:+ECDHE-PSK:+DHE-PSK:+PSK", nullptr) == 0);
    CHECK(gnutls_psk_allocate_client_credentials(&credentials_) == 0);
    const gnutls_datum_t datum{reinterpret_cast<unsigned char*>(const_cast<char*>(key)),
                               static_cast<unsigned>(std::strlen(key))};
    CHECK(gnutls_psk_set_client_credentials(credentials_, kName, &datum, GNUTLS_PSK_KEY_HEX) == 0);
    CHECK(gnutls_credentials_set(session_, GNUTLS_CRD_PSK, credentials_) == 0);
    gnutls_transport_set_int2(session_, fd_, fd_);
    int result;
    do {
      result = gnutls_handshake(session_);
    } while (result == GNUTLS_E_INTERRUPTED || result == GNUTLS_E_AGAIN);
    return result == 0;
  }
  bool send(const void* bytes, size_t length) {
    const auto* from = static_cast<const uint8_t*>(bytes);
    while (length > 0) {
      const ssize_t sent = gnutls_record_send(session_, from, length);
      if (sent <= 0) return false;
      from += sent;
      length -= static_cast<size_t>(sent);
    }
    return true;
  }
  bool receive(void* bytes, size_t length) {
    auto* to = static_cast<uint8_t*>(bytes);
    while (length > 0) {
      const ssize_t got = gnutls_record_recv(session_, to, length);
      if (got <= 0) return false;
      to += got;
      length -= static_cast<size_t>(got);
    }
    return true;
  }
  // The type of the answer, 0 at the end of the connection. Over TLS once it has started.
  uint32_t negotiate(uint32_t type, const Bytes& payload = {}) {
    const Bytes bytes = option(type, payload);
    const auto get = [this](void* to, size_t length) {
      return session_ == nullptr ? read_all(fd_, to, length) : receive(to, length);
    };
    if (!(session_ == nullptr ? write_all(fd_, bytes.data(), bytes.size())
                              : send(bytes.data(), bytes.size())))
      return 0;
    for (;;) {
      OptionReply reply;
      if (!get(&reply, sizeof reply)) return 0;
      CHECK(reply.magic == kOptionReplyMagic && reply.option == type && reply.length < 20'000);
      Bytes content(reply.length);
      if (!get(content.data(), content.size())) return 0;
      if (reply.type != kRepInfo) return reply.type;
    }
  }
  // One request; the error code, SocketClient::kGone at the end.
  uint32_t call(uint16_t command, uint64_t offset, uint32_t length, uint8_t* in, const uint8_t* out) {
    const RequestHeader request = header(command, ++cookies_, offset, length);
    if (!send(&request, sizeof request) || (out != nullptr && !send(out, length))) return SocketClient::kGone;
    SimpleReply reply;
    if (!receive(&reply, sizeof reply)) return SocketClient::kGone;
    CHECK(reply.magic == kSimpleReplyMagic && reply.cookie == cookies_);
    if (reply.error == kOk && in != nullptr && !receive(in, length)) return SocketClient::kGone;
    return reply.error;
  }

 private:
  const int fd_;
  gnutls_session_t session_ = nullptr;
  gnutls_psk_client_credentials_t credentials_ = nullptr;
  uint64_t cookies_ = 0;
};

}  // namespace fixture
