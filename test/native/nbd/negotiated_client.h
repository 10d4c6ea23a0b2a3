// A client that negotiates and then asks, one thread, with every answer held against the specification.
#pragma once

#include <functional>
#include <map>

#include "handshake_session.h"
#include "reply_reader.h"

namespace fixture {

inline int dial_unix(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

class NegotiatedClient {
 public:
  NegotiatedClient(const std::string& path, bool structured, std::string_view name = "")
      : fd_(dial_unix(path)), reader_(structured) {
    Greeting greeting;
    CHECK(read_all(fd_, &greeting, sizeof greeting));
    Bytes bytes;
    append(bytes, Be32(kHandshakeFixedNewstyle | kHandshakeNoZeroes));
    send_bytes(bytes);
    if (structured) {
      CHECK(negotiate(kOptStructuredReply, {}) == kRepAck);
      Bytes query;
      append(query, Be32(static_cast<uint32_t>(name.size())));
      append(query, name);
      append(query, Be32(1));
      append(query, Be32(15));
      append(query, std::string_view("base:allocation"));
      CHECK(negotiate(kOptSetMetaContext, query) == kRepAck);
    }
    CHECK(negotiate(kOptGo, info_payload(name)) == kRepAck);
  }
  ~NegotiatedClient() { close(fd_); }

  int fd() const { return fd_; }
  uint64_t size() const { return size_; }
  uint16_t flags() const { return flags_; }

  // Asks without waiting.
  uint64_t post(uint16_t command, uint64_t offset, uint32_t length, uint16_t flags = 0,
                const uint8_t* payload = nullptr) {
    const uint64_t cookie = ++cookies_ * 0x9e3779b97f4a7c15;
    reader_.expect({command, flags, cookie, offset, length});
    const RequestHeader request = header(command, cookie, offset, length, flags);
    // All of it at once, or a client that is not run for a while would stall.
    Bytes bytes;
    append(bytes, request);
    if (payload != nullptr) bytes.insert(bytes.end(), payload, payload + length);
    send_bytes(bytes);
    return cookie;
  }
  // False: the server has ended the connection.
  bool wait(uint64_t cookie, Answer& answer, size_t piece = 1 << 20) {
    if (piece_.size() < piece) piece_.resize(piece);
    while (!answers_.contains(cookie)) {
      const ssize_t got = recv(fd_, piece_.data(), piece, 0);
      if (got <= 0) return false;
      reader_.feed({piece_.data(), static_cast<size_t>(got)},
                   [this](Answer& each) { answers_[each.request.cookie] = std::move(each); });
    }
    answer = std::move(answers_[cookie]);
    answers_.erase(cookie);
    return true;
  }
  Answer ask(uint16_t command, uint64_t offset, uint32_t length, uint16_t flags = 0,
             const uint8_t* payload = nullptr) {
    Answer answer;
    CHECK(wait(post(command, offset, length, flags, payload), answer));
    return answer;
  }
  uint32_t write(uint64_t offset, const std::vector<uint8_t>& data) {
    return ask(kCmdWrite, offset, static_cast<uint32_t>(data.size()), 0, data.data()).error;
  }

 private:
  // It may have ended: that shows when an answer is awaited.
  void send_bytes(const Bytes& bytes) { write_all(fd_, bytes.data(), bytes.size()); }
  uint32_t negotiate(uint32_t type, const Bytes& payload) {
    send_bytes(option(type, payload));
    for (;;) {
      OptionReply reply;
      CHECK(read_all(fd_, &reply, sizeof reply) && reply.option == type);
      Bytes bytes(reply.length);
      CHECK(read_all(fd_, bytes.data(), bytes.size()));
      InfoExport info;
      if (reply.type == kRepInfo && bytes.size() == sizeof info) {
        std::memcpy(&info, bytes.data(), sizeof info);
        size_ = info.size;
        flags_ = info.transmission_flags;
      }
      if (reply.type != kRepInfo && reply.type != kRepMetaContext) return reply.type;
    }
  }

  const int fd_;
  std::vector<uint8_t> piece_;  // of what is received
  ReplyReader reader_;
  std::map<uint64_t, Answer> answers_;
  uint64_t cookies_ = 0;
  uint64_t size_ = 0;
  uint16_t flags_ = 0;
};

}  // namespace fixture
