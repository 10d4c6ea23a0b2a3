// The iwarp provider: WRITEs of bytes that are lent, with markers and without.
#include <sys/wait.h>
#include <unistd.h>

#include "../lent.h"
#include "traffic.h"

namespace iwarp_lent_stress {

using namespace fixture;

void all_sent(Progress progress) {
  Listener listener;
  Pair pair(listener, {.progress = progress}, {.progress = progress});
  constexpr size_t kFits = 4096;  // into any socket's buffer
  lent_and_sent<Memory>(*pair.client, *pair.server, kFits,
                        [](const Memory& far, size_t at, uint64_t id) { return write_to(far, at, id); });
}

// The server does not read: two sockets' buffers fill, and one WRITE is cut in two.
void sockets_full(Progress progress) {
  constexpr uint32_t kWrites = 100;  // more than the buffers may hold (tcp(7), tcp_rmem and tcp_wmem)
  Listener listener;
  Pair pair(listener, {.progress = progress}, {});
  lent_and_waiting<Memory>(
      *pair.client, *pair.server, IBV_WR_RDMA_WRITE_WITH_IMM, kWrites,
      [](const Memory& far, size_t at, uint64_t id) { return write_to(far, at, id); },
      [&](const Memory& far) {
        // A WRITE by itself is complete when a socket has its bytes; these arrive before what a receive hears
        // of.
        for (uint32_t i = 0; i < kWrites; i++) post_receive(*pair.server, i, far.sge(0, 1));
        return size_t{kWrites};
      });
}

void out_of_bounds() {
  Listener listener;
  Pair pair(listener, {}, {});
  lent_out_of_bounds<Memory>(*pair.client, *pair.server,
                             [](const Memory& far, size_t at, uint64_t id) { return write_to(far, at, id); });
}

int run_all() {
  for (const Progress progress : {Progress::manual, Progress::automatic}) {
    timed("all sent", [=] { all_sent(progress); });
    timed("sockets full", [=] { sockets_full(progress); });
  }
  timed("out of bounds", out_of_bounds);
  std::puts("ok");
  return 0;
}

STRESS(iwarp_lent) {
  if (count > 1) return run_all();
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    setenv("RDMAKIT_IWARP_MARKERS", "1", 1);
    execl("/proc/self/exe", "/proc/self/exe", stress::running(), "with-markers", nullptr);
    std::_Exit(127);
  }
  const int result = run_all();
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return result;
}

}  // namespace iwarp_lent_stress
