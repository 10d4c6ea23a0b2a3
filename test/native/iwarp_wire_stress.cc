// The iWARP wire format, byte for byte, and peers that break it: frames of RFC 5044 and RFC 6581, headers
// of RFC 5041, RFC 5040 and RFC 7306, and raw sockets that say what no honest peer would.
#include <netinet/tcp.h>

#include <functional>
#include <random>

#include "iwarp/byte_order.h"
#include "iwarp/crc32c.h"
#include "iwarp/ddp.h"
#include "iwarp/mpa.h"
#include "iwarp_fixture.h"

using namespace fixture;
using namespace rdmakit::iwarp;

namespace {

using Bytes = std::vector<uint8_t>;

Bytes operator+(Bytes left, const Bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// --- Pure: no sockets.

void crc_vectors() {
  // RFC 3720 appendix B.4, in wire order.
  const auto wire = [](const Bytes& data) {
    Bytes crc(4);
    store_crc(crc.data(), crc32c(data.data(), data.size()));
    CHECK(load_crc(crc.data()) == crc32c(data.data(), data.size()));
    return crc;
  };
  CHECK(wire(Bytes(32, 0x00)) == Bytes({0xaa, 0x36, 0x91, 0x8a}));
  CHECK(wire(Bytes(32, 0xff)) == Bytes({0x43, 0xab, 0xa8, 0x62}));
  Bytes counting(32);
  for (size_t i = 0; i < 32; i++) counting[i] = static_cast<uint8_t>(i);
  CHECK(wire(counting) == Bytes({0x4e, 0x79, 0xdd, 0x46}));
  CHECK(wire(Bytes(counting.rbegin(), counting.rend())) == Bytes({0x5c, 0xdb, 0x3f, 0x11}));
  const Bytes read_command = {0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                              0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
                              0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18, 0x28, 0x00, 0x00, 0x00,
                              0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  CHECK(wire(read_command) == Bytes({0x56, 0x3a, 0x96, 0xd9}));
  CHECK(crc32c("123456789", 9) == 0xe3069283);

  // The processor's instruction and the table agree for every length, alignment and split.
  std::mt19937 random(1);
  Bytes data(70'000);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  for (int i = 0; i < 2000; i++) {
    const size_t at = random() % 64;
    const size_t length = i < 1000 ? random() % 2000 : random() % (data.size() - 64);
    const uint32_t expected = crc32c_extend_portable(kCrcSeed, &data[at], length);
    CHECK(crc32c_extend(kCrcSeed, &data[at], length) == expected);
    const size_t split = length == 0 ? 0 : random() % length;
    CHECK(crc32c_extend(crc32c_extend(kCrcSeed, &data[at], split), &data[at + split], length - split) ==
          expected);
  }
}

Bytes text(const char* characters) { return Bytes(characters, characters + std::strlen(characters)); }

void mpa_frames() {
  MpaFrame request;
  request.crc = true;
  request.enhanced = true;
  request.ird = 16;
  request.ord = 32;
  request.peer_to_peer = true;
  request.rtr_write = true;
  request.rtr_read = true;
  request.private_data = {0xaa, 0xbb, 0xcc};
  // Key; C|S, revision 2, length 7; A|IRD 16; C|D|ORD 32; the application's.
  const Bytes expected =
      text("MPA ID Req Frame") + Bytes{0x50, 0x02, 0x00, 0x07, 0x80, 0x10, 0xc0, 0x20, 0xaa, 0xbb, 0xcc};
  CHECK(build_mpa(request) == expected);

  MpaFrame parsed;
  size_t length = 0;
  CHECK(parse_mpa(expected, parsed, length) == MpaParse::complete && length == expected.size());
  CHECK(!parsed.reply && parsed.crc && parsed.enhanced && !parsed.markers && !parsed.reject &&
        parsed.revision == 2);
  CHECK(parsed.ird == 16 && parsed.ord == 32 && parsed.peer_to_peer && parsed.rtr_write && parsed.rtr_read);
  CHECK(!parsed.rtr_send && parsed.private_data == request.private_data);
  for (size_t have = 0; have < expected.size(); have++) {  // never asks for bytes beyond the frame
    const std::span<const uint8_t> part(expected.data(), have);
    CHECK(parse_mpa(part, parsed, length) == MpaParse::incomplete);
    CHECK(length > have && length <= expected.size());
  }

  MpaFrame reply;
  reply.reply = true;
  reply.reject = true;
  reply.revision = 1;
  CHECK(build_mpa(reply) == text("MPA ID Rep Frame") + Bytes({0x20, 0x01, 0x00, 0x00}));

  const auto malformed = [&](const Bytes& bytes) {
    return parse_mpa(bytes, parsed, length) == MpaParse::malformed;
  };
  CHECK(malformed(text("GET / HTTP/1.1\r\n")));
  CHECK(malformed(text("MPA ID Req Framf")));
  CHECK(malformed(text("MPA ID Req Frame") + Bytes({0x00, 0x03, 0x00, 0x00})));  // revision 3
  CHECK(malformed(text("MPA ID Req Frame") + Bytes({0x00, 0x01, 0x02, 0x01})));  // 513 bytes of private data
  CHECK(malformed(text("MPA ID Req Frame") + Bytes({0x10, 0x02, 0x00, 0x03})));  // no room for IRD and ORD
  // The enhanced bit means nothing before revision 2.
  const Bytes old = text("MPA ID Req Frame") + Bytes({0x10, 0x01, 0x00, 0x01, 0x77});
  CHECK(parse_mpa(old, parsed, length) == MpaParse::complete && !parsed.enhanced);
  CHECK(parsed.private_data == Bytes({0x77}));

  CHECK(fpdu_length(14) == 20 && fpdu_pad(14) == 0);
  CHECK(fpdu_length(15) == 24 && fpdu_pad(15) == 3);
  CHECK(fpdu_length(18) == 24 && fpdu_length(max_ulpdu_length(1460)) <= 1460);
  for (uint32_t segment = 136; segment < 70'000; segment++) {
    const uint32_t ulpdu = max_ulpdu_length(segment);
    CHECK(ulpdu <= 65535 && (fpdu_length(ulpdu) <= segment));
    CHECK(fpdu_length(ulpdu + 4) > segment || ulpdu == 65534);
  }
}

void headers() {
  Bytes bytes(64);
  Segment segment;
  segment.tagged = true;
  segment.last = true;
  segment.opcode = Opcode::write;
  segment.stag = 0x01020304;
  segment.offset = 0x1112131415161718;
  CHECK(build_segment(bytes.data(), segment) == kTaggedHeaderLength);
  CHECK(Bytes(bytes.begin(), bytes.begin() + 14) ==
        Bytes({0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18}));
  Segment parsed;
  TerminateCode why;
  CHECK(parse_segment(bytes.data(), 20, parsed, why));
  CHECK(parsed.tagged && parsed.last && parsed.opcode == Opcode::write && parsed.stag == segment.stag);
  CHECK(parsed.offset == segment.offset && parsed.header_length == 14 && parsed.payload_length == 6);

  segment = Segment{};
  segment.opcode = Opcode::send_solicited;
  segment.queue = 0;
  segment.sequence = 7;
  segment.message_offset = 9;
  CHECK(build_segment(bytes.data(), segment) == kUntaggedHeaderLength);
  CHECK(Bytes(bytes.begin(), bytes.begin() + 18) ==
        Bytes({0x01, 0x45, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 9}));
  CHECK(parse_segment(bytes.data(), 18, parsed, why));
  CHECK(!parsed.tagged && !parsed.last && parsed.sequence == 7 && parsed.message_offset == 9);

  build_read_request(bytes.data(),
                     {0x01020304, 0x05060708090a0b0c, 0x0d0e0f10, 0x11121314, 0x15161718191a1b1c});
  for (uint8_t i = 0; i < kReadRequestLength; i++) CHECK(bytes[i] == i + 1);
  const ReadRequest request = parse_read_request(bytes.data());
  CHECK(request.sink_stag == 0x01020304 && request.sink_offset == 0x05060708090a0b0c &&
        request.length == 0x0d0e0f10);
  CHECK(request.source_stag == 0x11121314 && request.source_offset == 0x15161718191a1b1c);

  TerminateMessage message;
  message.code = terminate::ddp_bounds;
  message.has_segment = true;
  message.segment = parsed;
  message.segment.payload_length = 100;
  Bytes terminate_bytes(kMaxTerminateLength);
  const size_t length = build_terminate(terminate_bytes.data(), message, nullptr);
  CHECK(length == 4 + 2 + 18);
  CHECK(terminate_bytes[0] == 0x11 && terminate_bytes[1] == 0x01 && terminate_bytes[2] == 0xc0);
  CHECK(load_be16(&terminate_bytes[4]) == 118);
  TerminateMessage understood;
  CHECK(parse_terminate(terminate_bytes.data(), length, understood) && understood.has_segment);
  CHECK(understood.code == message.code && understood.segment.sequence == 7);
}

// Every way in which a header alone can be wrong.
void wrong_headers() {
  const auto refused = [](const Bytes& ulpdu) {
    Segment segment;
    TerminateCode why;
    CHECK(!parse_segment(ulpdu.data(), ulpdu.size(), segment, why));
    return why;
  };
  const Bytes tagged = {0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0};
  const Bytes untagged = {0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0};
  const auto with = [](Bytes bytes, size_t at, uint8_t value) {
    bytes[at] = value;
    return bytes;
  };
  CHECK(refused({}) == terminate::rdmap_catastrophic);
  CHECK(refused({0xc1}) == terminate::rdmap_catastrophic);
  CHECK(refused(Bytes(tagged.begin(), tagged.end() - 1)) == terminate::rdmap_catastrophic);
  CHECK(refused(with(tagged, 0, 0xc0)) == terminate::ddp_tagged_version);
  CHECK(refused(with(untagged, 0, 0x42)) == terminate::ddp_untagged_version);
  CHECK(refused(with(tagged, 1, 0x80)) == terminate::rdmap_version);
  CHECK(refused(with(tagged, 1, 0x43)) == terminate::rdmap_opcode);    // a tagged Send
  CHECK(refused(with(untagged, 1, 0x40)) == terminate::rdmap_opcode);  // an untagged Write
  CHECK(refused(with(untagged, 1, 0x4f)) == terminate::rdmap_opcode);  // no such opcode
  CHECK(refused(with(untagged, 9, 1)) == terminate::ddp_queue);        // a Send on queue 1
  CHECK(refused(with(untagged, 1, 0x41)) == terminate::ddp_queue);     // a Read Request on queue 0
  const Bytes read = with(with(untagged, 1, 0x41), 9, 1);
  CHECK(refused(read + Bytes(27)) == terminate::rdmap_catastrophic);
  CHECK(refused(read + Bytes(29)) == terminate::ddp_too_long);
  CHECK(refused(with(read, 17, 1) + Bytes(28)) == terminate::ddp_message_offset);
  CHECK(refused(with(read, 0, 0x01) + Bytes(28)) == terminate::ddp_message_offset);
  CHECK(refused(with(untagged, 1, 0x48) + Bytes(4)) == terminate::rdmap_catastrophic);  // half an Immediate
}

// Nothing that is parsed may read out of bounds or crash, whatever it says (the sanitizers watch).
void random_bytes_parse() {
  std::mt19937 random(2);
  for (int i = 0; i < 200'000; i++) {
    const size_t length = random() % 80;
    const auto bytes = std::make_unique<uint8_t[]>(length);
    for (size_t at = 0; at < length; at++) bytes[at] = static_cast<uint8_t>(random());
    if (length >= 2 && i % 2) {  // get past the versions
      bytes[0] = static_cast<uint8_t>((bytes[0] & 0xfc) | 1);
      bytes[1] = static_cast<uint8_t>((bytes[1] & 0x0f) | 0x40);
    }
    Segment segment;
    TerminateCode why;
    parse_segment(bytes.get(), length, segment, why);
    TerminateMessage message;
    parse_terminate(bytes.get(), length, message);
    if (length >= 16 && i % 3 == 0) std::memcpy(bytes.get(), "MPA ID Req Frame", 16);
    MpaFrame frame;
    size_t wanted = 0;
    parse_mpa({bytes.get(), length}, frame, wanted);
  }
}

// --- A raw peer against a real queue pair.

Bytes fpdu(const Bytes& ulpdu) {
  Bytes bytes = Bytes{static_cast<uint8_t>(ulpdu.size() >> 8), static_cast<uint8_t>(ulpdu.size())} + ulpdu;
  bytes.resize(2 + ulpdu.size() + fpdu_pad(ulpdu.size()) + 4);
  store_crc(&bytes[bytes.size() - 4], crc32c(bytes.data(), bytes.size() - 4));
  return bytes;
}
Bytes tagged(Opcode opcode, uint32_t stag, uint64_t offset, const Bytes& payload, bool last = true) {
  Segment segment;
  segment.tagged = true;
  segment.last = last;
  segment.opcode = opcode;
  segment.stag = stag;
  segment.offset = offset;
  Bytes header(kTaggedHeaderLength);
  build_segment(header.data(), segment);
  return header + payload;
}
Bytes untagged(Opcode opcode, uint32_t queue, uint32_t sequence, uint32_t offset, const Bytes& payload,
               bool last = true) {
  Segment segment;
  segment.last = last;
  segment.opcode = opcode;
  segment.queue = queue;
  segment.sequence = sequence;
  segment.message_offset = offset;
  Bytes header(kUntaggedHeaderLength);
  build_segment(header.data(), segment);
  return header + payload;
}
Bytes read_request(uint32_t sequence, const ReadRequest& request) {
  Bytes payload(kReadRequestLength);
  build_read_request(payload.data(), request);
  return untagged(Opcode::read_request, 1, sequence, 0, payload);
}

class RawPeer {
 public:
  explicit RawPeer(const Listener& listener) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in address = listener.address();
    CHECK(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    const timeval patience{10, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const int yes = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }
  RawPeer(const RawPeer&) = delete;
  ~RawPeer() { close(); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int descriptor() const { return fd_; }
  // A peer that has heard enough may have closed: that is no failure here.
  void send(const Bytes& bytes) {
    [[maybe_unused]] auto sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Up to `length` bytes; fewer at the end of the stream.
  Bytes receive(size_t length) {
    Bytes bytes(length);
    size_t have = 0;
    while (have < length) {
      const ssize_t got = ::recv(fd_, bytes.data() + have, length - have, 0);
      CHECK(got >= 0 || errno == ECONNRESET);
      if (got <= 0) break;
      have += static_cast<size_t>(got);
    }
    bytes.resize(have);
    return bytes;
  }
  MpaFrame receive_frame() {
    Bytes bytes = receive(kMpaHeaderLength);
    MpaFrame frame;
    size_t length = 0;
    CHECK(parse_mpa(bytes, frame, length) != MpaParse::malformed);
    if (length > bytes.size()) bytes = bytes + receive(length - bytes.size());
    CHECK(parse_mpa(bytes, frame, length) == MpaParse::complete);
    return frame;
  }
  // The ULPDU of the next FPDU, its CRC checked; empty at the end of the stream.
  Bytes receive_fpdu() {
    const Bytes head = receive(2);
    if (head.size() < 2) return {};
    const size_t length = load_be16(head.data());
    const Bytes rest = receive(fpdu_length(length) - 2);
    CHECK(rest.size() == fpdu_length(length) - 2);
    const Bytes all = head + rest;
    CHECK(load_crc(&all[all.size() - 4]) == crc32c(all.data(), all.size() - 4));
    return Bytes(rest.begin(), rest.begin() + static_cast<long>(length));
  }
  // What the Terminate message says that must come now, with the end of the stream behind it.
  TerminateCode receive_terminate() {
    const Bytes ulpdu = receive_fpdu();
    Segment segment;
    TerminateCode why;
    CHECK(parse_segment(ulpdu.data(), ulpdu.size(), segment, why) && segment.opcode == Opcode::terminate);
    TerminateMessage message;
    CHECK(parse_terminate(ulpdu.data() + segment.header_length, segment.payload_length, message));
    CHECK(receive(1).empty());
    return message.code;
  }

 private:
  int fd_;
};

MpaFrame enhanced_request() {
  MpaFrame request;
  request.crc = true;
  request.enhanced = true;
  request.ird = request.ord = 4;
  request.peer_to_peer = true;
  request.rtr_write = true;
  return request;
}

// A raw peer that has been accepted, RTR sent; the other end is a real one with a region.
struct Victim {
  Listener listener;
  RawPeer peer{listener};
  std::unique_ptr<End> end;
  std::unique_ptr<Memory> memory;
  MpaFrame reply;

  explicit Victim(Progress progress, MpaFrame request = enhanced_request(), bool rtr = true) {
    peer.send(build_mpa(request));
    CmEvent event = listener.events->expect(CmEvent::Type::connect_request);
    end = std::make_unique<End>(Id(std::move(event.request)), Options{.progress = progress, .reads = 4});
    memory = std::make_unique<Memory>(end->pd, 128 * 1024);
    memory->fill(3);
    ConnectParameters parameters;
    parameters.qp = end->qp;
    parameters.responder_resources = parameters.initiator_depth = 4;
    CHECK(end->id.id->accept(parameters) == 0);
    reply = peer.receive_frame();
    if (rtr) {
      peer.send(fpdu(tagged(Opcode::write, 0, 0, {})));
      end->id.events->expect(CmEvent::Type::established);
    }
  }
  uint32_t key() const { return memory->mr->rkey; }
  // Lets the queue pair read what was sent, until its connection has ended.
  void drain() {
    ibv_wc wc;
    while (end->id.events->empty()) {
      ibv_poll_cq(end->cq, 1, &wc);
      std::this_thread::yield();
    }
  }
  // The next FPDU, with the queue pair's data moving meanwhile.
  Bytes answer() {
    std::atomic<bool> stop{false};
    std::thread poller([&] {
      ibv_wc wc;
      while (!stop) {
        ibv_poll_cq(end->cq, 1, &wc);
        std::this_thread::yield();
      }
    });
    Bytes ulpdu = peer.receive_fpdu();
    stop = true;
    poller.join();
    return ulpdu;
  }
};

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
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
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
  {  // markers are refused, in the reply
    Listener listener;
    RawPeer peer(listener);
    MpaFrame request = enhanced_request();
    request.markers = true;
    peer.send(build_mpa(request));
    CHECK(peer.receive_frame().reject && peer.receive(1).empty() && listener.events->empty());
  }
  {  // who speaks something else is let go at once
    Listener listener;
    RawPeer peer(listener);
    peer.send(text("GET /"));
    CHECK(peer.receive(1).empty() && listener.events->empty());
  }
}

// Each of these must end the connection with the Terminate message that the RFCs have for it.
void protocol_errors(Progress progress) {
  struct Case {
    const char* name;
    TerminateCode expected;
    std::function<Bytes(const Victim&)> bytes;
  };
  const auto at = [](const Victim& victim, uint64_t offset) { return victim.memory->address(offset); };
  const Bytes payload(16, 0xee);
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
  }
}

// More READs than were agreed on, from a peer that reads none of the answers.
void too_many_reads() {
  Victim victim(Progress::automatic);
  Bytes flood;
  for (uint32_t i = 1; i <= 3000; i++) {
    flood = flood + fpdu(read_request(i, {1, 0, 128 * 1024, victim.key(), victim.memory->address()}));
  }
  victim.peer.send(flood);
  CHECK(victim.end->id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
}

// Lies in the answers to this side's READs.
void wrong_responses() {
  const auto respond = [](const std::function<Bytes(const ReadRequest&)>& make, ibv_wc_status expected) {
    Victim victim(Progress::automatic);
    post(*victim.end, {.wr_id = 5, .opcode = IBV_WR_RDMA_READ, .remote_address = 7, .remote_key = 6},
         {victim.memory->sge(10, 16)});
    const Bytes asked = victim.peer.receive_fpdu();
    const Bytes before = victim.memory->bytes;
    victim.peer.send(make(parse_read_request(asked.data() + kUntaggedHeaderLength)));
    victim.end->expect(5, expected);
    CHECK(victim.end->id.events->expect(CmEvent::Type::disconnected).status != 0);
    CHECK(victim.memory->bytes == before);
  };
  const auto response = [](uint32_t stag, uint64_t offset, size_t length, bool last) {
    return fpdu(tagged(Opcode::read_response, stag, offset, Bytes(length), last));
  };
  using Request = const ReadRequest&;
  respond([&](Request to) { return response(to.sink_stag + 1, to.sink_offset, 16, true); },
          IBV_WC_WR_FLUSH_ERR);
  respond([&](Request to) { return response(to.sink_stag, to.sink_offset + 1, 8, false); },
          IBV_WC_WR_FLUSH_ERR);
  respond([&](Request to) { return response(to.sink_stag, to.sink_offset, 17, true); }, IBV_WC_WR_FLUSH_ERR);
  respond([&](Request to) { return response(to.sink_stag, to.sink_offset, 60'000, true); },
          IBV_WC_WR_FLUSH_ERR);
  respond([&](Request to) { return response(to.sink_stag, to.sink_offset, 15, true); }, IBV_WC_WR_FLUSH_ERR);
  // The peer's own Terminate message reaches the work request that it is about.
  respond(
      [&](Request) {
        Bytes payload(kMaxTerminateLength);
        TerminateMessage message;
        message.code = terminate::rdmap_bounds;
        payload.resize(build_terminate(payload.data(), message, nullptr));
        return fpdu(untagged(Opcode::terminate, 2, 1, 0, payload));
      },
      IBV_WC_REM_ACCESS_ERR);
}

// The peer is gone: in the middle of an FPDU, of a message, or with a reset.
void vanishing_peers(Progress progress) {
  for (int way = 0; way < 3; way++) {
    Victim victim(progress);
    post_receive(*victim.end, 1, victim.memory->sge(0, 60'000));
    const Bytes whole = fpdu(untagged(Opcode::send, 0, 1, 0, Bytes(50'000), false));
    if (way == 0) victim.peer.send(Bytes(whole.begin(), whole.begin() + 20'000));
    if (way == 1) victim.peer.send(whole);
    if (way == 2) {
      const linger hard{1, 0};
      setsockopt(victim.peer.descriptor(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    }
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
      for (uint8_t& byte : ulpdu) byte = static_cast<uint8_t>(random());
      if (ulpdu.size() >= 2 && round % 2) {
        ulpdu[0] = static_cast<uint8_t>((ulpdu[0] & 0xc0) | 1);
        ulpdu[1] = static_cast<uint8_t>(0x40 | random() % 12);
      }
      if (ulpdu.size() >= 18 && round % 4 == 3) {  // nearly right
        store_be32(&ulpdu[2], victim.key());
        store_be64(&ulpdu[6], ulpdu[0] & 0x80 ? victim.memory->address(random() % 1000) : 0x100000000 >> 32);
      }
      noise = noise + (round % 3 == 0 ? ulpdu : fpdu(ulpdu));
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

// Peers that connect and say nothing: their places are limited, and taken back after the deadline.
void silent_peers() {
  Listener listener;
  const auto begin = Clock::now();
  std::vector<std::unique_ptr<RawPeer>> silent;  // 128 take places, the rest waits in the kernel
  for (int i = 0; i < 200; i++) silent.push_back(std::make_unique<RawPeer>(listener));
  silent[0]->send(text("MPA ID Req Fr"));
  CHECK(silent[0]->receive(1).empty());
  const auto waited = Clock::now() - begin;
  CHECK(waited > std::chrono::seconds(4) && waited < std::chrono::seconds(8));
  // Places are free again.
  Pair pair(listener, {}, {});
}

void timed(const char* name, const std::function<void()>& test) {
  const auto begin = Clock::now();
  test();
  std::printf("%-28s %6.0f ms\n", name,
              std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  std::fflush(stdout);
}

}  // namespace

int main() {
  std::thread silent([] { timed("silent peers", silent_peers); });
  timed("CRC vectors", crc_vectors);
  timed("MPA frames", mpa_frames);
  timed("headers", headers);
  timed("wrong headers", wrong_headers);
  timed("random bytes, parsed", random_bytes_parse);
  timed("revision 1", revision_one_peer);
  timed("other setups", other_setups);
  timed("too many READs", too_many_reads);
  timed("wrong responses", wrong_responses);
  for (const Progress progress : {Progress::manual, Progress::automatic}) {
    timed("honest raw peer", [=] { honest_raw_peer(progress); });
    timed("protocol errors", [=] { protocol_errors(progress); });
    timed("vanishing peers", [=] { vanishing_peers(progress); });
    timed("random bytes, sent", [=] { random_bytes_on_the_wire(progress, 200); });
  }
  silent.join();
  std::puts("ok");
}
