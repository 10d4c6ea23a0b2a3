// Whether a host is gone, from what TCP knows at each look: pure, so nothing here waits.
#include "../stress.h"
#include "iwarp/setup/host_watch.h"

namespace iwarp_host_watch_stress {

using namespace std::chrono_literals;
using rdmakit::iwarp::HostWatch;

constexpr auto kLook = 2000ms;

tcp_info known(uint32_t unacknowledged, uint32_t probes, std::chrono::milliseconds heard_ago) {
  tcp_info info{};
  info.tcpi_unacked = unacknowledged;
  info.tcpi_probes = static_cast<uint8_t>(probes);
  info.tcpi_last_ack_recv = static_cast<uint32_t>(heard_ago.count());
  return info;
}

// Looks until it is gone, at most `most` times.
int looks_until_gone(HostWatch& watch, int most, uint32_t unacknowledged, uint32_t probes) {
  for (int i = 1; i <= most; i++)
    if (watch.gone(known(unacknowledged, probes, 9s + i * kLook), kLook)) return i;
  return 0;
}

void silent_with_something_owed() {
  HostWatch data(20s);
  CHECK(data.interval() == kLook);
  CHECK(looks_until_gone(data, 100, 3, 0) == 10);
  HostWatch closed_window(20s);
  CHECK(looks_until_gone(closed_window, 100, 0, 1) == 10);
}

void silent_with_nothing_owed() {
  HostWatch watch(20s);
  CHECK(looks_until_gone(watch, 1000, 0, 0) == 0);
}

// A single acknowledgement, of whatever, and it is there.
void heard_in_between() {
  HostWatch watch(20s);
  for (int round = 0; round < 5; round++) {
    CHECK(looks_until_gone(watch, 9, 3, 0) == 0);
    CHECK(!watch.gone(known(3, 0, kLook - 1ms), kLook));
  }
  CHECK(looks_until_gone(watch, 100, 3, 0) == 10);
}

// This process stood still, or this host did: what has come meanwhile has not been looked at yet.
void a_look_that_comes_late() {
  HostWatch watch(20s);
  CHECK(!watch.gone(known(3, 0, 1h), 1h - 10s));
  CHECK(looks_until_gone(watch, 100, 3, 0) == 9);
}

STRESS(iwarp_host_watch) {
  silent_with_something_owed();
  silent_with_nothing_owed();
  heard_in_between();
  a_look_that_comes_late();
  return 0;
}

}  // namespace iwarp_host_watch_stress
