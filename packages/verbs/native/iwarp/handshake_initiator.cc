// The connecting side: TCP, MPA request, MPA reply, and the Ready-To-Receive message that lets the
// responder send before it has been sent anything (RFC 6581). On the engine's thread, under mutex_.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "iwarp/connection.h"
#include "iwarp/crc32c.h"
#include "iwarp/ddp.h"
#include "iwarp/handshake.h"

namespace rdmakit::iwarp {
namespace {

// A zero-length RDMA Write or Read Request, which look at no STag.
std::vector<uint8_t> ready_to_receive(bool write, bool crc) {
  std::vector<uint8_t> fpdu(kFpduLengthField + kUntaggedHeaderLength + kReadRequestLength + kFpduMaxTrailer);
  Segment segment;
  segment.tagged = write;
  segment.last = true;
  segment.opcode = write ? Opcode::write : Opcode::read_request;
  segment.queue = kReadRequestQueue;
  segment.sequence = 1;
  size_t ulpdu = build_segment(fpdu.data() + kFpduLengthField, segment);
  if (!write) {
    build_read_request(fpdu.data() + kFpduLengthField + ulpdu, ReadRequest{});
    ulpdu += kReadRequestLength;
  }
  fpdu.resize(fpdu_length(ulpdu));
  fpdu[0] = static_cast<uint8_t>(ulpdu >> 8);
  fpdu[1] = static_cast<uint8_t>(ulpdu);
  const size_t checked = fpdu.size() - kFpduCrcLength;
  store_crc(fpdu.data() + checked, crc ? crc32c(fpdu.data(), checked) : 0);
  return fpdu;
}

}  // namespace

void Connection::start_connect(Events& events) {
  if (state_ != State::connecting) return;
  socket_ = UniqueFd(::socket(peer_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_) return fail(errno, events);
  prepare_socket(socket_.get());
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&peer_), peer_length_) != 0 &&
      errno != EINPROGRESS) {
    return fail(errno, events);
  }
  set_deadline(timeout_ms_ > 0 ? timeout_ms_ : kConnectTimeoutMs);
  const int error = Engine::instance().watch(number_, socket_.get(), EPOLLOUT);
  if (error != 0) fail(error, events);
}

void Connection::tcp_connected(Events& events) {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return fail(error, events);
  length = sizeof local_;
  getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&local_), &length);

  MpaFrame request;
  request.crc = crc_wanted();
  request.enhanced = true;
  request.ird = static_cast<uint16_t>(inbound_reads_);
  request.ord = static_cast<uint16_t>(outbound_reads_);
  request.peer_to_peer = true;
  request.rtr_write = true;
  request.rtr_read = true;
  request.private_data = std::move(private_data_);
  if (!send_all(build_mpa(request))) return fail(ECONNRESET, events);
  state_ = State::await_reply;
  set_deadline(kReplyTimeoutMs);
  error = Engine::instance().change(number_, socket_.get(), EPOLLIN);
  if (error != 0) fail(error, events);
}

void Connection::read_reply(Events& events) {
  MpaFrame reply;
  int error = 0;
  if (!read_frame(reply, error)) {
    if (error != 0) fail(error, events);
    return;
  }
  if (!reply.reply) return fail(EPROTO, events);
  if (reply.reject) {
    fail(ECONNREFUSED, events);
    events.back() = {CmEvent::Type::rejected, ECONNREFUSED, std::move(reply.private_data), nullptr};
    return;
  }
  // Markers that the peer wants in what we send are not made here.
  if (reply.markers) return fail(EPROTONOSUPPORT, events);

  QueuePair::StartParameters parameters;
  parameters.crc = crc_wanted() || reply.crc;
  if (reply.enhanced) {
    if (reply.ird != kMpaReadDepthUnknown) outbound_reads_ = std::min<uint32_t>(outbound_reads_, reply.ird);
    // The responder may ask for more than was offered to it; what the device has it may have.
    if (reply.ord != kMpaReadDepthUnknown) {
      if (reply.ord > kMaxReadDepth) return fail(EPROTO, events);
      inbound_reads_ = std::max<uint32_t>(inbound_reads_, reply.ord);
    }
    if (reply.peer_to_peer) {
      if (!reply.rtr_write && !reply.rtr_read) return fail(EPROTO, events);
      if (!send_all(ready_to_receive(reply.rtr_write, parameters.crc))) return fail(ECONNRESET, events);
      parameters.read_was_sent = !reply.rtr_write;
    }
  } else {
    outbound_reads_ = std::min(outbound_reads_, kUnnegotiatedReads);
  }
  establish(std::move(parameters), std::move(reply.private_data), events);
}

}  // namespace rdmakit::iwarp
