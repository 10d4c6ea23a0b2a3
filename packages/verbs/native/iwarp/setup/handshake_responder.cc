// The accepting side: MPA request, the application's answer, MPA reply, and the initiator's first FPDU.
// On the progress thread, under mutex_.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "iwarp/setup/connection.h"
#include "iwarp/setup/handshake.h"
#include "iwarp/wire/byte_order.h"
#include "iwarp/wire/markers.h"

namespace rdmakit::iwarp {

// Ends in `requested`, or in `ended` if there is no peer of which the application needs to know.
void Connection::read_request() {
  MpaFrame request;
  int error = 0;
  const bool whole = read_frame(request, error);
  if (!whole && error == 0) return;
  if (!whole || request.reply) {
    socket_.reset();
    enter(State::ended);
    return;
  }
  received_.clear();
  peer_frame_ = std::move(request);
  enter(State::requested);
  // From here on readability means that the initiator gave up.
  ProgressThread::instance().change(number_, socket_.get(), EPOLLIN | EPOLLRDHUP);
}

void Connection::finish_accept(Events& events) {
  if (state_ != State::requested) return;
  if (!socket_) return fail(ECONNRESET, events);
  const MpaFrame& request = peer_frame_;
  MpaFrame reply;
  reply.reply = true;
  reply.revision = request.revision;
  reply.crc = crc_wanted() || request.crc;
  reply.markers = markers_wanted();
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
    enter(State::completing);
    set_deadline(std::chrono::milliseconds(kHandshakeTimeoutMs));
    return;
  }
  // The application is notified now, or it might wait for ever for a peer that waits for it; its sends are
  // held until the initiator's first FPDU (RFC 5044 §7.1.2).
  QueuePair::StartParameters parameters;
  parameters.crc = reply.crc;
  parameters.send_markers = request.markers;
  parameters.hold_sends = true;
  establish(std::move(parameters), {}, events);
}

// In the request's revision, and with its choice of enhanced data.
void Connection::send_rejection(const std::vector<uint8_t>& private_data) {
  if (!socket_) return;
  MpaFrame reply = peer_frame_;
  reply.reply = true;
  reply.reject = true;
  reply.markers = false;
  reply.private_data = private_data;
  send_all(build_mpa(reply));
}

// The progress thread reads the Ready-To-Receive message itself: with manual progress no thread polls before
// the application has received `established`. From then on the bytes are the queue pair's.
void Connection::read_first_fpdu(Events& events) {
  constexpr size_t kLongest = 64;  // more than either Ready-To-Receive message has
  const size_t lead = markers_wanted() ? leading_marker(0) : 0;
  while (true) {
    size_t wanted = lead + kFpduLengthField;
    if (received_.size() >= wanted) {
      wanted = std::min(lead + fpdu_length(load_be16(received_.data() + lead)), kLongest);
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
  parameters.send_markers = peer_frame_.markers;
  parameters.received = received_;
  establish(std::move(parameters), {}, events);
}

}  // namespace rdmakit::iwarp
