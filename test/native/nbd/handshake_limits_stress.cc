// Handshakes with TLS, beyond what is allowed, and of no sense.
#include <random>

#include "handshake_session.h"

namespace nbd_handshake_limits_stress {

using namespace fixture;

// Everything but STARTTLS and ABORT is refused before TLS, and nothing said before it counts after.
void tls_modes() {
  const Offer required = offer_of(kOffer.exports, TlsMode::required);
  const Offer offered = offer_of(kOffer.exports, TlsMode::on);
  Session forced(3, SIZE_MAX, required);
  for (const uint32_t type : {3u, 4u, 6u, 7u, 8u, 9u, 10u, 11u, 99u}) {
    forced.feed(option(type, Bytes(type == 99 ? 9000 : 12)));
    CHECK(forced.answer(type) == kRepErrTlsRequired && forced.open());
  }
  forced.feed(option(kOptStartTls, text("x")));
  CHECK(forced.answer(kOptStartTls) == kRepErrInvalid && forced.open());
  forced.feed(option(kOptStartTls));
  CHECK(forced.answer(kOptStartTls) == kRepAck && forced.handshake.phase() == Handshake::Phase::wants_tls);
  CHECK(forced.handshake.input().empty());  // what follows is for TLS
  forced.handshake.tls_started();
  forced.feed(option(kOptStartTls));
  CHECK(forced.answer(kOptStartTls) == kRepErrInvalid && forced.open());
  forced.feed(option(kOptGo, info_payload("")));
  CHECK(forced.handshake.phase() == Handshake::Phase::wants_lane);

  Session old(3, SIZE_MAX, required);
  old.feed(option(kOptExportName));
  CHECK(old.closed() && old.out.empty());
  Session leaver(3, SIZE_MAX, required);
  leaver.feed(option(kOptAbort));
  CHECK(leaver.answer(kOptAbort) == kRepAck && leaver.handshake.aborted());
  Session unfixed(0, SIZE_MAX, required);
  unfixed.feed(option(kOptExportName));
  CHECK(unfixed.closed());

  // Offered: plaintext works too; but what was agreed in plaintext is forgotten.
  Session session(3, SIZE_MAX, offered);
  session.feed(option(kOptStructuredReply));
  session.feed(option(kOptSetMetaContext, meta_payload("", {"base:allocation"})));
  session.out.clear();
  session.feed(option(kOptStartTls));
  CHECK(session.answer(kOptStartTls) == kRepAck);
  session.handshake.tls_started();
  session.feed(option(kOptGo, info_payload("")));
  session.handshake.grant();
  CHECK(!session.handshake.terms().structured && !session.handshake.terms().base_allocation);
  Session plain(3, SIZE_MAX, offered);
  plain.feed(option(kOptGo, info_payload("")));
  CHECK(plain.handshake.phase() == Handshake::Phase::wants_lane);
}

void limits() {
  // 32 options, then the end.
  Session many;
  for (int i = 0; i < 32; i++) {
    many.feed(option(kOptList));
    CHECK(many.open());
  }
  many.out.clear();
  many.feed(option(kOptList));
  CHECK(many.closed() && std::string(many.handshake.reason()) == "too many options");
  // 4 GiB - 1: refused at the header; nothing of it is read.
  for (const uint32_t type : {kOptGo + 0u, kOptExportName + 0u, 1234u}) {
    Session huge;
    CHECK(huge.feed(option(type, Bytes(100000, 'a'), 0xffffffff)) == sizeof(OptionHeader));
    CHECK(huge.closed() && std::string(huge.handshake.reason()) == "option too long");
  }
  Session at_limit;
  at_limit.feed(option(1234, Bytes(kMaxOptionLength, 'a')));
  CHECK(at_limit.answer(1234) == kRepErrUnsup && at_limit.open());
  // Names: 4096 bytes are heard, 5000 are not.
  Session name_ok;
  name_ok.feed(option(kOptGo, info_payload(std::string(4096, 'n'))));
  CHECK(name_ok.answer(kOptGo) == kRepErrUnknown && name_ok.open());
  Session name_long;
  name_long.feed(option(kOptGo, info_payload(std::string(4097, 'n'))));
  CHECK(name_long.answer(kOptGo) == kRepErrTooBig && name_long.open());
  Session name_longer;
  name_longer.feed(option(kOptGo, info_payload(std::string(6000, 'n'))));
  CHECK(name_longer.answer(kOptGo) == kRepErrTooBig && name_longer.open());
  Session old_style;
  old_style.feed(option(kOptExportName, Bytes(5000, 'n')));
  CHECK(old_style.closed() && std::string(old_style.handshake.reason()) == "export name too long");
  Session old_style_huge;
  old_style_huge.feed(option(kOptExportName, Bytes(20000, 'n')));
  CHECK(old_style_huge.closed());
  // The longest names and descriptions of our own fit the answer.
  const Offer longest =
      offer_of({{std::string(4096, 'a'), std::string(4096, 'b'), {.size = 1, .flags = 1}, 4096}});
  Session wide(3, 1000, longest);
  wide.feed(option(kOptInfo, info_payload(longest.exports[0].name, {1, 2, 3})));
  CHECK(wide.answer(kOptInfo) == kRepInfo && wide.answer(kOptInfo) == kRepInfo);
  CHECK(wide.payload.size() == 4098);
  CHECK(wide.answer(kOptInfo) == kRepInfo && wide.answer(kOptInfo) == kRepInfo);
  CHECK(wide.answer(kOptInfo) == kRepAck);
  wide.feed(option(kOptList));
  CHECK(wide.answer(kOptList) == kRepServer && wide.payload.size() == 4 + 8192);
}

// Lengths that lie: the name's length that wraps, or goes past the option; counts of information
// requests that do not match; trailing bytes.
void malformed_info() {
  const auto payload = [](uint32_t name_length, const Bytes& rest) {
    Bytes bytes;
    append(bytes, Be32(name_length));
    bytes.insert(bytes.end(), rest.begin(), rest.end());
    return bytes;
  };
  const std::vector<Bytes> bad = {
      {},
      {0, 0, 0},
      payload(0, {}),
      payload(0, {0}),
      payload(0xffffffff, {0, 0}),
      payload(0xfffffffe, {0, 0, 1, 2}),
      payload(0x80000000, text("volume")),
      payload(7, {'v', 'o', 'l', 'u', 'm', 'e'}),
      payload(6, {'v', 'o', 'l', 'u', 'm', 'e'}),
      payload(0, {0, 1}),
      payload(0, {0xff, 0xff, 0, 0}),
      payload(0, {0, 0, 0}),
      payload(0, {0, 1, 0, 0, 0, 0}),
  };
  for (const uint32_t type : {kOptInfo + 0u, kOptGo + 0u}) {
    for (const Bytes& each : bad) {
      Session session;
      session.feed(option(type, each));
      CHECK(session.answer(type) == kRepErrInvalid && session.open());
      session.feed(option(kOptGo, info_payload("volume")));
      CHECK(session.handshake.phase() == Handshake::Phase::wants_lane);
    }
  }
}

void random_bytes() {
  std::mt19937_64 random(99);
  for (int round = 0; round < effort(20'000); round++) {
    Session session(3, 1 + random() % 300);
    for (int i = 0; i < 8 && session.open(); i++) {
      Bytes payload(random() % 200);
      for (auto& byte : payload) byte = static_cast<uint8_t>(random() % 4 == 0 ? random() : 0);
      const uint32_t type = random() % 10 == 0 ? static_cast<uint32_t>(random()) : random() % 13;
      const uint32_t length =
          random() % 20 == 0 ? static_cast<uint32_t>(random()) : static_cast<uint32_t>(payload.size());
      session.feed(option(type, payload, length));
    }
    session.out.clear();
  }
}

STRESS(nbd_handshake_limits) {
  timed("TLS modes", tls_modes);
  timed("limits", limits);
  timed("malformed INFO and GO", malformed_info);
  timed("random bytes", random_bytes);
  std::printf("ok\n");
  return 0;
}

}  // namespace nbd_handshake_limits_stress
