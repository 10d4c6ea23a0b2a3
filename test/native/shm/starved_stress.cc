// The shm provider when the kernel has no memory for a call: it is made again.
#include <dlfcn.h>
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
Starved sends;

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

}  // namespace

int main() {
  timed("announcements", announcements);
  std::puts("ok");
}
