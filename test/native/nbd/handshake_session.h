// The client's side of the handshake for tests: options as bytes, and an owner of a Handshake in memory.
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>

#include "../engine/fixture/nbd_fixture.h"
#include "protocol/handshake.h"

namespace fixture {

using Bytes = std::vector<uint8_t>;

template <typename Value>
void append(Bytes& bytes, const Value& value) {
  const auto* from = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof value);
}
inline void append(Bytes& bytes, std::string_view text) {
  bytes.insert(bytes.end(), text.begin(), text.end());
}

inline Bytes option(uint32_t type, const Bytes& payload, uint32_t claimed_length) {
  OptionHeader header;
  header.magic = kOptionMagic;
  header.option = type;
  header.length = claimed_length;
  Bytes bytes;
  append(bytes, header);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}
inline Bytes option(uint32_t type, const Bytes& payload = {}) {
  return option(type, payload, static_cast<uint32_t>(payload.size()));
}
inline Bytes text(std::string_view from) { return {from.begin(), from.end()}; }

inline Bytes info_payload(std::string_view name, const std::vector<uint16_t>& infos = {}) {
  Bytes bytes;
  append(bytes, Be32(static_cast<uint32_t>(name.size())));
  append(bytes, name);
  append(bytes, Be16(static_cast<uint16_t>(infos.size())));
  for (const uint16_t info : infos) append(bytes, Be16(info));
  return bytes;
}

inline Offer offer_of(std::vector<ExportDescription> exports, TlsMode tls = TlsMode::off) {
  return {std::move(exports), tls, 0};
}

inline const Offer kOffer =
    offer_of({{"volume", "a test", {.size = 1 << 30, .flags = kFlagHasFlags | kFlagSendFlush}, 4096}});

// Plays the owner of a Handshake: bytes in, all of what it answers out.
class Session {
 public:
  explicit Session(uint32_t flags = kHandshakeFixedNewstyle | kHandshakeNoZeroes, size_t piece = SIZE_MAX,
                   const Offer& offer = kOffer)
      : handshake(offer), piece_(piece) {
    drain();
    Greeting greeting;
    CHECK(out.size() == sizeof greeting);
    std::memcpy(&greeting, out.data(), sizeof greeting);
    CHECK(greeting.magic == kInitMagic && greeting.option_magic == kOptionMagic);
    CHECK(greeting.handshake_flags == (kHandshakeFixedNewstyle | kHandshakeNoZeroes));
    out.clear();
    Bytes bytes;
    append(bytes, Be32(flags));
    feed(bytes);
  }

  // How many of the bytes were wanted.
  size_t feed(const Bytes& bytes) {
    size_t used = 0;
    while (used < bytes.size()) {
      const auto room = handshake.input();
      if (room.empty()) break;
      const size_t step = std::min({room.size(), bytes.size() - used, piece_});
      std::memcpy(room.data(), bytes.data() + used, step);
      used += step;
      handshake.received(step);
      drain();
    }
    return used;
  }
  // The type of the next answer to `to`; its payload is kept.
  uint32_t answer(uint32_t to) {
    OptionReply reply;
    CHECK(out.size() >= sizeof reply);
    std::memcpy(&reply, out.data(), sizeof reply);
    CHECK(reply.magic == kOptionReplyMagic && reply.option == to);
    CHECK(out.size() >= sizeof reply + reply.length);
    payload.assign(out.begin() + sizeof reply, out.begin() + static_cast<long>(sizeof reply + reply.length));
    out.erase(out.begin(), out.begin() + static_cast<long>(sizeof reply + reply.length));
    return reply.type;
  }
  void drain() {
    while (!handshake.output().empty()) {
      const auto bytes = handshake.output();
      const size_t step = std::min(bytes.size(), piece_);
      out.insert(out.end(), bytes.begin(), bytes.begin() + static_cast<long>(step));
      handshake.sent(step);
    }
  }
  bool open() const { return handshake.phase() == Handshake::Phase::negotiating; }
  bool closed() const { return handshake.phase() == Handshake::Phase::closed; }

  Handshake handshake;
  Bytes out;
  Bytes payload;

 private:
  size_t piece_;
};

inline Bytes meta_payload(std::string_view name, const std::vector<std::string_view>& queries) {
  Bytes bytes;
  append(bytes, Be32(static_cast<uint32_t>(name.size())));
  append(bytes, name);
  append(bytes, Be32(static_cast<uint32_t>(queries.size())));
  for (const std::string_view query : queries) {
    append(bytes, Be32(static_cast<uint32_t>(query.size())));
    append(bytes, query);
  }
  return bytes;
}

}  // namespace fixture
