// The shm provider: WRITEs of bytes that are lent.
#include "../lent.h"
#include "traffic.h"

namespace shm_lent_stress {

using namespace fixture;

Send to_far(const Memory& far, size_t at, uint64_t id) { return write_to(remote(far), at, id); }

void all_sent() {
  Listener listener;
  Pair pair(listener, {}, {});
  lent_and_sent<Memory>(*pair.client, *pair.server, kLargest, to_far);
}

// The first waits for a receive, and the others for it.
void no_receive() {
  constexpr uint32_t kWrites = 10;
  Listener listener;
  Pair pair(listener, {}, {});
  lent_and_waiting<Memory>(*pair.client, *pair.server, IBV_WR_RDMA_WRITE_WITH_IMM, kWrites, to_far,
                           [&](const Memory& far) {
                             for (uint64_t i = 0; i < kWrites; ++i)
                               post_receive(*pair.server, i, far.sge(0, 1));
                             return size_t{kWrites};
                           });
}

void out_of_bounds() {
  Listener listener;
  Pair pair(listener, {}, {});
  lent_out_of_bounds<Memory>(*pair.client, *pair.server, to_far);
}

STRESS(shm_lent) {
  timed("all sent", all_sent);
  timed("no receive", no_receive);
  timed("out of bounds", out_of_bounds);
  std::puts("ok");
  return 0;
}

}  // namespace shm_lent_stress
