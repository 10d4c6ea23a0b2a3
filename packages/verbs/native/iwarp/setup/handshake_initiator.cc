// The connecting side: TCP, MPA request, MPA reply, and the Ready-To-Receive message that lets the
// responder send before it has been sent anything (RFC 6581). On the progress thread, under mutex_.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <tuple>

#include "iwarp/setup/connection.h"
#include "iwarp/setup/handshake.h"
#include "iwarp/wire/ddp.h"

namespace rdmakit::iwarp {
namespace {

// A zero-length RDMA Write or Read Request, which look at no STag.
std::vector<uint8_t> ready_to_receive(bool write) {
  Segment segment;
  segment.tagged = write;
  segment.last = true;
  segment.opcode = write ? Opcode::write : Opcode::read_request;
  segment.queue = kReadRequestQueue;
  segment.sequence = 1;
  std::vector<uint8_t> ulpdu(kUntaggedHeaderLength + kReadRequestLength);
  size_t length = build_segment(ulpdu.data(), segment);
  if (!write) {
    build_read_request(ulpdu.data() + length, ReadRequest{});
    length += kReadRequestLength;
  }
  ulpdu.resize(length);
  return ulpdu;
}

std::vector<uint8_t> terminate_message(TerminateCode code) {
  Segment segment;
  segment.last = true;
  segment.opcode = Opcode::terminate;
  segment.queue = kTerminateQueue;
  segment.sequence = 1;
  std::vector<uint8_t> ulpdu(kUntaggedHeaderLength + kMaxTerminateLength);
  size_t length = build_segment(ulpdu.data(), segment);
  length += build_terminate(ulpdu.data() + length, TerminateMessage{code, false, {}}, nullptr);
  ulpdu.resize(length);
  return ulpdu;
}

}  // namespace

void Connection::start_connect(Events& events) {
  if (state_ != State::connecting) return;
  answer_by_ = ProgressThread::Clock::now() +
               std::chrono::milliseconds(timeout_ms_ > 0 ? timeout_ms_ : kConnectTimeoutMs);
  try_address(events);
}

// One address at a time, and all but the last for a while only: a name may have several of which some lead
// nowhere.
void Connection::try_address(Events& events) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(answer_by_ - ProgressThread::Clock::now());
  const auto all = std::max(left, std::chrono::milliseconds(1));
  set_deadline(alternatives_.empty() ? all : std::min(all, std::chrono::milliseconds(kAddressTimeoutMs)));
  connect_tcp(events);
}

// No listener answered at this address.
void Connection::address_failed(int status, Events& events) {
  if (alternatives_.empty() || answer_by_ <= ProgressThread::Clock::now()) return fail(status, events);
  std::tie(peer_, peer_length_) = alternatives_.front();
  alternatives_.pop_front();
  try_address(events);
}

void Connection::connect_tcp(Events& events) {
  socket_ = UniqueFd(::socket(peer_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_) return fail(errno, events);
  prepare_socket(socket_.get());
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&peer_), peer_length_) != 0 &&
      errno != EINPROGRESS) {
    return address_failed(errno, events);
  }
  const int error = ProgressThread::instance().watch(number_, socket_.get(), EPOLLOUT);
  if (error != 0) fail(error, events);
}

void Connection::tcp_connected(Events& events) {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return address_failed(error, events);
  alternatives_.clear();
  length = sizeof local_;
  getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&local_), &length);

  MpaFrame request;
  request.revision = revision_;
  request.crc = crc_wanted();
  request.markers = markers_wanted();
  request.enhanced = revision_ >= kMpaEnhancedRevision;
  if (request.enhanced) {
    request.ird = static_cast<uint16_t>(inbound_reads_);
    request.ord = static_cast<uint16_t>(outbound_reads_);
    request.peer_to_peer = true;
    request.rtr_write = true;
    request.rtr_read = true;
  }
  request.private_data = private_data_;
  if (!send_all(build_mpa(request))) return fail(ECONNRESET, events);
  enter(State::await_reply);
  // The second try has the rest of the first one's time.
  if (request.enhanced) set_deadline(std::chrono::milliseconds(kReplyTimeoutMs));
  error = ProgressThread::instance().change(number_, socket_.get(), EPOLLIN);
  if (error != 0) fail(error, events);
}

// RFC 5044 knows revision 1 only: its responders close the connection, or answer in their own revision,
// having taken the enhanced data for the application's. So all is said again without it (RFC 6581).
void Connection::try_first_revision(Events& events) {
  revision_ = 1;
  received_.clear();
  enter(State::connecting);
  connect_tcp(events);
}

void Connection::read_reply(Events& events) {
  MpaFrame reply;
  int error = 0;
  if (!read_frame(reply, error)) {
    const bool closed = (error == ECONNRESET || error == EPIPE) && received_.empty();
    if (closed && revision_ >= kMpaEnhancedRevision) return try_first_revision(events);
    if (error != 0) fail(error, events);
    return;
  }
  if (!reply.reply) return fail(EPROTO, events);
  if (reply.revision < kMpaEnhancedRevision && revision_ >= kMpaEnhancedRevision) {
    return try_first_revision(events);
  }
  if (reply.reject) {
    fail(ECONNREFUSED, events);
    events.back() = {CmEvent::Type::rejected, ECONNREFUSED, std::move(reply.private_data), nullptr};
    return;
  }

  QueuePair::StartParameters parameters;
  parameters.crc = crc_wanted() || reply.crc;
  parameters.send_markers = reply.markers;
  const auto send_first = [&](const std::vector<uint8_t>& ulpdu) {
    const std::vector<uint8_t> fpdu = build_fpdu(ulpdu, parameters.crc, parameters.send_markers);
    parameters.sent = fpdu.size();
    return send_all(fpdu);
  };
  if (reply.enhanced) {
    if (reply.ird != kMpaReadDepthUnknown) outbound_reads_ = std::min<uint32_t>(outbound_reads_, reply.ird);
    // The responder may ask for more than was offered to it; what the device has it may have.
    if (reply.ord != kMpaReadDepthUnknown) {
      if (reply.ord > kMaxReadDepth) {
        send_first(terminate_message(terminate::mpa_insufficient_ird));
        return fail(EPROTO, events);
      }
      inbound_reads_ = std::max<uint32_t>(inbound_reads_, reply.ord);
    }
    if (reply.peer_to_peer) {
      if (!reply.rtr_write && !reply.rtr_read) {
        send_first(terminate_message(terminate::mpa_no_rtr));
        return fail(EPROTO, events);
      }
      if (!send_first(ready_to_receive(reply.rtr_write))) return fail(ECONNRESET, events);
      parameters.read_was_sent = !reply.rtr_write;
    }
  } else {
    outbound_reads_ = std::min(outbound_reads_, kUnnegotiatedReads);
  }
  establish(std::move(parameters), std::move(reply.private_data), events);
}

}  // namespace rdmakit::iwarp
