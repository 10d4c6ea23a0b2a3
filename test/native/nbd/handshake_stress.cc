// The handshake: each state, answer, limit and past CVE class.
#include "handshake_session.h"

namespace nbd_handshake_stress {

using namespace fixture;

void greeting_and_flags() {
  CHECK(Session(0).open());
  CHECK(Session(1).open());
  CHECK(Session(3).open());
  Session unknown(4);
  CHECK(unknown.closed() && std::string(unknown.handshake.reason()) == "unknown client flags");
  CHECK(Session(0x80000003).closed());
  Session bad_magic;
  CHECK(bad_magic.feed(Bytes(16, 'x')) == 16 && bad_magic.closed());
  // Without fixed newstyle only EXPORT_NAME may come.
  Session plain(0);
  plain.feed(option(kOptList));
  CHECK(plain.closed());
}

void export_name() {
  for (const uint32_t flags :
       {kHandshakeFixedNewstyle | 0u, kHandshakeFixedNewstyle | kHandshakeNoZeroes | 0u, 0u}) {
    for (const std::string_view name : {"volume", ""}) {
      Session session(flags, 3);
      session.feed(option(kOptExportName, text(name)));
      CHECK(session.handshake.phase() == Handshake::Phase::wants_lane);
      CHECK(session.handshake.input().empty());
      session.handshake.grant();
      session.drain();
      CHECK(session.handshake.phase() == Handshake::Phase::transmission);
      ExportNameReply reply;
      CHECK(session.out.size() == sizeof reply - ((flags & kHandshakeNoZeroes) != 0 ? 124 : 0));
      std::memcpy(&reply, session.out.data(), 10);
      CHECK(reply.size == 1u << 30 && reply.transmission_flags == (kFlagHasFlags | kFlagSendFlush));
      CHECK(session.handshake.input().empty());  // not a byte of the transmission phase
    }
  }
  Session unknown;
  unknown.feed(option(kOptExportName, text("other")));
  CHECK(unknown.closed() && unknown.out.empty());
  Session busy;
  busy.feed(option(kOptExportName));
  busy.handshake.refuse(kRepErrPolicy, "busy");
  CHECK(busy.closed() && busy.out.empty());
}

void list_and_abort() {
  Session session;
  session.feed(option(kOptList));
  CHECK(session.answer(kOptList) == kRepServer);
  Bytes expected;
  append(expected, Be32(6));
  append(expected, std::string_view("volumea test"));
  CHECK(session.payload == expected);
  CHECK(session.answer(kOptList) == kRepAck && session.open());
  session.feed(option(kOptList, text("x")));
  CHECK(session.answer(kOptList) == kRepErrInvalid && session.open());
  session.feed(option(kOptAbort));
  CHECK(session.answer(kOptAbort) == kRepAck && session.closed() && session.handshake.aborted());
}

void info_and_go() {
  for (const size_t piece : {SIZE_MAX, size_t{1}, size_t{7}}) {
    Session session(3, piece);
    session.feed(option(
        kOptInfo, info_payload("volume", {kInfoName, kInfoBlockSize, kInfoDescription, 77, kInfoName})));
    CHECK(session.answer(kOptInfo) == kRepInfo);
    InfoExport size;
    CHECK(session.payload.size() == sizeof size);
    std::memcpy(&size, session.payload.data(), sizeof size);
    CHECK(size.type == kInfoExport && size.size == 1u << 30);
    CHECK(session.answer(kOptInfo) == kRepInfo && session.payload.size() == 2 + 6);  // name, once
    CHECK(session.answer(kOptInfo) == kRepInfo && session.payload.size() == 2 + 6);  // description
    CHECK(session.answer(kOptInfo) == kRepInfo && session.payload.size() == sizeof(InfoBlockSize));
    InfoBlockSize blocks;
    std::memcpy(&blocks, session.payload.data(), sizeof blocks);
    CHECK(blocks.minimum == 1 && blocks.preferred == 4096 && blocks.maximum == kMaxPayload);
    CHECK(session.answer(kOptInfo) == kRepAck && session.out.empty() && session.open());

    session.feed(option(kOptGo, info_payload("nothing")));
    CHECK(session.answer(kOptGo) == kRepErrUnknown && session.open());
    session.feed(option(kOptGo, info_payload("")));
    CHECK(session.handshake.phase() == Handshake::Phase::wants_lane);
    session.handshake.refuse(kRepErrPolicy, "busy");
    session.drain();
    CHECK(session.answer(kOptGo) == kRepErrPolicy && session.payload == text("busy") && session.open());
    session.feed(option(kOptGo, info_payload("")));
    session.handshake.grant();
    session.drain();
    CHECK(session.answer(kOptGo) == kRepInfo && session.answer(kOptGo) == kRepInfo);
    CHECK(session.answer(kOptGo) == kRepAck && session.out.empty());
    CHECK(session.handshake.phase() == Handshake::Phase::transmission);
  }
}

// Options that are not offered, whatever they hold; and nothing of a session changes by them.
void unsupported_options() {
  for (const uint32_t type : {4u, 5u, 11u, 12u, 0u, 0x7fffffffu, 0xffffffffu}) {
    for (const size_t length : {0u, 1u, 5000u}) {
      if (type == kOptStartTls && length > 0) continue;  // takes no payload
      Session fresh;
      fresh.feed(option(type, Bytes(length, 'z')));
      CHECK(fresh.answer(type) == kRepErrUnsup && fresh.open());
      fresh.feed(option(kOptGo, info_payload("")));
      CHECK(fresh.handshake.phase() == Handshake::Phase::wants_lane);
    }
  }
}

// STRUCTURED_REPLY brings DF, and what is agreed on comes out as the terms of the transmission phase.
void structured_replies() {
  Session session;
  session.feed(option(kOptStructuredReply, text("x")));
  CHECK(session.answer(kOptStructuredReply) == kRepErrInvalid && session.open());
  session.feed(option(kOptInfo, info_payload("")));
  InfoExport size;
  CHECK(session.answer(kOptInfo) == kRepInfo);
  std::memcpy(&size, session.payload.data(), sizeof size);
  CHECK((size.transmission_flags & kFlagSendDf) == 0);
  session.out.clear();
  session.feed(option(kOptStructuredReply));
  CHECK(session.answer(kOptStructuredReply) == kRepAck);
  session.feed(option(kOptGo, info_payload("")));
  session.handshake.grant();
  session.drain();
  CHECK(session.answer(kOptGo) == kRepInfo);
  std::memcpy(&size, session.payload.data(), sizeof size);
  CHECK((size.transmission_flags & kFlagSendDf) != 0);
  const Terms terms = session.handshake.terms();
  CHECK(terms.structured && !terms.base_allocation && terms.remote);
  CHECK((terms.exported.flags & kFlagSendDf) != 0);

  Session plain;
  plain.feed(option(kOptExportName, text("volume")));
  plain.handshake.grant();
  CHECK(!plain.handshake.terms().structured && (plain.handshake.terms().exported.flags & kFlagSendDf) == 0);
}

void meta_contexts() {
  const Offer two =
      offer_of({{"a", "", {.size = 4096, .flags = 1}, 4096}, {"b", "", {.size = 8192, .flags = 1}, 4096}});
  const auto listed = [](Session& session, const Bytes& payload, uint32_t type, uint32_t id) {
    session.feed(option(type, payload));
    uint32_t found = 0;
    for (;;) {
      const uint32_t answer = session.answer(type);
      if (answer == kRepAck) return found;
      CHECK(answer == kRepMetaContext);
      Bytes expected;
      append(expected, Be32(id));
      append(expected, std::string_view("base:allocation"));
      CHECK(session.payload == expected);
      found++;
    }
  };
  const auto selected = [&](const std::vector<std::string_view>& queries, std::string_view of,
                            std::string_view go) {
    Session session(3, 5, two);
    session.feed(option(kOptStructuredReply));
    session.out.clear();
    listed(session, meta_payload(of, queries), kOptSetMetaContext, kBaseAllocation);
    session.feed(option(kOptGo, info_payload(go)));
    session.handshake.grant();
    return session.handshake.terms().base_allocation;
  };
  Session session;
  for (const uint32_t type : {kOptListMetaContext + 0u, kOptSetMetaContext + 0u}) {
    session.feed(option(type, meta_payload("", {"base:allocation"})));
    CHECK(session.answer(type) == kRepErrInvalid);  // before STRUCTURED_REPLY
  }
  session.feed(option(kOptStructuredReply));
  CHECK(session.answer(kOptStructuredReply) == kRepAck);
  CHECK(listed(session, meta_payload("", {}), kOptListMetaContext, 0) == 1);
  CHECK(listed(session, meta_payload("", {"base:"}), kOptListMetaContext, 0) == 1);
  CHECK(listed(session, meta_payload("", {"x:", "base:allocation", "base:"}), kOptListMetaContext, 0) == 1);
  CHECK(listed(session, meta_payload("", {"base:alloc", "qemu:dirty-bitmap:x"}), kOptListMetaContext, 0) ==
        0);
  CHECK(listed(session, meta_payload("volume", {}), kOptSetMetaContext, kBaseAllocation) == 0);
  CHECK(listed(session, meta_payload("volume", {"base:"}), kOptSetMetaContext, kBaseAllocation) == 0);
  CHECK(listed(session, meta_payload("volume", {"base:allocation"}), kOptSetMetaContext, kBaseAllocation) ==
        1);
  session.feed(option(kOptSetMetaContext, meta_payload("other", {"base:allocation"})));
  CHECK(session.answer(kOptSetMetaContext) == kRepErrUnknown && session.open());
  // The failure has undone the selection.
  session.feed(option(kOptGo, info_payload("volume")));
  session.handshake.grant();
  CHECK(!session.handshake.terms().base_allocation);
  // It counts for the export that it named, however that is named.
  CHECK(selected({"base:allocation"}, "a", "a") && selected({"base:allocation"}, "", "a"));
  CHECK(!selected({"base:allocation"}, "a", "b") && !selected({"base:"}, "a", "a") &&
        !selected({}, "a", "a"));

  // Lengths that lie.
  const auto raw = [](std::initializer_list<uint32_t> words) {
    Bytes bytes;
    for (const uint32_t word : words) append(bytes, Be32(word));
    return bytes;
  };
  for (const uint32_t type : {kOptListMetaContext + 0u, kOptSetMetaContext + 0u}) {
    for (const Bytes& each :
         {Bytes{}, raw({0}), raw({0xffffffff, 0}), raw({0, 1}), raw({0, 0, 0}), raw({0, 1, 1}),
          raw({0, 0xffffffff, 0}), raw({0, 1, 0xffffffff}), raw({0x80000000, 0, 0})}) {
      Session fresh;
      fresh.feed(option(kOptStructuredReply));
      fresh.out.clear();
      fresh.feed(option(type, each));
      CHECK(fresh.answer(type) == kRepErrInvalid && fresh.open());
    }
    Session large;
    large.feed(option(type, Bytes(6000, 0)));
    CHECK(large.answer(type) == kRepErrTooBig && large.open());
  }
}

// Many exports: a LIST far larger than the output buffer, the default one, and read-only beside writable.
void several_exports() {
  std::vector<ExportDescription> many;
  for (int i = 0; i < 40; i++)
    many.push_back(
        {std::string(2000, 'n') + std::to_string(i),
         std::string(3000, 'd'),
         {.size = 4096u * static_cast<uint64_t>(i + 1),
          .flags = static_cast<uint16_t>(i % 2 == 0 ? kFlagHasFlags : kFlagHasFlags | kFlagReadOnly),
          .offset = 4096u * static_cast<uint64_t>(i)},
         4096});
  const Offer offer = offer_of(many);
  for (const size_t piece : {SIZE_MAX, size_t{777}}) {
    Session session(3, piece, offer);
    session.feed(option(kOptList));
    for (const ExportDescription& each : many) {
      CHECK(session.answer(kOptList) == kRepServer && session.payload.size() == 4 + each.name.size() + 3000);
      CHECK(std::memcmp(session.payload.data() + 4, each.name.data(), each.name.size()) == 0);
    }
    CHECK(session.answer(kOptList) == kRepAck && session.out.empty() && session.open());
    session.feed(option(kOptGo, info_payload(many[7].name)));
    session.handshake.grant();
    const Terms terms = session.handshake.terms();
    CHECK(terms.exported.size == 8 * 4096 && terms.exported.offset == 7 * 4096 && terms.exported.read_only());
  }
  Session first(3, 100, offer);
  first.feed(option(kOptGo, info_payload("")));
  first.handshake.grant();
  CHECK(first.handshake.terms().exported.size == 4096);
  many[3].name = "";
  const Offer unnamed = offer_of(many);
  Session fourth(3, 100, unnamed);
  fourth.feed(option(kOptExportName));
  fourth.handshake.grant();
  CHECK(fourth.handshake.terms().exported.size == 4 * 4096);
}

STRESS(nbd_handshake) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::pair<const char*, void (*)()> tests[] = {
      {"greeting and client flags", greeting_and_flags},
      {"EXPORT_NAME", export_name},
      {"LIST and ABORT", list_and_abort},
      {"INFO and GO", info_and_go},
      {"options not offered", unsupported_options},
      {"STRUCTURED_REPLY", structured_replies},
      {"LIST_META_CONTEXT and SET_META_CONTEXT", meta_contexts},
      {"several exports", several_exports},
  };
  for (const auto& [name, test] : tests) {
    test();
    std::printf("%s\n", name);
  }
  std::printf("ok\n");
  return 0;
}

}  // namespace nbd_handshake_stress
