// Whether the host of a peer is gone, while there is something that its TCP has not acknowledged. The
// kernel's keepalive probes only while everything is acknowledged (keep_alive); lost data are retransmitted
// for a quarter of an hour (tcp_retries2 in ip-sysctl.rst). TCP_USER_TIMEOUT would also end the connection of
// a peer that is stopped or slow and whose window is closed, although its host still answers.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <chrono>

namespace rdmakit::iwarp {

// After how much silence a host is gone: kHostSilenceSeconds, or RDMAKIT_IWARP_SILENCE, 2 to 3600 seconds.
std::chrono::seconds host_silence();

// Decides only by its arguments.
class HostWatch {
 public:
  using Milliseconds = std::chrono::milliseconds;

  explicit HostWatch(Milliseconds silence) : silence_(silence) {}

  // How far apart the looks are.
  Milliseconds interval() const { return silence_ / 10; }

  // Called with TCP's state at each check, `passed` after the previous one. True: the host has been silent
  // for the limit while it owed an acknowledgement. A late check counts as one in time: then this process or
  // this host did not run, and not the peer.
  bool gone(const tcp_info& now, Milliseconds passed) {
    // Probes are what TCP sends to a closed window, and counts until one is answered.
    const bool owes = now.tcpi_unacked > 0 || now.tcpi_probes > 0;
    const bool heard = Milliseconds(now.tcpi_last_ack_recv) < passed;
    silent_ = owes && !heard ? silent_ + interval() : Milliseconds(0);
    return silent_ >= silence_;
  }

 private:
  const Milliseconds silence_;
  Milliseconds silent_{0};
};

}  // namespace rdmakit::iwarp
