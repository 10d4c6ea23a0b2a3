// MPA connection setup with raw peers on either side: revisions, Ready-To-Receive messages, CRC and read
// depths as agreed on, and peers that never get through.
#include <semaphore>

#include "raw_peer.h"

namespace iwarp_handshake_stress {

using namespace fixture;

// A responder without the peer-to-peer set-up must not send before the initiator has (RFC 5044 §7.1.2).
void revision_one_peer() {
  MpaFrame request;
  request.revision = 1;
  request.crc = false;
  request.private_data = {1};
  Victim victim(Progress::automatic, request, false);
  CHECK(victim.reply.revision == 1 && !victim.reply.enhanced && victim.reply.crc);
  victim.end->id.events->expect(CmEvent::Type::established);
  post(*victim.end, {.wr_id = 1}, {victim.memory->sge(0, 1)});
  ibv_wc wc;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for what must not come
  CHECK(ibv_poll_cq(victim.end->cq, 1, &wc) == 0);
  victim.peer.send(fpdu(tagged(Opcode::write, victim.key(), victim.memory->address(), {0x42})));
  CHECK(victim.peer.receive_fpdu() == untagged(Opcode::send, 0, 1, 0, {0x42}));
  victim.end->expect(1);
}

void other_setups() {
  {  // the Ready-To-Receive message may be a zero-length Read, and is answered like one
    MpaFrame request = enhanced_request();
    request.rtr_write = false;
    request.rtr_read = true;
    Victim victim(Progress::automatic, request, false);
    CHECK(victim.reply.peer_to_peer && victim.reply.rtr_read && !victim.reply.rtr_write);
    victim.peer.send(fpdu(read_request(1, {5, 6, 0, 0, 0})));
    victim.end->id.events->expect(CmEvent::Type::established);
    CHECK(victim.peer.receive_fpdu() == tagged(Opcode::read_response, 5, 6, {}));
    victim.peer.send(fpdu(read_request(2, {5, 6, 1, victim.key(), victim.memory->address()})));
    CHECK(victim.peer.receive_fpdu() == tagged(Opcode::read_response, 5, 6, {victim.memory->bytes[0]}));
  }
  {  // who speaks something else is let go at once
    Listener listener;
    RawPeer peer(listener);
    peer.send(text("GET /"));
    CHECK(peer.receive(1).empty() && listener.events->empty());
  }
}

// An initiator before a responder that knows revision 1 only, and closes or answers in it.
void old_responders() {
  const Bytes hello = text("hello");
  for (const bool closes : {true, false}) {
    RawListener listener;
    Initiator initiator(listener, hello);
    MpaFrame reply;
    reply.reply = true;
    reply.revision = 1;
    reply.private_data = text("old");
    {
      RawPeer first(listener.accept());
      const MpaFrame request = first.receive_frame();
      CHECK(request.revision == 2 && request.enhanced && request.private_data == hello);
      if (!closes) {
        first.send(build_mpa(reply));
        CHECK(first.receive(1).empty());
      }
    }
    RawPeer second(listener.accept());
    const MpaFrame request = second.receive_frame();
    CHECK(request.revision == 1 && !request.enhanced && request.crc && request.private_data == hello);
    second.send(build_mpa(reply));
    CHECK(initiator.end->id.events->expect(CmEvent::Type::established).private_data == reply.private_data);
    // No Ready-To-Receive message in this revision: the initiator's first FPDU is its application's.
    post(*initiator.end, {.wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .remote_address = 1, .remote_key = 2}, {});
    CHECK(second.receive_fpdu() == tagged(Opcode::write, 2, 1, {}));
    initiator.end->expect(1);
  }
  {  // once, not for ever
    RawListener listener;
    Initiator initiator(listener);
    for (int i = 0; i < 2; i++) RawPeer(listener.accept()).receive_frame();
    CHECK(initiator.end->id.events->expect(CmEvent::Type::connect_failed).status == ECONNRESET);
    CHECK(!listener.is_tried(50));
  }
  {  // who has begun to answer in revision 2 is not asked again
    RawListener listener;
    Initiator initiator(listener);
    {
      RawPeer peer(listener.accept());
      peer.receive_frame();
      peer.send(text("MPA ID Rep"));
    }
    CHECK(initiator.end->id.events->expect(CmEvent::Type::connect_failed).status == ECONNRESET);
    CHECK(!listener.is_tried(50));
  }
  {  // nor who says no
    RawListener listener;
    Initiator initiator(listener);
    RawPeer peer(listener.accept());
    peer.receive_frame();
    MpaFrame reply = enhanced_request();
    reply.reply = reply.reject = true;
    reply.private_data = text("no");
    peer.send(build_mpa(reply));
    CHECK(initiator.end->id.events->expect(CmEvent::Type::rejected).private_data == text("no"));
    CHECK(!listener.is_tried(50));
  }
  {  // a responder whose application drops the request says no as well
    Listener listener;
    RawPeer peer(listener);
    peer.send(build_mpa(enhanced_request()));
    listener.events->expect(CmEvent::Type::connect_request).request->close();
    CHECK(peer.receive_frame().reject && peer.receive(1).empty());
  }
}

// So does one whose application accepts, and closes before the progress thread has sent the reply.
void accepted_and_closed() {
  Listener listener;
  RawPeer peer(listener);
  peer.send(build_mpa(enhanced_request()));
  CmEvent event = listener.events->expect(CmEvent::Type::connect_request);
  std::binary_semaphore kept{0}, let_go{0};
  Id other;
  other.id->set_sink([&](CmEvent&&) {
    kept.release();
    let_go.acquire();
  });
  const sockaddr_in anywhere = loopback(1);
  CHECK(other.id->resolve(reinterpret_cast<const sockaddr*>(&anywhere), sizeof anywhere, kHangMs) == 0);
  kept.acquire();
  End end(Id(std::move(event.request)), {});
  ConnectParameters parameters;
  parameters.qp = end.qp;
  CHECK(end.id.id->accept(parameters) == 0);
  end.id.id->close();
  let_go.release();
  CHECK(peer.receive_frame().reject && peer.receive(1).empty());
}

// The answers that a responder may and may not give to an offer (RFC 6581).
void replies() {
  const auto answer = [](const std::function<void(MpaFrame&)>& change) {
    RawListener listener;
    Initiator initiator(listener);
    RawPeer peer(listener.accept());
    MpaFrame reply = peer.receive_frame();
    CHECK(reply.peer_to_peer && reply.rtr_write && reply.rtr_read && reply.ird == 4 && reply.ord == 4);
    reply.reply = true;
    reply.rtr_read = false;
    change(reply);
    peer.send(build_mpa(reply));
    const Bytes first = peer.receive_fpdu();
    ibv_qp_attr attributes;
    const CmEvent event = initiator.end->id.events->next();
    provider().query_qp(initiator.end->qp, &attributes, 0, nullptr);
    return std::tuple(event.type, first, attributes.max_rd_atomic, attributes.max_dest_rd_atomic);
  };
  const Bytes rtr_write = tagged(Opcode::write, 0, 0, {});
  using Answer = std::tuple<CmEvent::Type, Bytes, uint8_t, uint8_t>;
  CHECK(answer([](MpaFrame&) {}) == Answer(CmEvent::Type::established, rtr_write, 4, 4));
  // Fewer READs of this side, more of the other's: what the device has.
  CHECK(answer([](MpaFrame& reply) {
          reply.ird = 2;
          reply.ord = 8;
        }) == Answer(CmEvent::Type::established, rtr_write, 2, 8));
  CHECK(answer([](MpaFrame& reply) { reply.ird = reply.ord = kMpaReadDepthUnknown; }) ==
        Answer(CmEvent::Type::established, rtr_write, 4, 4));
  const Answer by_read = answer([](MpaFrame& reply) { std::swap(reply.rtr_read, reply.rtr_write); });
  CHECK(std::get<0>(by_read) == CmEvent::Type::established &&
        std::get<1>(by_read) == read_request(1, ReadRequest{}));
  const auto terminated = [](const Answer& got, TerminateCode code) {
    Bytes payload(kMaxTerminateLength);
    payload.resize(build_terminate(payload.data(), TerminateMessage{code, false, {}}, nullptr));
    return std::get<0>(got) == CmEvent::Type::connect_failed &&
           std::get<1>(got) == untagged(Opcode::terminate, 2, 1, 0, payload);
  };
  CHECK(terminated(answer([](MpaFrame& reply) { reply.ord = 65; }), terminate::mpa_insufficient_ird));
  CHECK(terminated(answer([](MpaFrame& reply) { reply.rtr_write = false; }), terminate::mpa_no_rtr));
}

// An empty READ as the Ready-To-Receive message is one of the READs at once for its initiator; its responder
// allows for one that does not count it.
void read_that_says_ready() {
  {
    RawListener listener;
    Initiator initiator(listener, {}, 1);
    End& end = *initiator.end;
    RawPeer peer(listener.accept());
    MpaFrame reply = peer.receive_frame();
    reply.reply = true;
    reply.rtr_write = false;
    peer.send(build_mpa(reply));
    CHECK(peer.receive_fpdu() == read_request(1, ReadRequest{}));
    end.id.events->expect(CmEvent::Type::established);
    Memory memory(end.pd, 16);
    post(end, {.wr_id = 1, .opcode = IBV_WR_RDMA_READ, .remote_address = 7, .remote_key = 8},
         {memory.sge(0, 4)});
    // A request that does not wait is in the socket when its post returns.
    uint8_t byte;
    CHECK(::recv(peer.descriptor(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN);
    peer.send(fpdu(tagged(Opcode::read_response, 0, 0, {})));
    const Bytes asked = peer.receive_fpdu();
    const ReadRequest request = parse_read_request(asked.data() + kUntaggedHeaderLength);
    CHECK(asked == read_request(2, request) && request.length == 4);
    peer.send(fpdu(tagged(Opcode::read_response, request.sink_stag, request.sink_offset, {9, 8, 7, 6})));
    end.expect(1);
  }
  const auto ask = [](uint16_t depth, uint32_t more) {
    MpaFrame request = enhanced_request();
    request.rtr_write = false;
    request.rtr_read = true;
    request.ord = depth;
    auto victim = std::make_unique<Victim>(Progress::automatic, request, false);
    Bytes together = fpdu(read_request(1, {5, 6, 0, 0, 0}));
    for (uint32_t i = 0; i < more; i++)
      together += fpdu(read_request(2 + i, {5, i, 1, victim->key(), victim->memory->address(i)}));
    victim->peer.send(together);
    victim->end->id.events->expect(CmEvent::Type::established);
    return victim;
  };
  for (const uint16_t depth : {0, 1, 4}) {
    const auto victim = ask(depth, depth);
    CHECK(victim->peer.receive_fpdu() == tagged(Opcode::read_response, 5, 6, {}));
    for (uint32_t i = 0; i < depth; i++)
      CHECK(victim->peer.receive_fpdu() == tagged(Opcode::read_response, 5, i, {victim->memory->bytes[i]}));
    CHECK(ask(depth, depth + 1)->peer.receive_terminate() == terminate::ddp_no_buffer);
  }
  // No other empty READ is for nothing.
  const auto victim = ask(0, 0);
  CHECK(victim->peer.receive_fpdu() == tagged(Opcode::read_response, 5, 6, {}));
  victim->peer.send(fpdu(read_request(2, {5, 6, 0, 0, 0})));
  CHECK(victim->peer.receive_terminate() == terminate::ddp_no_buffer);
}

// Peers that connect and say nothing: their places are limited, and taken back after the deadline.
void silent_peers() {
  Listener listener;
  const auto begin = Clock::now();
  std::vector<std::unique_ptr<RawPeer>> silent;  // 128 take places, the rest waits in the kernel
  for (int i = 0; i < 200; i++) silent.push_back(std::make_unique<RawPeer>(listener));
  silent[0]->send(text("MPA ID Req Fr"));
  CHECK(silent[0]->receive(1).empty());
  CHECK(seconds_since(begin) > 4);  // of 5
  // Places are free again.
  Pair pair(listener, {}, {});
}

STRESS(iwarp_handshake) {
  timed("accepted and closed", accepted_and_closed);  // keeps the progress thread from the others
  side_by_side({
      {"silent peers", silent_peers},
      {"revision 1", revision_one_peer},
      {"old responders", old_responders},
      {"replies", replies},
      {"other setups", other_setups},
      {"READ that says ready", read_that_says_ready},
  });
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_handshake_stress
