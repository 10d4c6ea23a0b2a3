// Every error that a peer can make, and the Terminate message that it gets for it (RFC 5040 §4.8, RFC 5041
// §8, RFC 5044 §8, RFC 6581): the table in native/iwarp/README.md.
#include <optional>

#include "raw_peer.h"

namespace iwarp_terminate_stress {

using namespace fixture;

// Each of these must end the connection with the Terminate message that the RFCs have for it.
void protocol_errors(Progress progress) {
  struct Case {
    const char* name;
    TerminateCode expected;
    std::function<Bytes(const Victim&)> bytes;
  };
  const auto at = [](const Victim& victim, uint64_t offset) { return victim.memory->address(offset); };
  const Bytes payload(16, 0xee);
  const auto with = [](Bytes bytes, size_t at, uint8_t value) {
    bytes[at] = value;
    return bytes;
  };
  const Victim foreign(progress);
  const Bytes foreign_before = foreign.memory->bytes;
  const Case cases[] = {
      {"wrong CRC", terminate::mpa_crc,
       [&](const Victim& victim) {
         Bytes bytes = fpdu(tagged(Opcode::write, victim.key(), at(victim, 0), payload));
         bytes.back() ^= 1;
         return bytes;
       }},
      {"wrong CRC, large", terminate::mpa_crc,
       [&](const Victim& victim) {
         Bytes bytes = fpdu(tagged(Opcode::write, victim.key(), at(victim, 0), Bytes(60'000)));
         bytes[30'000] ^= 1;
         return bytes;
       }},
      {"no header", terminate::rdmap_catastrophic, [&](const Victim&) { return fpdu(Bytes(5, 0xc1)); }},
      {"empty", terminate::rdmap_catastrophic, [&](const Victim&) { return fpdu({}); }},
      {"unknown STag", terminate::ddp_invalid_stag,
       [&](const Victim& victim) {
         return fpdu(tagged(Opcode::write, victim.key() ^ 0x80, at(victim, 0), payload));
       }},
      {"STag 0", terminate::ddp_invalid_stag,
       [&](const Victim& victim) { return fpdu(tagged(Opcode::write, 0, at(victim, 0), payload)); }},
      {"past the end", terminate::ddp_bounds,
       [&](const Victim& victim) {
         return fpdu(
             tagged(Opcode::write, victim.key(), at(victim, victim.memory->bytes.size() - 15), payload));
       }},
      {"before the beginning", terminate::ddp_bounds,
       [&](const Victim& victim) {
         return fpdu(tagged(Opcode::write, victim.key(), at(victim, 0) - 1, payload));
       }},
      {"wraps", terminate::ddp_wrap,
       [&](const Victim& victim) {
         return fpdu(tagged(Opcode::write, victim.key(), UINT64_MAX - 7, payload));
       }},
      {"large, past the end", terminate::ddp_bounds,
       [&](const Victim& victim) {
         return fpdu(tagged(Opcode::write, victim.key(), at(victim, 128 * 1024 - 59'999), Bytes(60'000)));
       }},
      {"Read of an unknown STag", terminate::rdmap_invalid_stag,
       [&](const Victim& victim) {
         return fpdu(read_request(1, {1, 0, 8, victim.key() ^ 0x80, at(victim, 0)}));
       }},
      {"Read past the end", terminate::rdmap_bounds,
       [&](const Victim& victim) {
         return fpdu(read_request(1, {1, 0, UINT32_MAX, victim.key(), at(victim, 0)}));
       }},
      {"Read that wraps", terminate::rdmap_wrap,
       [&](const Victim& victim) {
         return fpdu(read_request(1, {1, 0, 16, victim.key(), UINT64_MAX - 7}));
       }},
      {"Read out of sequence", terminate::ddp_sequence,
       [&](const Victim& victim) {
         return fpdu(read_request(2, {1, 0, 8, victim.key(), at(victim, 0)}));
       }},
      {"Send without a receive", terminate::ddp_no_buffer,
       [&](const Victim&) { return fpdu(untagged(Opcode::send, 0, 1, 0, payload)); }},
      {"Send out of sequence", terminate::ddp_sequence,
       [&](const Victim&) { return fpdu(untagged(Opcode::send, 0, 2, 0, payload)); }},
      {"Send at an offset", terminate::ddp_message_offset,
       [&](const Victim&) { return fpdu(untagged(Opcode::send, 0, 1, 4, payload)); }},
      {"Immediate without a receive", terminate::ddp_no_buffer,
       [&](const Victim&) { return fpdu(untagged(Opcode::immediate, 0, 1, 0, Bytes(8))); }},
      {"Send with Invalidate without a receive", terminate::ddp_no_buffer,
       [&](const Victim&) { return fpdu(untagged(Opcode::send_invalidate, 0, 1, 0, payload)); }},
      {"a response nobody asked for", terminate::rdmap_opcode,
       [&](const Victim& victim) {
         return fpdu(tagged(Opcode::read_response, victim.key(), at(victim, 0), payload));
       }},
      {"an atomic on no region", terminate::rdmap_invalid_stag,
       [&](const Victim&) { return fpdu(untagged(Opcode::atomic_request, 1, 1, 0, Bytes(52))); }},
      {"an atomic on queue 0", terminate::ddp_queue,
       [&](const Victim&) { return fpdu(untagged(Opcode::atomic_request, 0, 1, 0, Bytes(52))); }},
      {"an atomic that is too short", terminate::rdmap_catastrophic,
       [&](const Victim&) { return fpdu(untagged(Opcode::atomic_request, 1, 1, 0, Bytes(51))); }},
      {"an atomic response nobody asked for", terminate::rdmap_opcode,
       [&](const Victim&) { return fpdu(untagged(Opcode::atomic_response, 3, 1, 0, Bytes(12))); }},
      {"DDP version, tagged", terminate::ddp_tagged_version,
       [&](const Victim& victim) {
         return fpdu(with(tagged(Opcode::write, victim.key(), at(victim, 0), payload), 0, 0xc2));
       }},
      {"DDP version, untagged", terminate::ddp_untagged_version,
       [&](const Victim&) { return fpdu(with(untagged(Opcode::send, 0, 1, 0, payload), 0, 0x40)); }},
      {"RDMAP version", terminate::rdmap_version,
       [&](const Victim&) { return fpdu(with(untagged(Opcode::send, 0, 1, 0, payload), 1, 0x83)); }},
      {"no such opcode", terminate::rdmap_opcode,
       [&](const Victim&) { return fpdu(with(untagged(Opcode::send, 0, 1, 0, payload), 1, 0x4f)); }},
      {"a tagged Send", terminate::rdmap_opcode,
       [&](const Victim& victim) { return fpdu(tagged(Opcode::send, victim.key(), 0, payload)); }},
      {"a Send on queue 3", terminate::ddp_queue,
       [&](const Victim&) { return fpdu(untagged(Opcode::send, 3, 1, 0, payload)); }},
      {"a Read Request on queue 0", terminate::ddp_queue,
       [&](const Victim&) { return fpdu(untagged(Opcode::read_request, 0, 1, 0, Bytes(28))); }},
      {"a Read Request in two", terminate::ddp_message_offset,
       [&](const Victim&) { return fpdu(untagged(Opcode::read_request, 1, 1, 0, Bytes(28), false)); }},
      {"a Read Request that is too long", terminate::ddp_too_long,
       [&](const Victim&) { return fpdu(untagged(Opcode::read_request, 1, 1, 0, Bytes(29))); }},
      {"a Read Request that is too short", terminate::rdmap_catastrophic,
       [&](const Victim&) { return fpdu(untagged(Opcode::read_request, 1, 1, 0, Bytes(27))); }},
      {"a Terminate that is too long", terminate::ddp_too_long,
       [&](const Victim&) { return fpdu(untagged(Opcode::terminate, 2, 1, 0, Bytes(53))); }},
      {"WRITE to another domain", terminate::ddp_not_associated,
       [&](const Victim&) {
         return fpdu(tagged(Opcode::write, foreign.key(), foreign.memory->address(), payload));
       }},
      {"Read of another domain", terminate::rdmap_not_associated,
       [&](const Victim&) {
         return fpdu(read_request(1, {1, 0, 8, foreign.key(), foreign.memory->address()}));
       }},
      {"WRITE without the right", terminate::rdmap_access,
       [&](const Victim& victim) {
         return fpdu(tagged(Opcode::write, victim.local->mr->rkey, victim.local->address(), payload));
       }},
      {"Read without the right", terminate::rdmap_access,
       [&](const Victim& victim) {
         return fpdu(read_request(1, {1, 0, 8, victim.local->mr->rkey, victim.local->address()}));
       }},
      {"Immediate out of sequence", terminate::ddp_sequence,
       [&](const Victim&) { return fpdu(untagged(Opcode::immediate, 0, 7, 0, Bytes(8))); }},
  };
  for (const Case& each : cases) {
    Victim victim(progress);
    const Bytes before = victim.memory->bytes;
    victim.peer.send(each.bytes(victim));
    victim.drain();
    const TerminateCode code = victim.peer.receive_terminate();
    if (!(code == each.expected)) {
      std::fprintf(stderr, "%s: terminate %d/%d/%d\n", each.name, code.layer, code.type, code.code);
      std::abort();
    }
    CHECK(victim.end->id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
    if (std::strcmp(each.name, "wrong CRC, large") != 0) CHECK(victim.memory->bytes == before);
    CHECK(victim.local->bytes == Bytes(victim.local->bytes.size()));
  }
  CHECK(foreign.memory->bytes == foreign_before);
}

// A Send that is longer than the receive it goes to: the receive says so too.
void too_long(Progress progress) {
  for (const bool in_two : {false, true}) {
    Victim victim(progress);
    const Bytes before = victim.memory->bytes;
    post_receive(*victim.end, 1, victim.memory->sge(100, 15));
    post_receive(*victim.end, 2, victim.memory->sge(200, 15));
    if (in_two) victim.peer.send(fpdu(untagged(Opcode::send, 0, 1, 0, Bytes(8, before[100]), false)));
    victim.peer.send(fpdu(untagged(Opcode::send, 0, 1, in_two ? 8 : 0, Bytes(in_two ? 8 : 16))));
    victim.end->expect(1, IBV_WC_LOC_LEN_ERR);
    victim.end->expect(2, IBV_WC_WR_FLUSH_ERR);
    CHECK(victim.peer.receive_terminate() == terminate::ddp_too_long);
    CHECK(Bytes(victim.memory->bytes.begin() + 108, victim.memory->bytes.end()) ==
          Bytes(before.begin() + 108, before.end()));
  }
}

// This side's fault: the memory of a receive is gone. The peer is told no more than that.
void memory_gone(Progress progress) {
  for (const size_t length : {16u, 60'000u}) {
    Victim victim(progress);
    auto gone = std::make_unique<Memory>(victim.end->pd, 64 * 1024);
    post_receive(*victim.end, 1, gone->sge(0, length));
    gone.reset();
    victim.peer.send(fpdu(untagged(Opcode::send, 0, 1, 0, Bytes(length))));
    victim.end->expect(1, IBV_WC_LOC_PROT_ERR);
    CHECK(victim.peer.receive_terminate() == terminate::local_catastrophic);
  }
}

// The Terminate message's data about the offending segment: its length and headers, and the whole Read
// Request.
void blame() {
  const auto told = [](const Bytes& bytes) {
    Victim victim(Progress::automatic);
    victim.peer.send(bytes);
    return victim.peer.receive_fpdu();
  };
  const Bytes write = tagged(Opcode::write, 0x01020304, 5, Bytes(100));
  const Bytes header(write.begin(), write.begin() + kTaggedHeaderLength);
  CHECK(told(fpdu(write)) ==
        untagged(Opcode::terminate, 2, 1, 0, Bytes{0x11, 0x00, 0xc0, 0, 0, 114} + header));
  const Bytes read = read_request(1, {1, 2, 3, 0x01020304, 5});
  CHECK(told(fpdu(read)) == untagged(Opcode::terminate, 2, 1, 0, Bytes{0x01, 0x00, 0xe0, 0, 0, 46} + read));
}

// Lies in the answers to this side's READs.
void wrong_responses() {
  const auto respond = [](const std::function<Bytes(const ReadRequest&)>& make, ibv_wc_status expected,
                          std::optional<TerminateCode> told) {
    Victim victim(Progress::automatic);
    post(*victim.end, {.wr_id = 5, .opcode = IBV_WR_RDMA_READ, .remote_address = 7, .remote_key = 6},
         {victim.memory->sge(10, 16)});
    const Bytes asked = victim.peer.receive_fpdu();
    const Bytes before = victim.memory->bytes;
    victim.peer.send(make(parse_read_request(asked.data() + kUntaggedHeaderLength)));
    victim.end->expect(5, expected);
    CHECK(victim.end->id.events->expect(CmEvent::Type::disconnected).status != 0);
    CHECK(victim.memory->bytes == before);
    if (told) CHECK(victim.peer.receive_terminate() == *told);
  };
  const auto response = [](uint32_t stag, uint64_t offset, size_t length, bool last) {
    return fpdu(tagged(Opcode::read_response, stag, offset, Bytes(length), last));
  };
  using Request = const ReadRequest&;
  // The peer's fault: the READ is flushed, and does not say that its own memory is gone.
  const auto lie = [&](const std::function<Bytes(Request)>& make, TerminateCode told) {
    respond(make, IBV_WC_WR_FLUSH_ERR, told);
  };
  lie([&](Request to) { return response(to.sink_stag + 1, to.sink_offset, 16, true); },
      terminate::ddp_invalid_stag);
  lie([&](Request to) { return response(to.sink_stag, to.sink_offset + 1, 8, false); },
      terminate::ddp_bounds);
  lie([&](Request to) { return response(to.sink_stag, to.sink_offset, 15, true); }, terminate::ddp_bounds);
  for (const size_t length : {17u, 60'000u})
    for (const bool last : {true, false})
      lie([&](Request to) { return response(to.sink_stag, to.sink_offset, length, last); },
          terminate::ddp_bounds);
  // The peer's own Terminate message reaches the work request that it is about.
  respond(
      [&](Request) {
        Bytes payload(kMaxTerminateLength);
        TerminateMessage message;
        message.code = terminate::rdmap_bounds;
        payload.resize(build_terminate(payload.data(), message, nullptr));
        return fpdu(untagged(Opcode::terminate, 2, 1, 0, payload));
      },
      IBV_WC_REM_ACCESS_ERR, std::nullopt);
}

STRESS(iwarp_terminate) {
  timed("blame", blame);
  timed("wrong responses", wrong_responses);
  for (const Progress progress : {Progress::manual, Progress::automatic}) {
    timed("protocol errors", [=] { protocol_errors(progress); });
    timed("too long", [=] { too_long(progress); });
    timed("memory gone", [=] { memory_gone(progress); });
  }
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_terminate_stress
