// The iwarp provider: a region is deregistered while a message from it is half in a socket that takes no
// more. dereg_mr does not wait for the peer, nothing that is in the memory afterwards is sent, and the
// connection ends. Costs 0.3 s plain, 0.4 s under ASan, 2 s under TSan.
#include <optional>

#include "../traffic.h"
#include "socket.h"

namespace iwarp_gone_region_stress {

using namespace fixture;

constexpr size_t kLength = 1 << 20;  // more than narrow sockets hold
constexpr uint8_t kLater = 0xee;     // what is in the memory when it is the application's again

// How the memory goes: it is written to; or it is freed, for ASan and the kernel to notice who reads it.
enum class Gone { changed, freed };

// A victim with a narrow socket, and a region of which a message is under way.
struct Blocked {
  Progress progress;
  Victim victim;
  std::unique_ptr<Memory> region;
  Bytes before;
  int fd;

  explicit Blocked(Progress mode) : progress(mode), victim(mode), fd(socket_of(victim.peer)) {
    narrow(victim.peer);
    region = std::make_unique<Memory>(victim.end->pd, kLength);
    region->fill(21);
    before = region->bytes;
  }

  // Returns when the socket takes no more.
  void fill_up() const {
    ibv_wc wc;
    await([&] {
      CHECK(ibv_poll_cq(victim.end->cq, 1, &wc) == 0, "the sockets hold all of it");
      return !takes_more(fd);
    });
    // A socket that is nearly full is not writable either: with manual progress these fill it.
    for (int i = 0; i < 100; i++) CHECK(ibv_poll_cq(victim.end->cq, 1, &wc) == 0);
  }

  void take_region(Gone gone) {
    std::atomic<bool> done{false};
    std::thread caller([&] {
      CHECK(provider().dereg_mr(std::exchange(region->mr, nullptr)) == 0);
      done = true;
    });
    await([&] { return done.load(); });
    caller.join();
    if (gone == Gone::changed) {
      std::memset(region->bytes.data(), kLater, kLength);
    } else {
      region.reset();
    }
  }
};

// What a stream of FPDUs ends with.
struct Ending {
  size_t bytes = 0;  // of the message
  bool cut = false;  // in the middle of an FPDU
  std::optional<TerminateCode> terminate;
};

// Reads to the end of the stream: parts of one tagged message from `offset` on, each as it was before.
Ending read_to_end(RawPeer& peer, Opcode opcode, uint64_t offset, const Bytes& before) {
  const Bytes stream = peer.receive(kLength);
  CHECK(stream.size() < kLength, "it is all sent");
  Ending ending;
  for (size_t at = 0; at < stream.size();) {
    CHECK(!ending.terminate);
    const size_t left = stream.size() - at;
    const size_t length = left < 2 ? 0 : load_be16(&stream[at]);
    const size_t whole = fpdu_length(length);
    ending.cut = left < 2 || left < whole;
    if (left < 2 + kUntaggedHeaderLength) return ending;
    Segment segment;
    TerminateCode why;
    CHECK(parse_segment(&stream[at + 2], length, segment, why));
    if (!ending.cut) CHECK(load_crc(&stream[at + whole - 4]) == crc32c(&stream[at], whole - 4));
    const uint8_t* const payload = &stream[at + 2 + segment.header_length];
    if (segment.opcode == Opcode::terminate) {
      TerminateMessage message;
      CHECK(!ending.cut && parse_terminate(payload, segment.payload_length, message));
      ending.terminate = message.code;
    } else {
      CHECK(segment.opcode == opcode && segment.offset == offset + ending.bytes && !segment.last);
      const size_t here = std::min<size_t>(segment.payload_length, left - 2 - segment.header_length);
      CHECK(std::memcmp(payload, &before[ending.bytes], here) == 0, "%zu bytes at %zu", here, ending.bytes);
      ending.bytes += here;
    }
    at += std::min(whole, left);
  }
  return ending;
}

// A WRITE's source. Where the caller polls, the end does not wait for the peer; the progress thread hears of
// the socket only when the peer reads.
void source_of_write(Progress progress, Gone gone) {
  Blocked blocked(progress);
  Victim& victim = blocked.victim;
  End& end = *victim.end;
  constexpr uint64_t kOffset = 4000;
  post(end, {.wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .remote_address = kOffset, .remote_key = 77},
       {blocked.region->sge(0, kLength)});
  post(end, {.wr_id = 2}, {victim.local->sge(0, 100)});
  blocked.fill_up();
  blocked.take_region(gone);
  Ending ending;
  const auto read = [&] { ending = read_to_end(victim.peer, Opcode::write, kOffset, blocked.before); };
  std::thread reader;
  if (progress == Progress::automatic) reader = std::thread(read);
  end.expect(1, IBV_WC_LOC_PROT_ERR);
  end.expect(2, IBV_WC_WR_FLUSH_ERR);
  CHECK(end.id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
  if (!reader.joinable()) reader = std::thread(read);
  reader.join();
  CHECK(ending.bytes > 0 && ending.bytes < kLength);
  // Where an FPDU from the region was half sent the stream is cut; where none was, there is room for a
  // reason.
  CHECK(ending.cut != ending.terminate.has_value());
  if (ending.terminate) CHECK(*ending.terminate == terminate::local_catastrophic);
  std::printf("  %zu bytes, then %s\n", ending.bytes, ending.cut ? "cut" : "a Terminate message");
}

// Two WRITEs in one call, so in one batch: told of is the one whose region is gone.
void second_of_two(Progress progress) {
  Blocked blocked(progress);
  Victim& victim = blocked.victim;
  End& end = *victim.end;
  constexpr size_t kFirst = 100'000;  // the socket takes less
  Memory first(end.pd, kFirst);
  ibv_sge elements[2] = {first.sge(0, kFirst), blocked.region->sge(0, kLength)};
  ibv_send_wr requests[2] = {}, *bad = nullptr;
  for (int i = 0; i < 2; i++) {
    requests[i].wr_id = static_cast<uint64_t>(i) + 1;
    requests[i].opcode = IBV_WR_RDMA_WRITE;
    requests[i].send_flags = IBV_SEND_SIGNALED;
    requests[i].sg_list = &elements[i];
    requests[i].num_sge = 1;
    requests[i].wr.rdma.rkey = 77;
  }
  requests[0].next = &requests[1];
  CHECK(ibv_post_send(end.qp, requests, &bad) == 0);
  blocked.fill_up();
  blocked.take_region(Gone::freed);
  std::thread reader([&] { static_cast<void>(victim.peer.receive(kFirst + kLength)); });
  end.expect(1, IBV_WC_WR_FLUSH_ERR);
  end.expect(2, IBV_WC_LOC_PROT_ERR);
  CHECK(end.id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
  reader.join();
}

// The source of the peer's READ: what was staged leaves, then the peer is told.
void source_of_response(Progress progress, Gone gone) {
  Blocked blocked(progress);
  Victim& victim = blocked.victim;
  constexpr uint64_t kOffset = 5000;
  victim.peer.send(
      fpdu(read_request(1, {78, kOffset, kLength, blocked.region->mr->rkey, blocked.region->address()})));
  blocked.fill_up();
  blocked.take_region(gone);
  Ending ending;
  std::thread reader(
      [&] { ending = read_to_end(victim.peer, Opcode::read_response, kOffset, blocked.before); });
  victim.drain();
  CHECK(victim.end->id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
  reader.join();
  CHECK(ending.bytes > 0 && ending.bytes < kLength && !ending.cut);
  CHECK(ending.terminate && *ending.terminate == terminate::rdmap_invalid_stag);
}

// The connection is ended by this side, with the region gone and the peer still not reading: what is half
// sent stays so, and nothing of the rest is touched.
void ended_meanwhile(Progress progress, bool destroy) {
  Blocked blocked(progress);
  Victim& victim = blocked.victim;
  End& end = *victim.end;
  post(end, {.wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .remote_address = 0, .remote_key = 77},
       {blocked.region->sge(0, kLength)});
  post_receive(end, 2, victim.local->sge(0, 100));
  blocked.fill_up();
  blocked.take_region(Gone::freed);
  if (destroy) {
    end.destroy_qp();
  } else {
    CHECK(end.id.id->disconnect() == 0);
    end.expect(1, IBV_WC_WR_FLUSH_ERR);
    end.expect(2, IBV_WC_WR_FLUSH_ERR);
  }
  CHECK(end.id.events->expect(CmEvent::Type::disconnected).status == 0);
  const Ending ending = read_to_end(victim.peer, Opcode::write, 0, blocked.before);
  CHECK(ending.bytes > 0 && ending.bytes < kLength && !ending.terminate);
}

STRESS(iwarp_gone_region) {
  for (const Progress progress : {Progress::automatic, Progress::manual}) {
    for (const Gone gone : {Gone::changed, Gone::freed}) {
      timed("source of a WRITE", [=] { source_of_write(progress, gone); });
      timed("source of a READ's response", [=] { source_of_response(progress, gone); });
    }
    timed("second of two", [=] { second_of_two(progress); });
    timed("disconnected meanwhile", [=] { ended_meanwhile(progress, false); });
    timed("destroyed meanwhile", [=] { ended_meanwhile(progress, true); });
  }
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_gone_region_stress
