// The iwarp provider: a responder without a Ready-To-Receive message, whose requests are held until the
// initiator's first FPDU (RFC 5044 §7.1.2), and in what order own messages and READ responses then leave.
// Costs 0.1 s plain, 0.2 s under ASan, 0.4 s under TSan.
#include "../../lent.h"
#include "../traffic.h"
#include "socket.h"

namespace iwarp_held_stress {

using namespace fixture;

MpaFrame without_rtr() {
  MpaFrame request = enhanced_request();
  request.peer_to_peer = request.rtr_write = false;
  return request;
}

struct Held : Victim {
  explicit Held(Progress progress) : Victim(progress, without_rtr(), false) {
    CHECK(reply.enhanced && !reply.peer_to_peer);
    end->id.events->expect(CmEvent::Type::established);
  }
  // A SEND or WRITE of few bytes that was not held would be complete, and in the socket, when its post
  // returns.
  void nothing_has_left() const {
    ibv_wc wc;
    for (int i = 0; i < 20; i++) CHECK(ibv_poll_cq(end->cq, 1, &wc) == 0);
    uint8_t byte;
    CHECK(::recv(peer.descriptor(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN);
  }
};

// Each kind of request; lent bytes are at their place when the call returns.
void all_are_held(Progress progress) {
  Held held(progress);
  End& end = *held.end;
  Memory near(end.pd, 4096);
  const Lent lent{1000, 100, 900};
  post_lent(end, {.wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .remote_address = 5, .remote_key = 6}, near, 0,
            lent, 31);
  CHECK(arrived(near, 0, lent.length, 31));
  post(end, {.wr_id = 2}, {held.memory->sge(0, 10)});
  post(end, {.wr_id = 3, .opcode = IBV_WR_RDMA_READ, .remote_address = 7, .remote_key = 8},
       {held.memory->sge(100, 4)});
  held.nothing_has_left();
  // Half of an FPDU is none.
  const Bytes first = fpdu(tagged(Opcode::write, held.key(), held.memory->address(50), {1, 2, 3}));
  held.peer.send(Bytes(first.begin(), first.begin() + 12));
  if (progress == Progress::manual) await([&] { return arrived_at(socket_of(held.peer)) == 12; });
  held.nothing_has_left();
  held.peer.send(Bytes(first.begin() + 12, first.end()));

  end.expect(1);
  end.expect(2);
  Bytes written(lent.length);
  fill_noise(written.data(), written.size(), 31);
  CHECK(held.peer.receive_fpdu() == tagged(Opcode::write, 6, 5, written));
  const Bytes sent(held.memory->bytes.begin(), held.memory->bytes.begin() + 10);
  CHECK(held.peer.receive_fpdu() == untagged(Opcode::send, 0, 1, 0, sent));
  const Bytes asked = held.peer.receive_fpdu();
  const ReadRequest request = parse_read_request(asked.data() + kUntaggedHeaderLength);
  CHECK(request.length == 4 && request.source_stag == 8 && request.source_offset == 7);
  held.peer.send(fpdu(tagged(Opcode::read_response, request.sink_stag, request.sink_offset, {9, 8, 7, 6})));
  end.expect(3);
  const uint8_t* const bytes = held.memory->bytes.data();
  CHECK(std::memcmp(bytes + 50, Bytes{1, 2, 3}.data(), 3) == 0);
  CHECK(std::memcmp(bytes + 100, Bytes{9, 8, 7, 6}.data(), 4) == 0);
}

// A first FPDU that is damaged ends the connection, and what was held never leaves.
void damaged_first(Progress progress) {
  Held held(progress);
  post(*held.end, {.wr_id = 1}, {held.memory->sge(0, 10)});
  Bytes first = fpdu(tagged(Opcode::write, held.key(), held.memory->address(), {1, 2, 3}));
  first.back() ^= 1;
  held.peer.send(first);
  held.end->expect(1, IBV_WC_WR_FLUSH_ERR);
  CHECK(held.peer.receive_terminate() == terminate::mpa_crc);
  CHECK(held.end->id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
}

// Binding a window needs no peer, and goes ahead; but not past what was posted before it.
void binding_goes_ahead(Progress progress) {
  Held held(progress);
  End& end = *held.end;
  Memory region(end.pd, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  ibv_mw* windows[2];
  const auto bind = [&](uint64_t wr_id, ibv_mw* window) {
    ibv_send_wr request{}, *bad = nullptr;
    request.wr_id = wr_id;
    request.opcode = IBV_WR_BIND_MW;
    request.send_flags = IBV_SEND_SIGNALED;
    request.bind_mw.mw = window;
    request.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    request.bind_mw.bind_info = {region.mr, region.address(), 100, IBV_ACCESS_REMOTE_WRITE};
    CHECK(ibv_post_send(end.qp, &request, &bad) == 0);
  };
  for (ibv_mw*& window : windows) {
    window = provider().alloc_mw(end.pd, IBV_MW_TYPE_2);
    CHECK(window != nullptr);
  }
  bind(1, windows[0]);
  end.expect(1);
  post(end, {.wr_id = 2}, {held.memory->sge(0, 10)});
  bind(3, windows[1]);
  held.nothing_has_left();
  held.peer.send(fpdu(tagged(Opcode::write, windows[0]->rkey, region.address(), {1, 2})));
  end.expect(2);
  end.expect(3);
  CHECK(region.bytes[0] == 1 && region.bytes[1] == 2);
  for (ibv_mw* window : windows) CHECK(provider().dealloc_mw(window) == 0);
}

// Own messages and READ responses take turns, and neither is cut in two by the other. Here both are waiting
// when the first of them begins.
void turns() {
  constexpr uint32_t kEach = 3;
  constexpr uint32_t kLength = 100'000;  // two FPDUs
  Held held(Progress::manual);
  Bytes requests;
  for (uint32_t i = 0; i < kEach; i++) {
    post(*held.end, {.wr_id = i, .flags = 0}, {held.memory->sge(i, kLength)});
    requests += fpdu(read_request(i + 1, {100 + i, 0, kLength, held.key(), held.memory->address(1000 + i)}));
  }
  held.peer.send(requests);
  await([&] { return arrived_at(socket_of(held.peer)) == static_cast<int>(requests.size()); });
  uint32_t sends = 0, responses = 0;
  size_t done = 0;
  while (sends + responses < 2 * kEach) {
    const Bytes ulpdu = held.answer();
    Segment segment;
    TerminateCode why;
    CHECK(parse_segment(ulpdu.data(), ulpdu.size(), segment, why));
    const bool response = segment.opcode == Opcode::read_response;
    CHECK(response || segment.opcode == Opcode::send);
    CHECK(response == (sends > responses), "%u SENDs and %u responses before it", sends, responses);
    CHECK(response ? segment.stag == 100 + responses : segment.sequence == sends + 1);
    CHECK((response ? segment.offset : segment.message_offset) == done);
    const size_t from = (response ? 1000 + responses : sends) + done;
    CHECK(std::memcmp(ulpdu.data() + segment.header_length, &held.memory->bytes[from],
                      segment.payload_length) == 0);
    done += segment.payload_length;
    CHECK(segment.last == (done == kLength));
    if (!segment.last) continue;
    done = 0;
    (response ? responses : sends)++;
  }
}

STRESS(iwarp_held) {
  for (const Progress progress : {Progress::manual, Progress::automatic}) {
    timed("all are held", [=] { all_are_held(progress); });
    timed("damaged first FPDU", [=] { damaged_first(progress); });
    timed("binding goes ahead", [=] { binding_goes_ahead(progress); });
  }
  timed("turns", turns);
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_held_stress
