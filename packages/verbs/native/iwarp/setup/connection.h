// ConnectionId: one end of a connection on its way through TCP and MPA setup, or a listener.
//
//   resolve ──► resolved ──connect──► connecting ──TCP──► await_reply ──► established
//   listener ─accept(2)─► await_request ──► requested ──accept──► (completing) ──► established
//
// An acceptor is `completing` until the initiator's first FPDU has come. The socket becomes the queue pair's
// when the connection is established.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "iwarp/progress_thread.h"
#include "iwarp/queue-pair/queue_pair.h"
#include "iwarp/wire/mpa.h"
#include "software/connection.h"

namespace rdmakit::iwarp {

class Connection final : public software::ConnectionOf<Connection, QueuePair> {
 public:
  ~Connection() override { close(); }

  int listen(const sockaddr* address, socklen_t length, int backlog) override;
  int resolve(const sockaddr* address, socklen_t length, int timeout_ms) override;
  void add_alternative(const sockaddr* address, socklen_t length) override;

  // The established connection of this id is over. Takes no lock and no reference: the caller holds
  // the queue pair's locks.
  static void queue_pair_ended(std::weak_ptr<Connection> id, int status);

 private:
  friend ConnectionOf;
  Connection();

  // connection.cc
  void closing() override;
  void release() override { socket_.reset(); }
  int take_parameters(const ConnectParameters& parameters) override;
  void queue_pair_over(int status, Events& events) override;
  std::vector<uint8_t> take_private_data() override { return std::move(peer_frame_.private_data); }
  void socket_ready(Events& events) override;
  void deadline_over(Events& events) override;

  // handshake.cc: what both sides do; like the next two under mutex_ on the progress thread
  void fail(int status, Events& events) override;
  bool read_frame(MpaFrame& frame, int& error);
  bool send_all(const std::vector<uint8_t>& bytes);
  void establish(QueuePair::StartParameters&& parameters, std::vector<uint8_t>&& private_data,
                 Events& events);

  // handshake_initiator.cc
  void start_connect(Events& events) override;
  void try_address(Events& events);
  void address_failed(int status, Events& events);
  void connect_tcp(Events& events);
  void tcp_connected(Events& events);
  void read_reply(Events& events) override;
  void try_first_revision(Events& events);

  // handshake_responder.cc
  void read_request() override;
  void finish_accept(Events& events) override;
  void read_first_fpdu(Events& events);
  void send_rejection(const std::vector<uint8_t>& private_data) override;

  // listener.cc
  int accept_sockets() override;
  int resume_accepting() override;

  // Addresses that were not tried yet, and until when one of all must have answered.
  std::deque<std::pair<sockaddr_storage, socklen_t>> alternatives_;
  ProgressThread::Clock::time_point answer_by_ = ProgressThread::Clock::time_point::max();

  // This side's request; then the agreed value.
  uint32_t inbound_reads_ = 0;
  uint32_t outbound_reads_ = 0;
  uint8_t revision_ = kMpaEnhancedRevision;  // of the request
  std::vector<uint8_t> received_;
  MpaFrame peer_frame_;
};

}  // namespace rdmakit::iwarp
