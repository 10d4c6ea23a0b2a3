// Atomics from a raw peer: what RFC 7306 allows on the wire and no verb of ours sends, and what it forbids.
#include <sys/socket.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "iwarp/wire/byte_order.h"
#include "iwarp/wire/ddp.h"
#include "iwarp/wire/mpa.h"
#include "traffic.h"

namespace iwarp_atomic_wire_stress {

using namespace fixture;
using namespace rdmakit::iwarp;

using Bytes = std::vector<uint8_t>;

// A raw initiator, connected and established with a real queue pair that the progress thread moves.
struct RawInitiator {
  Listener listener;
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::unique_ptr<End> end;
  std::unique_ptr<Memory> memory;
  uint32_t sequence = 1;

  explicit RawInitiator(uint16_t outbound_depth) {
    const sockaddr_in address = listener.address();
    CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    const timeval patience{kHang.count(), 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    MpaFrame request;
    request.crc = request.enhanced = request.peer_to_peer = request.rtr_write = true;
    request.ird = 4;
    request.ord = outbound_depth;
    send(build_mpa(request));
    CmEvent event = listener.events->expect(CmEvent::Type::connect_request);
    end = std::make_unique<End>(Id(std::move(event.request)), Options{.progress = Progress::automatic});
    memory = std::make_unique<Memory>(
        end->pd, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    ConnectParameters parameters;
    parameters.qp = end->qp;
    CHECK(end->id.id->accept(parameters) == 0);
    receive(kMpaHeaderLength + kMpaEnhancedLength);
    Segment ready;  // a zero-length WRITE
    ready.tagged = ready.last = true;
    send_segment(ready, {});
    end->id.events->expect(CmEvent::Type::established);
  }
  RawInitiator(const RawInitiator&) = delete;
  ~RawInitiator() { ::close(fd); }

  void send(const Bytes& bytes) {
    CHECK(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  }
  Bytes receive(size_t length) {
    Bytes bytes(length);
    CHECK(::recv(fd, bytes.data(), length, MSG_WAITALL) == static_cast<ssize_t>(length));
    return bytes;
  }
  void send_segment(const Segment& segment, const Bytes& payload) {
    Bytes fpdu(2 + kMaxHeaderLength);
    const size_t header = build_segment(&fpdu[2], segment);
    const size_t ulpdu = header + payload.size();
    fpdu.resize(2 + header);
    fpdu.insert(fpdu.end(), payload.begin(), payload.end());
    fpdu.resize(fpdu_length(ulpdu));
    store_be16(&fpdu[0], static_cast<uint16_t>(ulpdu));
    store_crc(&fpdu[fpdu.size() - 4], crc32c(fpdu.data(), fpdu.size() - 4));
    send(fpdu);
  }
  void send_request(Opcode opcode, const Bytes& payload) {
    Segment segment;
    segment.last = true;
    segment.opcode = opcode;
    segment.queue = kReadRequestQueue;
    segment.sequence = sequence++;
    send_segment(segment, payload);
  }
  void send_atomic(const AtomicRequest& request) {
    Bytes payload(kAtomicRequestLength);
    build_atomic_request(payload.data(), request);
    send_request(Opcode::atomic_request, payload);
  }
  // The next segment and its payload.
  Segment receive_segment(Bytes& payload) {
    const Bytes head = receive(2);
    const size_t ulpdu = load_be16(head.data());
    const Bytes rest = receive(fpdu_length(ulpdu) - 2);
    Segment segment;
    TerminateCode why;
    CHECK(parse_segment(rest.data(), ulpdu, segment, why));
    payload.assign(rest.begin() + segment.header_length, rest.begin() + static_cast<long>(ulpdu));
    return segment;
  }
  TerminateCode receive_terminate() {
    Bytes payload;
    CHECK(receive_segment(payload).opcode == Opcode::terminate);
    TerminateMessage message;
    CHECK(parse_terminate(payload.data(), payload.size(), message));
    return message.code;
  }
  AtomicRequest request(AtomicOperation operation, size_t offset) const {
    AtomicRequest made;
    made.operation = operation;
    made.identifier = 0xabcd0000 + sequence;
    made.stag = memory->mr->rkey;
    made.offset = memory->address(offset);
    return made;
  }
};

// Answers come on queue 3, numbered there, with the peer's own identifiers; masks are obeyed.
void masked() {
  RawInitiator peer(4);
  uint64_t word = 0x00000000'000000ff;
  std::memcpy(&peer.memory->bytes[8], &word, 8);
  AtomicRequest add = peer.request(AtomicOperation::fetch_add, 8);
  add.add_swap = 0x101;
  add.add_swap_mask = 0x80;  // the low byte is a field of its own
  peer.send_atomic(add);
  AtomicRequest swap = peer.request(AtomicOperation::compare_swap, 8);
  swap.compare = 0x7700;
  swap.compare_mask = 0x00ff;  // compares the low byte only, which is 0 by now
  swap.add_swap = 0xaabbccdd'eeff1122;
  swap.add_swap_mask = 0xffffffff'00000000;
  peer.send_atomic(swap);
  const uint64_t originals[] = {0xff, 0x100};
  const uint32_t identifiers[] = {add.identifier, swap.identifier};
  for (uint32_t i = 0; i < 2; i++) {
    Bytes payload;
    const Segment segment = peer.receive_segment(payload);
    CHECK(segment.opcode == Opcode::atomic_response && segment.queue == kAtomicResponseQueue);
    CHECK(segment.sequence == i + 1 && segment.last && payload.size() == kAtomicResponseLength);
    const AtomicResponse response = parse_atomic_response(payload.data());
    CHECK(response.identifier == identifiers[i] && response.original == originals[i]);
  }
  std::memcpy(&word, &peer.memory->bytes[8], 8);
  CHECK(word == 0xaabbccdd'00000100);
}

void forbidden() {
  struct Case {
    TerminateCode code;
    void (*spoil)(AtomicRequest&);
  };
  const Case cases[] = {
      {terminate::rdmap_opcode, [](AtomicRequest& each) { each.operation = AtomicOperation{1}; }},
      {terminate::rdmap_catastrophic, [](AtomicRequest& each) { each.offset += 4; }},
      {terminate::rdmap_bounds, [](AtomicRequest& each) { each.offset += 8192; }},
      {terminate::rdmap_wrap, [](AtomicRequest& each) { each.offset = UINT64_MAX - 7; }},
      {terminate::rdmap_invalid_stag, [](AtomicRequest& each) { each.stag ^= 1; }},
      {terminate::rdmap_invalid_stag, [](AtomicRequest& each) { each.stag = 0; }},
  };
  for (const Case& each : cases) {
    RawInitiator peer(4);
    AtomicRequest request = peer.request(AtomicOperation::fetch_add, 0);
    request.add_swap = 1;
    each.spoil(request);
    peer.send_atomic(request);
    CHECK(peer.receive_terminate() == each.code);
    CHECK(peer.memory->bytes == Bytes(8192));
  }
  // An answer to nothing, and an answer out of its turn.
  RawInitiator peer(4);
  Segment segment;
  segment.last = true;
  segment.opcode = Opcode::atomic_response;
  segment.queue = kAtomicResponseQueue;
  segment.sequence = 1;
  peer.send_segment(segment, Bytes(kAtomicResponseLength));
  CHECK(peer.receive_terminate() == terminate::rdmap_opcode);
}

// The answer to an outstanding atomic must be the one to it.
void wrong_answers() {
  for (const bool wrong_sequence : {true, false}) {
    RawInitiator peer(4);
    ibv_sge sge = peer.memory->sge(0, 8);
    ibv_send_wr wanted{}, *bad = nullptr;
    wanted.wr_id = 5;
    wanted.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    wanted.send_flags = IBV_SEND_SIGNALED;
    wanted.sg_list = &sge;
    wanted.num_sge = 1;
    wanted.wr.atomic = {0x1000, 7, 0, 0x99};
    CHECK(ibv_post_send(peer.end->qp, &wanted, &bad) == 0);
    Bytes payload;
    CHECK(peer.receive_segment(payload).opcode == Opcode::atomic_request);
    AtomicRequest request;
    CHECK(parse_atomic_request(payload.data(), request));
    CHECK(request.offset == 0x1000 && request.stag == 0x99 && request.add_swap == 7);
    CHECK(request.add_swap_mask == 0);
    Bytes answer(kAtomicResponseLength);
    build_atomic_response(answer.data(), {request.identifier + !wrong_sequence, 1});
    Segment segment;
    segment.last = true;
    segment.opcode = Opcode::atomic_response;
    segment.queue = kAtomicResponseQueue;
    segment.sequence = wrong_sequence ? 2 : 1;
    peer.send_segment(segment, answer);
    CHECK(peer.receive_terminate() == (wrong_sequence ? terminate::ddp_sequence : terminate::rdmap_opcode));
    peer.end->expect(5, IBV_WC_WR_FLUSH_ERR);
    CHECK(peer.memory->bytes == Bytes(8192));
  }
}

// More than the peer said that it would ask for: nothing at all, in the worst case.
void beyond_depth() {
  for (const bool read : {true, false}) {
    RawInitiator peer(0);
    if (read) {
      Bytes payload(kReadRequestLength);
      build_read_request(payload.data(), {1, 0, 4096, peer.memory->mr->rkey, peer.memory->address()});
      peer.send_request(Opcode::read_request, payload);
    } else {
      peer.send_atomic(peer.request(AtomicOperation::fetch_add, 0));
    }
    CHECK(peer.receive_terminate() == terminate::ddp_no_buffer);
  }
}

STRESS(iwarp_atomic_wire) {
  timed("masked", masked);
  timed("forbidden", forbidden);
  timed("wrong answers", wrong_answers);
  timed("beyond depth", beyond_depth);
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_atomic_wire_stress
