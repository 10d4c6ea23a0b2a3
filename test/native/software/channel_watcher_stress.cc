// The thread that waits on completion channels, with channels whose device is gone: told once, and not waited
// on any more, while others go on.
#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>

#include "../stress.h"
#include "base/unique_fd.h"
#include "provider/channel_watcher.h"

namespace software_channel_watcher_stress {

using namespace fixture;
using namespace rdmakit;

// Each write to its descriptor is an event, until it fails.
struct Channel : ibv_comp_channel {
  Channel() : ibv_comp_channel{} { fd = event.get(); }
  void ring() {
    const uint64_t one = 1;
    CHECK(write(event.get(), &one, sizeof one) == sizeof one);
  }
  UniqueFd event{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)};
  ibv_cq cq{};
  std::atomic<int> error{0};
  std::atomic<int> looks{0};
  std::atomic<int> acknowledged{0};
  // What the watcher tells.
  std::atomic<int> events{0};
  std::atomic<int> failures{0};
  std::atomic<int> reason{0};
};

int get_event(ibv_comp_channel* channel, ibv_cq** cq, void** context) {
  auto& own = *static_cast<Channel*>(channel);
  own.looks++;
  if (const int error = own.error; error != 0) return error;
  uint64_t value;
  if (read(own.fd, &value, sizeof value) != sizeof value) return EAGAIN;
  *cq = &own.cq;
  *context = nullptr;
  own.cq.cq_context = &own;
  return 0;
}

constexpr DataPathVerbs kVerbs{
    get_event,
    [](ibv_cq* cq, unsigned int count) {
      static_cast<Channel*>(cq->cq_context)->acknowledged += static_cast<int>(count);
    },
    nullptr,
};

uint64_t watch(Channel& channel) {
  const uint64_t id = watch_channel(&channel, &kVerbs, [&channel](ibv_cq* cq, int error) {
    CHECK((cq == &channel.cq) == (error == 0));
    (error == 0 ? channel.events : channel.failures)++;
    if (error != 0) channel.reason = error;
  });
  CHECK(id != 0);
  return id;
}

void a_device_is_gone() {
  Channel lost;
  Channel other;
  const uint64_t first = watch(lost);
  const uint64_t second = watch(other);
  lost.ring();
  await([&] { return lost.events == 1 && lost.acknowledged == 1; });
  await([&] { return lost.looks == 2; });  // it found no second one
  lost.error = EIO;
  lost.ring();
  await([&] { return lost.failures == 1; });
  CHECK(lost.reason == EIO);
  // The thread has been round some times, and its descriptor is still readable.
  for (int i = 1; i <= 10; i++) {
    other.ring();
    await([&] { return other.events == i; });
  }
  unwatch_channel(first);
  unwatch_channel(second);
  CHECK(lost.looks == 3 && lost.failures == 1 && other.failures == 0);
}

// What is no event is not the end: it may have been taken by another, or a signal came.
void nothing_there() {
  Channel channel;
  const uint64_t id = watch(channel);
  for (const int error : {EAGAIN, EINTR}) {
    channel.error = error;
    const int before = channel.looks;
    channel.ring();
    await([&] { return channel.looks > before; });
    const int events = channel.events;
    channel.error = 0;
    await([&] { return channel.events == events + 1; });
  }
  unwatch_channel(id);
  CHECK(channel.failures == 0);
}

STRESS(software_channel_watcher) {
  timed("a device is gone", a_device_is_gone);
  timed("nothing there", nothing_there);
  return 0;
}

}  // namespace software_channel_watcher_stress
