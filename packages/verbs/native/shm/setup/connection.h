// ConnectionId: one end of a connection over a Unix socket, or a listener.
//
//   resolve ──► resolved ──connect──► await_reply ──accept──► completing ──► established
//   listener ─accept(2)─► await_request ──► requested ──accept──► completing ──► established
//
// `completing`: the peer's segments are awaited.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "shm/progress_thread.h"
#include "shm/queue-pair/queue_pair.h"
#include "shm/setup/frame.h"
#include "shm/setup/link.h"
#include "software/connection.h"

namespace rdmakit::shm {

class Connection final : public software::ConnectionOf<Connection, QueuePair> {
 public:
  ~Connection() override { close(); }

  int listen(const sockaddr* address, socklen_t length, int backlog) override;
  int resolve(const sockaddr* address, socklen_t length, int timeout_ms) override;
  bool settled() override;

  void on_deadline() override;

  // For the progress thread.
  uint64_t number() const { return number_; }
  void forget_qp(ibv_qp* queue_pair) override;
  // The established connection of this id is over. Takes no lock and no reference.
  static void queue_pair_ended(std::weak_ptr<Connection> id, int status);

 private:
  friend ConnectionOf;
  Connection();

  // connection.cc
  int socket() const { return link_ == nullptr ? socket_.get() : link_->socket(); }
  void make_link(UniqueFd socket);
  void drop_link();
  void stop_watching();
  void closing() override;
  void release() override;
  void queue_pair_over(int status, Events& events) override;
  std::vector<uint8_t> take_private_data() override { return std::exchange(peer_private_data_, {}); }
  void socket_ready(Events& events) override;
  void deadline_over(Events& events) override;

  // handshake.cc; under mutex_ on the progress thread
  void fail(int status, Events& events) override;
  void start_connect(Events& events) override;
  void read_reply(Events& events) override;
  void read_request() override;
  void finish_accept(Events& events) override;
  void send_rejection(const std::vector<uint8_t>& private_data) override;
  int send_greeting(FrameType type, int status);
  void begin(const GreetingFrame& greeting, Frame& frame, Events& events);
  void read_frames(Events& events);
  int take_frame(Frame& frame, Events& events);
  void lost(const Failure& failure, Events& events);

  // listener.cc
  int accept_sockets() override;
  int resume_accepting() override;
  void unlink_file();

  // Owns the former socket_ from the greeting on that brings this side's memory.
  std::shared_ptr<Link> link_;
  bool started_ = false;  // the queue pair has it, too
  ProgressThread::Clock::time_point retry_until_ = ProgressThread::Clock::time_point::max();
  std::shared_ptr<Hazard> hazard_;          // of a queue pair that is gone
  std::vector<uint8_t> peer_private_data_;  // from it
  std::unique_ptr<Frame> request_;          // what the peer asked for
  bool owes_synchronized_ = false;          // it is sent when the initiator's has arrived

  // Of a listener's socket file.
  dev_t file_device_ = 0;
  ino_t file_inode_ = 0;
};

}  // namespace rdmakit::shm
