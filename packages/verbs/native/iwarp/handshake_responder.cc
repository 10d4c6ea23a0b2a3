// The accepting side: MPA request, the application's answer, MPA reply, and the initiator's first FPDU.
// On the engine's thread, under mutex_.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "iwarp/byte_order.h"
#include "iwarp/connection.h"
#include "iwarp/handshake.h"

namespace rdmakit::iwarp {

// Ends in `requested`, or in `ended` when there is nobody worth telling the application about.
void Connection::read_request() {
  MpaFrame request;
  int error = 0;
  const bool whole = read_frame(request, error);
  if (!whole && error == 0) return;
  const bool acceptable = whole && !request.reply && !request.markers;
  if (whole && !request.reply && request.markers) {
    // RFC 5044 §7.1: markers are the receiver's choice, and this sender makes none.
    MpaFrame reply;
    reply.reply = true;
    reply.reject = true;
    reply.crc = request.crc;
    reply.revision = request.revision;
    reply.enhanced = request.enhanced;
    send_all(build_mpa(reply));
  }
  if (!acceptable) {
    socket_.reset();
    state_ = State::ended;
    return;
  }
  received_.clear();
  peer_frame_ = std::move(request);
  state_ = State::requested;
  // From here on readability means that the initiator gave up.
  Engine::instance().change(number_, socket_.get(), EPOLLIN | EPOLLRDHUP);
}

void Connection::finish_accept(Events& events) {
  if (state_ != State::requested) return;
  if (!socket_) return fail(ECONNRESET, events);
  const MpaFrame& request = peer_frame_;
  MpaFrame reply;
  reply.reply = true;
  reply.revision = request.revision;
  reply.crc = crc_wanted() || request.crc;
  reply.enhanced = request.enhanced;
  reply.private_data = std::move(private_data_);
  if (request.enhanced) {
    // Each side's inbound depth serves the other's outbound depth (RFC 6581).
    if (request.ord != kMpaReadDepthUnknown) inbound_reads_ = std::min<uint32_t>(inbound_reads_, request.ord);
    if (request.ird != kMpaReadDepthUnknown)
      outbound_reads_ = std::min<uint32_t>(outbound_reads_, request.ird);
    reply.ird = static_cast<uint16_t>(inbound_reads_);
    reply.ord = static_cast<uint16_t>(outbound_reads_);
    // A zero-length Send would take a receive of the application's: Write is preferred, then Read.
    reply.rtr_write = request.peer_to_peer && request.rtr_write;
    reply.rtr_read = request.peer_to_peer && request.rtr_read && !request.rtr_write;
    reply.peer_to_peer = reply.rtr_write || reply.rtr_read;
  } else {
    outbound_reads_ = std::min(outbound_reads_, kUnnegotiatedReads);
  }
  if (!send_all(build_mpa(reply))) return fail(ECONNRESET, events);
  if (reply.peer_to_peer) {
    state_ = State::await_rtr;
    set_deadline(kHandshakeTimeoutMs);
    return;
  }
  // The application is told now, or it might wait for ever for a peer that waits for it; what it
  // sends is held until the initiator's first FPDU (RFC 5044 §7.1.2).
  QueuePair::StartParameters parameters;
  parameters.crc = reply.crc;
  parameters.hold_sends = true;
  establish(std::move(parameters), {}, events);
}

// The engine reads the Ready-To-Receive message itself: with manual progress nobody polls before the
// application has been told `established`. The bytes are then the queue pair's first.
void Connection::read_first_fpdu(Events& events) {
  constexpr size_t kLongest = 64;  // more than either Ready-To-Receive message has
  while (true) {
    size_t wanted = kFpduLengthField;
    if (received_.size() >= kFpduLengthField) {
      wanted = std::min(fpdu_length(load_be16(received_.data())), kLongest);
    }
    const size_t have = received_.size();
    if (have >= wanted) break;
    received_.resize(wanted);
    const ssize_t got = ::recv(socket_.get(), received_.data() + have, wanted - have, MSG_DONTWAIT);
    const int failed = errno;
    received_.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return fail(ECONNRESET, events);
    if (got < 0) {
      if (failed != EAGAIN && failed != EINTR) fail(failed, events);
      return;
    }
  }
  QueuePair::StartParameters parameters;
  parameters.crc = crc_wanted() || peer_frame_.crc;
  parameters.received = received_;
  establish(std::move(parameters), {}, events);
}

}  // namespace rdmakit::iwarp
