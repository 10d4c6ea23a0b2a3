// Markers and CRCs as they are agreed on (RFC 5044 §7.1): every kind of traffic with each choice of both
// sides, data verified. This side's choice comes from the environment, so the program runs itself once for
// each.
#include <sys/wait.h>

#include <random>

#include "raw_peer.h"
#include "traffic.h"

namespace iwarp_marker_stress {

using namespace fixture;

bool markers_asked;
bool crc_asked;

// Sizes around everything that matters: an interval, what is copied, an FPDU, a batch.
constexpr size_t kSizes[] = {0,      1,      7,       490,     494,   508,     511,
                             512,    513,    1'000,   4'096,   8'191, 32'768,  65'400,
                             65'470, 65'536, 100'001, 262'144, 3,     300'000, 1'000'000};
constexpr size_t kMemory = 1'100'000;

struct Ends {
  End& from;
  End& to;
  Memory& source;
  Memory& sink;
};

// Each operation, from one end to the other.
void all_operations(const Ends& ends, std::mt19937& random) {
  for (const size_t size : kSizes) {
    const size_t offset = random() % 4096;
    fill_noise(&ends.source.bytes[offset], size, random());
    const auto clear = [&] { std::memset(&ends.sink.bytes[offset], 0, size); };
    const auto same = [&] {
      return std::memcmp(&ends.source.bytes[offset], &ends.sink.bytes[offset], size) == 0;
    };
    // The payload from three pieces.
    const size_t a = size / 3, b = size / 2;
    const std::vector<ibv_sge> pieces = {ends.source.sge(offset, a), ends.source.sge(offset + a, b - a),
                                         ends.source.sge(offset + b, size - b)};
    const uint64_t address = ends.sink.address(offset);
    for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM}) {
      clear();
      post_receive(ends.to, 1, ends.sink.sge(offset, size));
      post(ends.from,
           {.wr_id = 2,
            .opcode = opcode,
            .remote_address = address,
            .remote_key = ends.sink.mr->rkey,
            .immediate = static_cast<uint32_t>(size)},
           pieces);
      const Completions done = pump(ends.from, 1, ends.to, 1);
      CHECK(done.client[0].status == IBV_WC_SUCCESS && done.client[0].wr_id == 2);
      const ibv_wc& wc = done.server[0];
      CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1);
      CHECK(wc.byte_len == size && same());
      if (opcode != IBV_WR_SEND) CHECK(ntohl(wc.imm_data) == size);
    }
    // And a READ, the other way round: the same bytes again.
    clear();
    post(ends.to,
         {.wr_id = 3,
          .opcode = IBV_WR_RDMA_READ,
          .remote_address = ends.source.address(offset),
          .remote_key = ends.source.mr->rkey},
         {ends.sink.sge(offset, size)});
    const Completions done = pump(ends.from, 0, ends.to, 1);
    CHECK(done.server[0].status == IBV_WC_SUCCESS && done.server[0].wr_id == 3 && same());
  }
}

void between_real_ends(Progress progress) {
  std::mt19937 random(5);
  Listener listener;
  Pair pair(listener, {.progress = progress}, {.progress = progress});
  Memory near(pair.client->pd, kMemory), far(pair.server->pd, kMemory);
  all_operations({*pair.client, *pair.server, near, far}, random);
  all_operations({*pair.server, *pair.client, far, near}, random);
  // Many small ones at once: markers fall everywhere in them.
  near.fill(6);
  const auto rounds = static_cast<uint32_t>(effort(120));
  for (uint32_t round = 0; round < rounds; round++) {
    for (uint32_t i = 0; i < 100; i++) {
      const size_t length = (round * 7 + i) % 90;
      post(*pair.client,
           {.opcode = IBV_WR_RDMA_WRITE,
            .flags = i == 99 ? IBV_SEND_SIGNALED
                     : i % 2 ? IBV_SEND_INLINE
                             : 0,
            .remote_address = far.address(i * 128),
            .remote_key = far.mr->rkey},
           {near.sge(i * 128, length)});
    }
    const Completions done = pump(*pair.client, 1, *pair.server, 0);
    CHECK(done.client[0].status == IBV_WC_SUCCESS && done.client[0].wr_id == 0);
  }
  post(*pair.client,
       {.wr_id = 9, .opcode = IBV_WR_RDMA_READ, .remote_address = far.address(), .remote_key = far.mr->rkey},
       {near.sge(kMemory / 2, 100 * 128)});
  const Completions done = pump(*pair.client, 1, *pair.server, 0);
  CHECK(done.client[0].status == IBV_WC_SUCCESS && done.client[0].wr_id == 9);
  for (uint32_t i = 0; i < 100; i++) {  // what the last round wrote
    CHECK(std::memcmp(&near.bytes[i * 128], &far.bytes[i * 128], ((rounds - 1) * 7 + i) % 90) == 0);
  }
}

MpaFrame request_with(bool markers, bool crc) {
  MpaFrame request = enhanced_request();
  request.markers = markers;
  request.crc = crc;
  return request;
}

// What was agreed on, by a raw initiator's choices.
void raw_initiators(Progress progress) {
  for (const bool markers : {false, true}) {
    for (const bool crc : {false, true}) {
      Victim victim(progress, request_with(markers, crc));
      CHECK(victim.reply.markers == markers_asked && victim.reply.crc == (crc || crc_asked));
      std::mt19937 random(7);
      for (uint32_t i = 0; i < 60; i++) {
        Bytes payload(i % 10 == 9 ? random() % 30'000 : random() % 700);
        fill_noise(payload.data(), payload.size(), random());
        victim.peer.send_fpdu(tagged(Opcode::write, victim.key(), victim.memory->address(i), payload));
        victim.peer.send_fpdu(read_request(
            i + 1, {9, 9, static_cast<uint32_t>(payload.size()), victim.key(), victim.memory->address(i)}));
        CHECK(victim.answer() == tagged(Opcode::read_response, 9, 9, payload));
      }
      post(*victim.end, {.wr_id = 1}, {victim.memory->sge(0, 3000)});
      const Bytes expected(victim.memory->bytes.begin(), victim.memory->bytes.begin() + 3000);
      CHECK(victim.peer.receive_fpdu() == untagged(Opcode::send, 0, 1, 0, expected));
      victim.end->expect(1);
    }
  }
}

void raw_responders() {
  for (const bool markers : {false, true}) {
    for (const bool crc : {false, true}) {
      RawListener listener;
      Initiator initiator(listener);
      Memory memory(initiator.end->pd, 100'000);
      memory.fill(8);
      RawPeer peer(listener.accept());
      MpaFrame reply = peer.receive_frame();
      CHECK(reply.markers == markers_asked && reply.crc == crc_asked);
      peer.crc = crc || crc_asked;
      peer.markers_sent = markers_asked;
      peer.markers_received = reply.markers = markers;
      reply.reply = true;
      reply.crc = crc;
      reply.rtr_read = false;
      peer.send(build_mpa(reply));
      CHECK(peer.receive_fpdu() == tagged(Opcode::write, 0, 0, {}));
      initiator.end->id.events->expect(CmEvent::Type::established);
      for (uint32_t i = 0; i < 40; i++) {
        const size_t length = (i * 977) % 9000;
        post(*initiator.end, {.wr_id = i, .opcode = IBV_WR_RDMA_WRITE, .remote_address = i, .remote_key = 3},
             {memory.sge(i, length)});
        const Bytes expected(memory.bytes.begin() + i, memory.bytes.begin() + static_cast<long>(i + length));
        CHECK(peer.receive_fpdu() == tagged(Opcode::write, 3, i, expected));
        initiator.end->expect(i);
      }
      peer.send_fpdu(tagged(Opcode::write, memory.mr->rkey, memory.address(50'000), Bytes(20'000, 0x6b)));
      peer.send_fpdu(read_request(1, {4, 5, 20'000, memory.mr->rkey, memory.address(50'000)}));
      CHECK(peer.receive_fpdu() == tagged(Opcode::read_response, 4, 5, Bytes(20'000, 0x6b)));
    }
  }
}

// Octet by octet, and what is wrong with an FPDU is said.
void damage(Progress progress) {
  {
    Victim victim(progress, request_with(true, true));
    const Bytes payload(700, 0x42);
    const Bytes ulpdu = tagged(Opcode::write, victim.key(), victim.memory->address(), payload);
    for (const uint8_t byte : build_fpdu(ulpdu, true, markers_asked, victim.peer.sent_position)) {
      victim.peer.send({byte});
    }
    victim.peer.sent_position += build_fpdu(ulpdu, true, markers_asked, victim.peer.sent_position).size();
    victim.peer.send_fpdu(read_request(1, {1, 2, 700, victim.key(), victim.memory->address()}));
    CHECK(victim.answer() == tagged(Opcode::read_response, 1, 2, payload));
  }
  const auto terminated = [&](bool crc, TerminateCode code, const std::function<void(Bytes&)>& harm) {
    Victim victim(progress, request_with(false, crc));
    const Bytes before = victim.memory->bytes;
    const Bytes ulpdu = tagged(Opcode::write, victim.key(), victim.memory->address(), Bytes(600, 0x17));
    Bytes bytes = build_fpdu(ulpdu, victim.peer.crc, markers_asked, victim.peer.sent_position);
    harm(bytes);
    victim.peer.send(bytes);
    victim.drain();
    CHECK(victim.peer.receive_terminate() == code);
    CHECK(victim.memory->bytes == before);
  };
  terminated(true, terminate::mpa_crc, [](Bytes& bytes) { bytes[100] ^= 1; });
  if (!markers_asked) return;
  const size_t marker = 512 - 24;  // the Ready-To-Receive message was 24 octets
  for (const bool crc : {true, false}) {
    terminated(crc, terminate::mpa_marker, [&](Bytes& bytes) {
      CHECK(load_be16(&bytes[marker + 2]) == marker);
      bytes[marker + 3] ^= 4;
      if (crc || crc_asked) store_crc(&bytes[bytes.size() - 4], crc32c(bytes.data(), bytes.size() - 4));
    });
  }
  // The marker is covered by the CRC.
  terminated(true, terminate::mpa_crc, [&](Bytes& bytes) { bytes[marker] ^= 1; });
}

int run_all() {
  markers_asked = std::getenv("RDMAKIT_IWARP_MARKERS") != nullptr;
  crc_asked = std::getenv("RDMAKIT_IWARP_CRC") == nullptr;
  std::printf("markers %d, CRC %d\n", markers_asked, crc_asked);
  timed("raw responders", raw_responders);
  for (const Progress progress : {Progress::manual, Progress::automatic}) {
    timed("raw initiators", [=] { raw_initiators(progress); });
    timed("damage", [=] { damage(progress); });
    timed("between real ends", [=] { between_real_ends(progress); });
  }
  std::puts("ok");
  return 0;
}

STRESS(iwarp_marker) {
  if (count > 1) return run_all();
  for (int mode = 0; mode < 4; mode++) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      unsetenv("RDMAKIT_IWARP_MARKERS");
      unsetenv("RDMAKIT_IWARP_CRC");
      if (mode & 1) setenv("RDMAKIT_IWARP_MARKERS", "1", 1);
      if (mode & 2) setenv("RDMAKIT_IWARP_CRC", "0", 1);
      execl("/proc/self/exe", "/proc/self/exe", stress::running(), "as-set", nullptr);
      std::_Exit(127);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  return 0;
}

}  // namespace iwarp_marker_stress
