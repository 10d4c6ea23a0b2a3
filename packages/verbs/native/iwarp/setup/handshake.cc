// The common part of the initiator's and the responder's MPA setup.
#include "iwarp/setup/handshake.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "iwarp/setup/connection.h"
#include "iwarp/setup/host_watch.h"
#include "rdmakit/tcp_keepalive.h"

namespace rdmakit::iwarp {
namespace {

// The largest ULPDU for this socket: one FPDU a TCP segment (RFC 5044). On loopback, whose MTU is 64 KiB,
// that is close to 64 KiB; there TCP_MAXSEG says half of it until data has flowed, because Linux bounds
// segments to half of the largest window that the peer has offered so far.
uint32_t ulpdu_limit(int socket, bool markers) {
  constexpr uint32_t kLoopbackMtu = 65535;     // as tcp_info has it
  constexpr uint32_t kHeaders = 40 + 20 + 12;  // IPv6, TCP, timestamps
  int segment = 0;
  socklen_t length = sizeof segment;
  if (getsockopt(socket, IPPROTO_TCP, TCP_MAXSEG, &segment, &length) != 0 || segment <= 0) segment = 536;
  tcp_info info{};
  length = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_pmtu >= kLoopbackMtu) {
    segment = static_cast<int>(kLoopbackMtu - kHeaders);
  }
  return max_ulpdu_length(static_cast<uint32_t>(segment), markers);
}

bool environment_is(const char* name, const char* wanted) {
  const char* value = std::getenv(name);
  return value != nullptr && std::strcmp(value, wanted) == 0;
}

}  // namespace

bool crc_wanted() {
  static const bool wanted = !environment_is("RDMAKIT_IWARP_CRC", "0");
  return wanted;
}

bool markers_wanted() {
  static const bool wanted = environment_is("RDMAKIT_IWARP_MARKERS", "1");
  return wanted;
}

void prepare_socket(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  keep_alive(socket, static_cast<int>(host_silence().count()));
}

void Connection::fail(int status, Events& events) {
  socket_.reset();
  enter(State::ended);
  if (queue_pair_ != nullptr) queue_pair()->fail(Failure{});
  events.push_back({CmEvent::Type::connect_failed, status, {}, nullptr});
}

// Reads no further than the frame's end: what follows is the queue pair's. False: more has to arrive,
// or `error` is set.
bool Connection::read_frame(MpaFrame& frame, int& error) {
  error = 0;
  while (true) {
    size_t wanted = 0;
    const MpaParse result = parse_mpa(received_, frame, wanted);
    if (result == MpaParse::malformed) {
      error = EPROTO;
      return false;
    }
    if (result == MpaParse::complete) return true;
    const size_t have = received_.size();
    received_.resize(wanted);
    const ssize_t got = ::recv(socket_.get(), received_.data() + have, wanted - have, MSG_DONTWAIT);
    const int failed = errno;
    received_.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) error = ECONNRESET;
    if (got < 0 && failed != EAGAIN && failed != EINTR) error = failed;
    if (got <= 0) return false;
  }
}

// Setup frames are far smaller than an empty socket's buffer: anything but success is the end.
bool Connection::send_all(const std::vector<uint8_t>& bytes) {
  return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

void Connection::establish(QueuePair::StartParameters&& parameters, std::vector<uint8_t>&& private_data,
                           Events& events) {
  if (queue_pair_ == nullptr) return fail(ECONNABORTED, events);
  ProgressThread::instance().unwatch(socket_.get());
  parameters.receive_markers = markers_wanted();
  parameters.max_ulpdu = ulpdu_limit(socket_.get(), parameters.send_markers);
  parameters.inbound_reads = inbound_reads_;
  parameters.outbound_reads = outbound_reads_;
  parameters.socket = std::move(socket_);
  // Before start(): the first bytes may already end the connection.
  enter(State::established);
  const int error = queue_pair()->start(std::move(parameters));
  if (error != 0) return fail(error, events);
  set_deadline(queue_pair()->look_interval());
  events.push_back({CmEvent::Type::established, 0, std::move(private_data), nullptr});
}

}  // namespace rdmakit::iwarp
