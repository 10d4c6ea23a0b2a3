// A peer that speaks iWARP over a plain socket, byte by byte, as honestly or not as a test wants it to.
#pragma once

#include <netinet/tcp.h>

#include <functional>

#include "base/crc32c.h"
#include "fixture.h"
#include "iwarp/wire/byte_order.h"
#include "iwarp/wire/ddp.h"
#include "iwarp/wire/markers.h"
#include "iwarp/wire/mpa.h"

namespace fixture {

using namespace rdmakit::iwarp;

using Bytes = std::vector<uint8_t>;

inline Bytes& operator+=(Bytes& left, const Bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}
inline Bytes operator+(Bytes left, const Bytes& right) { return left += right; }

inline Bytes text(const char* characters) { return Bytes(characters, characters + std::strlen(characters)); }

inline Bytes fpdu(const Bytes& ulpdu) {
  Bytes bytes = Bytes{static_cast<uint8_t>(ulpdu.size() >> 8), static_cast<uint8_t>(ulpdu.size())} + ulpdu;
  bytes.resize(2 + ulpdu.size() + fpdu_pad(ulpdu.size()) + 4);
  store_crc(&bytes[bytes.size() - 4], crc32c(bytes.data(), bytes.size() - 4));
  return bytes;
}
inline Bytes tagged(Opcode opcode, uint32_t stag, uint64_t offset, const Bytes& payload, bool last = true) {
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
inline Bytes untagged(Opcode opcode, uint32_t queue, uint32_t sequence, uint32_t offset, const Bytes& payload,
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
inline Bytes read_request(uint32_t sequence, const ReadRequest& request) {
  Bytes payload(kReadRequestLength);
  build_read_request(payload.data(), request);
  return untagged(Opcode::read_request, 1, sequence, 0, payload);
}

class RawPeer {
 public:
  explicit RawPeer(const Listener& listener) : RawPeer(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in address = listener.address();
    CHECK(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  explicit RawPeer(int fd) : fd_(fd) {
    CHECK(fd_ >= 0);
    const timeval patience{kHang.count(), 0};
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
    if (length > bytes.size()) bytes += receive(length - bytes.size());
    CHECK(parse_mpa(bytes, frame, length) == MpaParse::complete);
    return frame;
  }
  // The ULPDU of the next FPDU, its CRC and markers checked; empty at the end of the stream.
  Bytes receive_fpdu() {
    const size_t lead = markers_received ? leading_marker(received_position) : 0;
    Bytes all = receive(lead + 2);
    if (all.size() < lead + 2) return {};
    const size_t length = load_be16(&all[lead]);
    const size_t plain = fpdu_length(length);
    const size_t whole = markers_received ? marked_length(received_position, plain) : plain;
    all += receive(whole - all.size());
    CHECK(all.size() == whole);
    const uint32_t sum = load_crc(&all[whole - 4]);
    CHECK(crc ? sum == crc32c(all.data(), whole - 4) : sum == 0);
    if (markers_received) CHECK(remove_markers(all.data(), whole, received_position));
    received_position += whole;
    return Bytes(all.begin() + 2, all.begin() + 2 + static_cast<long>(length));
  }
  void send_fpdu(const Bytes& ulpdu) {
    const Bytes bytes = build_fpdu(ulpdu, crc, markers_sent, sent_position);
    sent_position += bytes.size();
    send(bytes);
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

  // What was agreed on, and where the two streams of FPDUs are.
  bool crc = true;
  bool markers_sent = false;
  bool markers_received = false;
  uint64_t sent_position = 0;
  uint64_t received_position = 0;

 private:
  int fd_;
};

// A responder in place of a Listener.
class RawListener {
 public:
  RawListener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in any = loopback(0);
    socklen_t length = sizeof address;
    CHECK(::bind(fd_, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0 && ::listen(fd_, 8) == 0);
    CHECK(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    const timeval patience{kHang.count(), 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  RawListener(const RawListener&) = delete;
  ~RawListener() { ::close(fd_); }
  int accept() const { return ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC); }
  // Whether a peer connects within that time.
  bool is_tried(int milliseconds) const {
    pollfd waiting{fd_, POLLIN, 0};
    return ::poll(&waiting, 1, milliseconds) == 1;
  }
  sockaddr_in address{};

 private:
  int fd_;
};

// A real end that connects to such a responder.
struct Initiator {
  std::unique_ptr<End> end;

  explicit Initiator(const RawListener& listener, const Bytes& private_data = {}, uint8_t reads = 4,
                     Progress progress = Progress::automatic) {
    Id id;
    CHECK(id.id->resolve(reinterpret_cast<const sockaddr*>(&listener.address), sizeof listener.address,
                         kHangMs) == 0);
    id.events->expect(CmEvent::Type::route_resolved);
    end = std::make_unique<End>(std::move(id), Options{.progress = progress});
    ConnectParameters parameters;
    parameters.qp = end->qp;
    parameters.private_data = private_data;
    parameters.responder_resources = parameters.initiator_depth = reads;
    CHECK(end->id.id->connect(parameters) == 0);
  }
};

inline MpaFrame enhanced_request() {
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
  std::unique_ptr<Memory> local;  // of the same domain, without remote rights
  MpaFrame reply;

  explicit Victim(Progress progress, MpaFrame request = enhanced_request(), bool rtr = true) {
    peer.send(build_mpa(request));
    CmEvent event = listener.events->expect(CmEvent::Type::connect_request);
    end = std::make_unique<End>(Id(std::move(event.request)), Options{.progress = progress, .reads = 4});
    memory = std::make_unique<Memory>(end->pd, 128 * 1024);
    memory->fill(3);
    local = std::make_unique<Memory>(end->pd, 4096, IBV_ACCESS_LOCAL_WRITE);
    ConnectParameters parameters;
    parameters.qp = end->qp;
    parameters.responder_resources = parameters.initiator_depth = 4;
    CHECK(end->id.id->accept(parameters) == 0);
    reply = peer.receive_frame();
    peer.crc = reply.crc;
    peer.markers_sent = reply.markers;
    peer.markers_received = request.markers;
    if (rtr) {
      peer.send_fpdu(tagged(Opcode::write, 0, 0, {}));
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

}  // namespace fixture
