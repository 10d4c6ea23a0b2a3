// The shm provider when the kernel has no memory or descriptor for a call: it is made again.
#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "traffic.h"

namespace {
// How many of the next calls fail, and how many have.
struct Starved {
  std::atomic<int> left{0}, failed{0};

  bool now(int error) {
    if (left.load() <= 0 || left.fetch_sub(1) <= 0) return false;
    failed++;
    errno = error;
    return true;
  }
  void expect(int times) const {
    fixture::await([&] { return failed == times; });
  }
};
Starved sends, watches, accepts;

template <typename Function>
Function* libc(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
}  // namespace

// In place of the library's.
extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static auto* const real = libc(&sendmsg, "sendmsg");
  return sends.now(ENOMEM) ? -1 : real(socket, message, flags);
}
extern "C" int epoll_ctl(int set, int operation, int fd, epoll_event* event) noexcept {
  static auto* const real = libc(&epoll_ctl, "epoll_ctl");
  return operation == EPOLL_CTL_ADD && watches.now(ENOMEM) ? -1 : real(set, operation, fd, event);
}
extern "C" int accept4(int socket, sockaddr* address, socklen_t* length, int flags) {
  static auto* const real = libc(&accept4, "accept4");
  return accepts.now(EMFILE) ? -1 : real(socket, address, length, flags);
}

using namespace fixture;

namespace {

// An announcement that the kernel has no memory for is sent later, and the requests that wait for it are
// done.
void announcements() {
  Listener listener;
  Pair pair(listener, {}, {});
  Memory near(pair.client->pd, 64);
  near.fill(1);
  sends.left = 2;
  Memory far(pair.server->pd, 64);
  post(*pair.client, write_to(remote(far), 0, 1), {near.sge(0, 64)});
  sends.expect(2);
  pair.client->expect(1);
  CHECK(same(near, far, 64));
}

// A listener that has paused for want of descriptors begins again, however often it takes.
void listeners() {
  Listener listener;
  accepts.left = 1;
  auto first = resolve(listener.path, {});
  connect(*first);
  accepts.expect(1);
  watches.left = 2;
  watches.expect(2);
  CHECK(listener.events->expect(CmEvent::Type::accept_stalled).status == EMFILE);
  listener.events->expect(CmEvent::Type::connect_request);
}

}  // namespace

int main() {
  timed("announcements", announcements);
  timed("listeners", listeners);
  std::puts("ok");
}
