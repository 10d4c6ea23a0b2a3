// Mode `guarded`: what the application asks for while the guardian is about to sleep wakes it.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "held_poller.h"

namespace {

std::atomic<bool> asks{false};
std::function<void()> ask;
std::thread::id application;

}  // namespace

// In place of the library's. A second look without a wait between the two is that before a sleep without end.
extern "C" int poll(pollfd* descriptors, nfds_t count, int milliseconds) {
  thread_local bool looked = false;
  const bool looks = milliseconds == 0;
  if (looks && looked && std::this_thread::get_id() != application && asks.exchange(false)) ask();
  looked = looks;
  return static_cast<int>(syscall(SYS_poll, descriptors, count, milliseconds));
}

using namespace ring_test;

namespace {

void about_to_sleep() {
  Device device;
  Poller poller(device, ring::Mode::guarded);
  const uint32_t number = poller.connect();
  fixture::await([&] { return !poller->look_before_sleep().again; });
  poller.take();
  ask = [&] { poller->detach(number); };
  asks = true;
  // On a slow machine it may sleep already: each second it is sent to sleep once more.
  bool detached = false;
  fixture::await([&, turns = 0]() mutable {
    if (asks && ++turns % 5'000 == 0) poller->look_before_sleep();
    detached |= has(poller.take(), ring::Event::detached);
    return !asks && detached;
  });
  poller->stop();
}

}  // namespace

int main() {
  application = std::this_thread::get_id();
  for (int round = 0; round < 3; ++round) about_to_sleep();
  return 0;
}
