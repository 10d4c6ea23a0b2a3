// The bytes that a queue pair sends, and peers that leave in the middle of a message.
#include <sys/mman.h>

#include <random>

#include "raw_peer.h"

namespace iwarp_wire_stress {

using namespace fixture;

void honest_raw_peer(Progress progress) {
  Victim victim(progress);
  CHECK(victim.reply.reply && !victim.reply.reject && victim.reply.crc && victim.reply.enhanced);
  CHECK(victim.reply.ird == 4 && victim.reply.ord == 4 && !victim.reply.markers);
  CHECK(victim.reply.peer_to_peer && victim.reply.rtr_write && !victim.reply.rtr_read);
  // A Read Request, split into single bytes on the wire.
  const ReadRequest request{0x1234, 99, 5, victim.key(), victim.memory->address(7)};
  for (const uint8_t byte : fpdu(read_request(1, request))) victim.peer.send({byte});
  const Bytes expected(victim.memory->bytes.begin() + 7, victim.memory->bytes.begin() + 12);
  CHECK(victim.answer() == tagged(Opcode::read_response, 0x1234, 99, expected));
  // A Send in two segments with an Immediate Data message behind it.
  post_receive(*victim.end, 1, victim.memory->sge(0, 100));
  post_receive(*victim.end, 2, victim.memory->sge(0, 0));
  victim.peer.send(fpdu(untagged(Opcode::send, 0, 1, 0, {1, 2, 3}, false)) +
                   fpdu(untagged(Opcode::send_solicited, 0, 1, 3, {4})) +
                   fpdu(untagged(Opcode::immediate, 0, 2, 0, {0, 0, 0, 8, 0, 0, 0, 0})));
  CHECK(victim.end->expect(1).byte_len == 4 && victim.memory->bytes[3] == 4);
  const ibv_wc wc = victim.end->expect(2);
  CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && ntohl(wc.imm_data) == 8);
  // What this side sends, byte for byte.
  victim.memory->bytes[0] = 0x5a;
  post(*victim.end, {.wr_id = 3, .opcode = IBV_WR_SEND}, {victim.memory->sge(0, 1)});
  CHECK(victim.peer.receive_fpdu() == untagged(Opcode::send, 0, 1, 0, {0x5a}));
  post(*victim.end,
       {.wr_id = 4,
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .remote_address = 77,
        .remote_key = 88,
        .immediate = 9},
       {victim.memory->sge(0, 1)});
  CHECK(victim.peer.receive_fpdu() == tagged(Opcode::write, 88, 77, {0x5a}));
  CHECK(victim.peer.receive_fpdu() == untagged(Opcode::immediate, 0, 2, 0, {0, 0, 0, 9, 0, 0, 0, 0}));
  victim.end->expect(3);
  victim.end->expect(4);
  // A response that comes in two segments; the sink's name is this side's business.
  post(*victim.end, {.wr_id = 5, .opcode = IBV_WR_RDMA_READ, .remote_address = 7, .remote_key = 6},
       {victim.memory->sge(10, 2)});
  const Bytes asked = victim.peer.receive_fpdu();
  const ReadRequest parsed = parse_read_request(asked.data() + kUntaggedHeaderLength);
  CHECK(parsed.length == 2 && parsed.source_stag == 6 && parsed.source_offset == 7);
  victim.peer.send(fpdu(tagged(Opcode::read_response, parsed.sink_stag, parsed.sink_offset, {0xe1}, false)) +
                   fpdu(tagged(Opcode::read_response, parsed.sink_stag, parsed.sink_offset + 1, {0xe2})));
  victim.end->expect(5);
  CHECK(victim.memory->bytes[10] == 0xe1 && victim.memory->bytes[11] == 0xe2);
  victim.peer.close();
  victim.drain();
  CHECK(victim.end->id.events->expect(CmEvent::Type::disconnected).status == 0);
}

// More READs than were agreed on, from a peer that reads none of the answers.
void too_many_reads() {
  Victim victim(Progress::automatic);
  Bytes flood;
  for (uint32_t i = 1; i <= 3000; i++) {
    flood += fpdu(read_request(i, {1, 0, 128 * 1024, victim.key(), victim.memory->address()}));
  }
  victim.peer.send(flood);
  CHECK(victim.end->id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
}

// A READ of the maximum length of the field, from untouched pages.
void longest_read() {
  const uint32_t length = UINT32_MAX;
  void* memory = mmap(nullptr, length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(memory != MAP_FAILED);
  {
    Victim victim(Progress::automatic);
    ibv_mr* mr = provider().reg_mr(victim.end->pd, memory, length, IBV_ACCESS_REMOTE_READ);
    CHECK(mr != nullptr);
    victim.peer.send(fpdu(read_request(1, {1, 0, length, mr->rkey, reinterpret_cast<uint64_t>(memory)})));
    for (uint64_t offset = 0; offset < 4'000'000;) {
      const Bytes ulpdu = victim.answer();
      Segment segment;
      TerminateCode why;
      CHECK(parse_segment(ulpdu.data(), ulpdu.size(), segment, why) &&
            segment.opcode == Opcode::read_response);
      CHECK(segment.offset == offset && segment.payload_length > 32'768 && !segment.last);
      offset += segment.payload_length;
    }
    victim.peer.close();
    victim.drain();
    CHECK(provider().dereg_mr(mr) == 0);
  }
  munmap(memory, length);
}

// The peer is gone: in the middle of an FPDU, of a SEND, with a reset, or in the middle of a WRITE, whose
// FPDUs so far leave nothing else that is begun.
void vanishing_peers(Progress progress) {
  for (int way = 0; way < 4; way++) {
    Victim victim(progress);
    post_receive(*victim.end, 1, victim.memory->sge(0, 60'000));
    const Bytes whole = fpdu(untagged(Opcode::send, 0, 1, 0, Bytes(50'000), false));
    if (way == 0) victim.peer.send(Bytes(whole.begin(), whole.begin() + 20'000));
    if (way == 1) victim.peer.send(whole);
    if (way == 2) {
      const linger hard{1, 0};
      setsockopt(victim.peer.descriptor(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    }
    if (way == 3)
      victim.peer.send(fpdu(tagged(Opcode::write, victim.key(), victim.memory->address(), {1, 2}, false)));
    victim.peer.close();
    victim.end->expect(1, IBV_WC_WR_FLUSH_ERR);
    CHECK(victim.end->id.events->expect(CmEvent::Type::disconnected).status == ECONNRESET);
  }
}

// Noise, with and without valid framing around it: only the noisy connection ends.
void random_bytes_on_the_wire(Progress progress, int rounds) {
  std::mt19937 random(3);
  Listener bystander_listener;
  Pair bystanders(bystander_listener, {.progress = progress}, {.progress = progress});
  Memory near(bystanders.client->pd, 64), far(bystanders.server->pd, 64);
  for (int round = 0; round < rounds; round++) {
    Victim victim(progress);
    for (uint64_t i = 0; i < 4; i++) post_receive(*victim.end, i, victim.memory->sge(0, 1000));
    Bytes noise;
    for (int part = 0; part < 20; part++) {
      Bytes ulpdu(random() % 3 == 0 ? random() % 60'000 : random() % 100);
      fill_noise(ulpdu.data(), ulpdu.size(), random());
      if (ulpdu.size() >= 2 && round % 2) {
        ulpdu[0] = static_cast<uint8_t>((ulpdu[0] & 0xc0) | 1);
        ulpdu[1] = static_cast<uint8_t>(0x40 | random() % 12);
      }
      if (ulpdu.size() >= 18 && round % 4 == 3) {  // nearly right
        store_be32(&ulpdu[2], victim.key());
        store_be64(&ulpdu[6], ulpdu[0] & 0x80 ? victim.memory->address(random() % 1000) : 0x100000000 >> 32);
      }
      noise += (round % 3 == 0 ? ulpdu : fpdu(ulpdu));
    }
    victim.peer.send(noise);
    victim.peer.close();
    victim.drain();
    post_receive(*bystanders.server, 1, far.sge(0, 64));
    post(*bystanders.client, {.wr_id = 2}, {near.sge(0, 64)});
    bystanders.client->expect(2);
    bystanders.server->expect(1);
  }
}

STRESS(iwarp_wire) {
  timed("too many READs", too_many_reads);
  timed("longest READ", longest_read);
  for (const Progress progress : {Progress::manual, Progress::automatic}) {
    timed("honest raw peer", [=] { honest_raw_peer(progress); });
    timed("vanishing peers", [=] { vanishing_peers(progress); });
    timed("random bytes, sent", [=] { random_bytes_on_the_wire(progress, effort(150)); });
  }
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_wire_stress
