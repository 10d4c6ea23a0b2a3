// Carries one connection's bytes between TLS and the lane that serves it, in a thread of its own:
//
//   client  <-- TLS -->  TlsPump  <-- socketpair -->  lane
//
// So the page path stays as it is: no lane ever allocates, locks or computes for TLS. The price is a copy and
// a thread switch in each direction, and two buffers of kBuffer bytes. A pump outlives its lane's connection
// for as long as its client may take to receive what the lane has left, `parting` at most.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/unique_fd.h"
#include "rdmakit/thread.h"
#include "tls/session.h"

namespace rdmakit::nbd {

class TlsPump {
 public:
  static constexpr size_t kBuffer = 64 << 10;

  // Both sockets without blocking. `session` speaks over `outer`; the lane has the other end of `inner`.
  // `parting`: ns.
  TlsPump(std::unique_ptr<TlsSession> session, UniqueFd outer, UniqueFd inner, uint64_t parting);
  // Ends the connection if it still exists.
  ~TlsPump();
  // 0 or an errno value.
  int start();
  // The thread has ended, or is about to.
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  // From now on it has kStopping to send the rest.
  void stop();

 private:
  // Bytes on their way in one direction.
  struct Flow {
    std::array<uint8_t, kBuffer> buffer;
    size_t begin = 0;
    size_t end = 0;
    bool ended = false;   // nothing more comes in
    bool passed = false;  // true: the receiver of the descriptor knows of it
    bool empty() const { return begin == end; }
    uint8_t* data() { return buffer.data() + begin; }
    size_t size() const { return end - begin; }
    void put(size_t bytes) {
      begin = 0;
      end = bytes;
    }
  };
  enum class Move { none, some, over };

  void run();
  void end_within(uint64_t time);
  Move move();
  Move move_inwards();
  Move move_outwards();
  void wait();

  UniqueFd outer_;
  UniqueFd inner_;
  std::unique_ptr<TlsSession> session_;  // over outer_
  UniqueFd wake_;
  Flow inwards_;
  Flow outwards_;
  const uint64_t parting_;
  bool tls_blocked_ = false;  // a send() waits
  bool lane_gone_ = false;    // it has closed its end; what it has left may still be there
  uint64_t deadline_ = 0;     // 0: none
  std::atomic<bool> stopping_{false};
  std::atomic<bool> finished_{false};
  Thread thread_;
};

}  // namespace rdmakit::nbd
