// The negotiation, fed with whatever a client may send, in whatever pieces: it never asks for more than its
// buffer holds, every answer is well-formed and of an option that was asked, and it ends within its limits.
#include <cstring>
#include <string>
#include <vector>

#include "../fuzz_check.h"
#include "protocol/handshake.h"

using namespace rdmakit::nbd;

namespace {

ExportDescription named(const char* name, uint64_t offset, uint16_t flags) {
  return {name, "fuzzed", {.size = 1 << 20, .flags = flags, .offset = offset}, 4096};
}

const Offer& offer(uint8_t which) {
  static const std::vector<ExportDescription> exports = {named("a", 0, kFlagHasFlags),
                                                         named("", 4096, kFlagHasFlags),
                                                         named("b", 0, kFlagHasFlags | kFlagReadOnly)};
  static const Offer offers[] = {
      {exports, TlsMode::off, 0}, {exports, TlsMode::on, kFlagCanMultiConn}, {exports, TlsMode::required, 0}};
  return offers[which % 3];
}

// Parses the server's answers.
class Answers {
 public:
  void add(std::span<const uint8_t> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  // Everything up to the greeting, or up to a grant by EXPORT_NAME, is one thing; the rest are replies.
  void check(size_t plain) {
    size_t at = plain;
    while (at < bytes_.size()) {
      OptionReply reply;
      CHECK(bytes_.size() - at >= sizeof reply);
      std::memcpy(&reply, bytes_.data() + at, sizeof reply);
      CHECK(reply.magic == kOptionReplyMagic);
      CHECK(reply.length <= bytes_.size() - at - sizeof reply);
      CHECK(reply.length <= 2 * kMaxString + 4);
      at += sizeof reply + reply.length;
    }
    bytes_.clear();
  }
  size_t size() const { return bytes_.size(); }

 private:
  std::vector<uint8_t> bytes_;
};

void drain(Handshake& handshake, Answers& answers, size_t piece) {
  for (int i = 0; !handshake.output().empty(); i++) {
    CHECK(i < 1'000'000);
    const auto bytes = handshake.output().first(std::min(piece, handshake.output().size()));
    answers.add(bytes);
    handshake.sent(bytes.size());
  }
}

void put(std::vector<uint8_t>& stream, uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
    stream.push_back(static_cast<uint8_t>(value >> shift));
}

// Options whose headers are right; what they hold is up to the script, with the lengths that they would have.
std::vector<uint8_t> options(fuzz::Input& input) {
  std::vector<uint8_t> stream;
  put(stream, input.byte() % 16 == 0 ? input.byte() : kHandshakeFixedNewstyle | kHandshakeNoZeroes, 4);
  for (int i = 0; i < 40 && !input.empty(); i++) {
    const uint32_t type = input.byte() % 14;
    const uint8_t shape = input.byte();
    std::vector<uint8_t> payload;
    const auto text = [&](std::string_view bytes) {
      put(payload, shape % 32 == 31 ? input.four() : bytes.size(), 4);
      payload.insert(payload.end(), bytes.begin(), bytes.end());
    };
    static const std::string_view names[] = {"", "a", "b", "nothing", "base:", "base:allocation", "qemu:x"};
    const bool meta = type == kOptListMetaContext || type == kOptSetMetaContext;
    if (type == kOptInfo || type == kOptGo || meta) text(names[shape % 4]);
    if (type == kOptInfo || type == kOptGo) put(payload, shape % 16 == 15 ? 9 : 1, 2);
    if (meta) {
      const uint8_t count = input.byte() % 4;
      put(payload, shape % 16 == 15 ? input.four() : count, 4);
      for (int query = 0; query < count; query++) text(names[input.byte() % 7]);
    }
    const auto more =
        input.take(input.byte() % 8 < 6 ? (type == kOptInfo || type == kOptGo ? 2 : 0) : input.byte());
    payload.insert(payload.end(), more.begin(), more.end());
    if (shape >= 250) payload.resize(payload.size() + (shape - 249u) * 1500);
    put(stream, kOptionMagic, 8);
    put(stream, type, 4);
    put(stream, shape == 249 ? input.four() : payload.size(), 4);
    stream.insert(stream.end(), payload.begin(), payload.end());
  }
  return stream;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input script(data, size);
  const uint8_t choice = script.byte();
  const size_t piece = script.byte() * 8u + 1;
  std::vector<uint8_t> made;
  if ((choice & 0x40) != 0) made = options(script);
  fuzz::Input input = made.empty() ? script : fuzz::Input(made.data(), made.size());
  Handshake handshake(offer(choice));
  Answers answers;
  drain(handshake, answers, piece);
  CHECK(answers.size() == sizeof(Greeting));
  answers.check(sizeof(Greeting));
  int refusals = 0;
  while (!input.empty() && handshake.phase() != Handshake::Phase::closed) {
    switch (handshake.phase()) {
      case Handshake::Phase::wants_tls:
        CHECK(handshake.input().empty() && (choice % 3) != 0);
        handshake.tls_started();
        break;
      case Handshake::Phase::wants_lane: {
        CHECK(handshake.input().empty());
        if ((choice & 0x80) != 0 && refusals++ < 2) {
          handshake.refuse(kRepErrPolicy, "busy");
          break;
        }
        handshake.grant();
        CHECK(handshake.phase() == Handshake::Phase::transmission && handshake.input().empty());
        const Terms terms = handshake.terms();
        CHECK(terms.remote && (!terms.base_allocation || terms.structured));
        CHECK(((terms.exported.flags & kFlagSendDf) != 0) == terms.structured);
        return 0;
      }
      default: {
        const auto room = handshake.input();
        CHECK(!room.empty());
        const auto bytes = input.take(std::min(piece, room.size()));
        std::memcpy(room.data(), bytes.data(), bytes.size());
        handshake.received(bytes.size());
      }
    }
    drain(handshake, answers, piece);
    answers.check(0);
  }
  return 0;
}
