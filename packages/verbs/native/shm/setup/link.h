// A connection's socket once its handshake is done: announcements, wake-ups, the end.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <variant>

#include "shm/mapping/segment.h"
#include "shm/setup/frame.h"

namespace rdmakit::shm {

class Link {
 public:
  // `number`: of the progress thread's client that watches the socket.
  Link(UniqueFd socket, uint64_t number) : socket_(std::move(socket)), number_(number) {}

  int socket() const { return socket_.get(); }

  void announce(const std::shared_ptr<Segment>& segment, uint32_t number);
  void withdraw(const std::shared_ptr<Segment>& segment, uint32_t number);
  // `reach`: reach_of() the peer, when it does not know that yet.
  void synchronized(int reach) {
    put(PlainFrame{header_of(FrameType::synchronized), reach, Blame::nothing, {}}, nullptr);
  }
  void kick() { put(PlainFrame{header_of(FrameType::kick), 0, Blame::nothing, {}}, nullptr); }
  // The last frame. Waiting frames are dropped.
  void end(int status, Blame blame);
  // The end of one whose queue pair has not started: its peer expects no frame.
  void hang_up();
  // The progress thread calls the connection in a moment.
  void wake_soon();
  // Sends waiting frames. Called by the progress thread at the time that this link asked for.
  void flush();

  // The peer is dead, or has said that it touches nothing any more.
  bool peer_over();
  void note_peer_over() { peer_over_.store(true, std::memory_order_release); }

 private:
  using Bytes = std::variant<SegmentFrame, PlainFrame>;
  struct Waiting {
    Bytes bytes;
    std::shared_ptr<Segment> segment;  // its descriptor goes beside the frame
  };
  void put(const Bytes& bytes, std::shared_ptr<Segment> segment);
  int send(const Waiting& frame);

  const UniqueFd socket_;
  const uint64_t number_;
  std::atomic<bool> peer_over_{false};
  std::mutex mutex_;
  bool ended_ = false;
  std::deque<Waiting> waiting_;
  std::set<uint32_t> announced_;  // generations
};

}  // namespace rdmakit::shm
