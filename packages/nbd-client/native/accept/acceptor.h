// Accepts clients and negotiates with many of them at once on one thread, so that only clients that have
// finished the handshake occupy a lane. The engine's events are also delivered on this thread.
//
// A client that asks for transmission (GO, EXPORT_NAME) while no lane is free waits for at most
// `lane_wait`; then GO is answered NBD_REP_ERR_POLICY with a text, which every client shows to its user
// (closing the connection would look like a crash), and EXPORT_NAME, which has no error reply, is
// closed. The lane is reserved before GO is answered, so every client that enters transmission has one.
//
// At most `max_handshakes` clients are in their handshake; dispensable() decides whose place a new one gets,
// or that it is refused.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "accept/listener.h"
#include "front/nbd_lane.h"
#include "lane/event.h"
#include "protocol/handshake.h"
#include "rdmakit/thread.h"
#include "tls/pump.h"

namespace rdmakit::nbd {

struct AcceptorOptions {
  uint64_t handshake_timeout_ns = 10'000'000'000;  // for the whole of it
  uint64_t lane_wait_ns = 2'000'000'000;
  uint32_t max_handshakes = 1024;
  uint64_t idle_ns = 1'000'000'000;  // a client that has negotiated and is then silent for that long may make
                                     // room
  uint64_t stall_timeout_ns = 30'000'000'000;  // see Terms::stall
  uint64_t parting_ns = 10'000'000'000;        // in which a client over TLS must take what its lane has left
};

class Acceptor {
 public:
  // The acceptor's view of the engine; all called on its thread.
  class Host {
   public:
    virtual NbdLane* reserve_lane() = 0;
    // Transmission flags that do not hold just now.
    virtual uint16_t withheld_flags() = 0;
    virtual void report(const Event& event) = 0;
    // After each wake().
    virtual void woken() = 0;

   protected:
    ~Host() = default;
  };

  // `credentials` may be missing only when the offer has no TLS.
  Acceptor(Host& host, Offer offer, const AcceptorOptions& options,
           std::unique_ptr<const TlsCredentials> credentials);
  ~Acceptor();
  int start();
  // Any thread.
  void wake();
  void add(Listener&& listener);
  // Closes listeners and handshakes; the thread continues for wake().
  void stop_accepting();
  void join();
  // After join(), when no thread calls wake() at the same time; it does nothing from then on.
  void close_descriptors();

  uint64_t handshakes() const { return accepted_.load(std::memory_order_relaxed); }
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  struct Session;

  void run();
  void take_orders();
  void accept_from(const Listener& listener, uint64_t now);
  Session* dispensable(uint64_t now) const;
  bool make_room(uint64_t now);
  bool evict(uint64_t now);
  void refuse(const std::string& peer, const char* reason);
  void report(Event::Type type, const std::string& subject, const char* reason);
  void drive(Session& session, uint64_t now);
  bool send_output(Session& session);
  bool converse(Session& session, uint64_t now);
  std::unique_ptr<NbdClient> client_of(UniqueFd socket, const Session& session) const;
  TlsSession::Step start_tls(Session& session);
  void hand_over(Session& session);
  void watch(Session& session, uint32_t events);
  void unwatch(Session& session);
  void expire(uint64_t now);
  int timeout_ms(uint64_t now) const;
  void watch_listeners(uint32_t events);
  void sweep();

  Host& host_;
  Offer offer_;  // its withheld flags follow withheld_flags()
  const AcceptorOptions options_;
  const std::unique_ptr<const TlsCredentials> credentials_;
  UniqueFd wake_;
  UniqueFd epoll_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::unique_ptr<Session>> sessions_;  // oldest first
  std::vector<std::unique_ptr<TlsPump>> pumps_;     // of connections that lanes serve
  uint64_t paused_until_ = 0;                       // accepting, after descriptors ran out
  uint64_t last_report_ = 0;
  std::atomic<uint64_t> accepted_{0};
  std::atomic<uint64_t> refused_{0};

  std::mutex orders_;
  std::vector<std::unique_ptr<Listener>> new_listeners_;
  bool stop_accepting_ = false;
  bool end_ = false;
  Thread thread_;
};

}  // namespace rdmakit::nbd
