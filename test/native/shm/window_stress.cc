// Memory windows over shm: which peers may use them, and that none does after their end.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>

#include "process.h"
#include "shm/memory/protection_domain.h"
#include "shm/queue-pair/queue_pair.h"
#include "windows.h"

namespace shm_window_stress {

using namespace fixture;

constexpr size_t kRegion = 4 << 20;
constexpr int kWindowed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;

void bounds_and_access() {
  Listener listener;
  {
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 8192), far(pair.server->pd, 8192, kWindowed);
    Window window(pair.server->pd);
    near.fill(1);
    const uint32_t key = bind(*pair.server, window, far, 4096, 1024);
    use(pair, near, IBV_WR_RDMA_WRITE, far.address(4096), key, 1024);
    CHECK(std::memcmp(near.data, far.data + 4096, 1024) == 0);
    near.fill(2);
    use(pair, near, IBV_WR_RDMA_READ, far.address(5000), key, 120);
    CHECK(std::memcmp(near.data, far.data + 5000, 120) == 0);
    use(pair, near, IBV_WR_ATOMIC_FETCH_AND_ADD, far.address(4096), key, 8);
  }
  struct Wrong {
    ibv_wr_opcode opcode;
    size_t offset, length;
    unsigned access;
  };
  for (const Wrong& wrong :
       {Wrong{IBV_WR_RDMA_WRITE, 4095, 10, kAll}, Wrong{IBV_WR_RDMA_WRITE, 5110, 11, kAll},
        Wrong{IBV_WR_RDMA_WRITE, 4096, 8, IBV_ACCESS_REMOTE_READ},
        Wrong{IBV_WR_RDMA_READ, 4096, 8, IBV_ACCESS_REMOTE_WRITE},
        Wrong{IBV_WR_ATOMIC_FETCH_AND_ADD, 4096, 8, IBV_ACCESS_REMOTE_WRITE}}) {
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 8192), far(pair.server->pd, 8192, kWindowed);
    Window window(pair.server->pd);
    const uint32_t key = bind(*pair.server, window, far, 4096, 1024, wrong.access);
    use(pair, near, wrong.opcode, far.address(wrong.offset), key, wrong.length, IBV_WC_REM_ACCESS_ERR);
  }
}

// A window is its queue pair's: the domain's other peers may not use it, nor end it.
void scope() {
  Listener listener;
  ibv_pd* pd = provider().alloc_pd(context());
  for (const bool send : {false, true}) {
    Pair pair(listener, {}, {.pd = pd}), other(listener, {}, {.pd = pd});
    Memory near(other.client->pd, 64), far(pd, 64, kWindowed);
    Window window(pd);
    const uint32_t key = bind(*pair.server, window, far, 0, 64);
    if (send) {
      post_receive(*other.server, 9, far.sge(0, 64));
      send_with_invalidate(*other.client, key, near.sge(0, 8));
      other.client->expect(79, IBV_WC_REM_INV_REQ_ERR);
      other.server->expect(9, IBV_WC_LOC_ACCESS_ERR);
    } else {
      use(other, near, IBV_WR_RDMA_WRITE, far.address(), key, 64, IBV_WC_REM_ACCESS_ERR);
    }
    other.server->id.events->expect(CmEvent::Type::disconnected);
    Memory mine(pair.client->pd, 64);
    use(pair, mine, IBV_WR_RDMA_WRITE, far.address(), key, 64);
  }
  {
    Pair pair(listener, {}, {.pd = pd}), other(listener, {}, {.pd = pd});
    Memory far(pd, 64, kWindowed);
    Window window(pd);
    invalidate(*other.server, bind(*pair.server, window, far, 0, 64), IBV_WC_MW_BIND_ERR);
    CHECK(provider().dealloc_pd(pd) == EBUSY);
  }
  CHECK(provider().dealloc_pd(pd) == 0);
}

void ends() {
  Listener listener;
  Pair pair(listener, {}, {});
  Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096, kWindowed);
  Window window(pair.server->pd);
  uint32_t before = 0;
  for (int round = 0; round < 300; round++) {  // all keys of a window, and more
    const uint32_t key = bind(*pair.server, window, far, 0, 4096);
    CHECK(key != before && key >> 8 == window.mw->rkey >> 8);
    before = key;
    near.fill(static_cast<uint64_t>(round));
    if (round % 2 == 0) {
      use(pair, near, IBV_WR_RDMA_WRITE, far.address(), key, 4096);
      CHECK(same(near, far, 4096));
      invalidate(*pair.server, key);
      continue;
    }
    const size_t length = round % 4 == 1 ? 100 : 3000;
    post_receive(*pair.server, 9, far.sge(0, 4096));
    Send write = write_to({far.address(), key}, 0, 5);
    post(*pair.client, write, {near.sge(0, 4096)});
    send_with_invalidate(*pair.client, key, near.sge(0, length));
    pair.client->expect(5);
    CHECK(pair.client->expect(79).opcode == IBV_WC_SEND);
    const ibv_wc wc = pair.server->expect(9);
    CHECK(wc.opcode == IBV_WC_RECV && (wc.wc_flags & IBV_WC_WITH_INV) && wc.invalidated_rkey == key);
    CHECK(wc.byte_len == length && same(near, far, 4096));
  }
  use(pair, near, IBV_WR_RDMA_WRITE, far.address(), before, 64, IBV_WC_REM_ACCESS_ERR);
}

void errors() {
  Listener listener;
  const auto refused = [&](int access, size_t offset, size_t length, unsigned granted, uint32_t wrong) {
    Pair pair(listener, {}, {});
    Memory far(pair.server->pd, 4096, access);
    Window window(pair.server->pd);
    bind(*pair.server, window, far, offset, length, granted, IBV_WC_MW_BIND_ERR, wrong);
    pair.client->id.events->expect(CmEvent::Type::disconnected);
  };
  refused(IBV_ACCESS_LOCAL_WRITE, 0, 64, kAll, 0);
  refused(IBV_ACCESS_MW_BIND, 0, 64, IBV_ACCESS_REMOTE_WRITE, 0);
  refused(kWindowed, 4090, 7, kAll, 0);
  refused(kWindowed, 0, 0, kAll, 0);
  refused(kWindowed, 0, 64, IBV_ACCESS_ZERO_BASED, 0);
  refused(kWindowed, 0, 64, kAll, 0x100);
  refused(kWindowed, 0, 64, kAll, 0x1000000);
  {
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64, kWindowed);
    Window window(pair.server->pd);
    bind(*pair.server, window, far, 0, 64);
    CHECK(provider().dereg_mr(far.mr) == EBUSY);
    CHECK(provider().rereg_mr(far.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0) == EBUSY);
    bind(*pair.server, window, far, 0, 32, kAll, IBV_WC_MW_BIND_ERR);  // it is bound
    CHECK(provider().dereg_mr(far.mr) == EBUSY);
    pair.server->destroy_qp();  // and now it is not
    far.deregister();
  }
  for (const int what : {0, 1, 2, 3}) {  // a region, nothing, a window as a local key, no key
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64, kWindowed | IBV_ACCESS_REMOTE_WRITE);
    Window window(pair.server->pd);
    const uint32_t key = bind(*pair.server, window, far, 0, 64);
    if (what == 2) {
      ibv_sge sge = far.sge(0, 8);
      sge.lkey = key;
      post(*pair.server, {.wr_id = 6}, {sge});
      post_receive(*pair.client, 7, near.sge(0, 64));
      pair.server->expect(6, IBV_WC_LOC_PROT_ERR);
      continue;
    }
    invalidate(*pair.server, what == 0 ? far.mr->rkey : what == 1 ? key ^ 1 : 0, IBV_WC_MW_BIND_ERR);
    window.release();  // ends it
    far.deregister();
  }
  Pair pair(listener, {}, {});
  Memory far(pair.server->pd, 64, kWindowed);
  CHECK(provider().alloc_mw(pair.server->pd, IBV_MW_TYPE_1) == nullptr && errno == EOPNOTSUPP);
  ibv_send_wr request{};
  request.opcode = IBV_WR_BIND_MW;
  CHECK(post_request(*pair.server, request) == EINVAL);
}

// A bind waits behind a SEND that waits for a receive; its window, or its region, is gone when its turn
// comes.
void closed_while_queued() {
  Listener listener;
  for (const int gone : {0, 1, 2}) {  // neither, the window, the region
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 64), far(pair.server->pd, 64, kWindowed);
    Window window(pair.server->pd);
    post(*pair.server, {.wr_id = 6}, {});
    ibv_send_wr request{};
    request.wr_id = 77;
    request.opcode = IBV_WR_BIND_MW;
    request.bind_mw.mw = window.mw;
    request.bind_mw.rkey = ibv_inc_rkey(window.mw->rkey);
    request.bind_mw.bind_info = {far.mr, far.address(), 64, kAll};
    CHECK(post_request(*pair.server, request) == 0);
    if (gone == 1) window.release();
    if (gone == 2) far.deregister();
    post_receive(*pair.client, 7, near.sge(0, 64));
    pair.server->expect(6);
    pair.server->expect(77, gone == 0 ? IBV_WC_SUCCESS : IBV_WC_MW_BIND_ERR);
  }
}

// The server of a pair, and its area as its peer has it: this test is the peer that is at the memory.
struct Watched {
  std::unique_ptr<End> client, server;
  rdmakit::UniqueFd fd;
  shm::AreaHeader* area = nullptr;
  std::thread letting_go;

  explicit Watched(Listener& listener) : client(resolve(listener.path, {})) {
    connect(*client);
    server = std::make_unique<End>(
        Id(std::move(listener.events->expect(CmEvent::Type::connect_request).request)), Options{});
    fd = rdmakit::UniqueFd(fcntl(static_cast<shm::QueuePair*>(server->qp)->area_fd(), F_DUPFD_CLOEXEC, 0));
    void* at = mmap(nullptr, sizeof *area, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    CHECK(at != MAP_FAILED);
    area = static_cast<shm::AreaHeader*>(at);
    accept(*server);
    client->id.events->expect(CmEvent::Type::established);
    server->id.events->expect(CmEvent::Type::established);
  }
  ~Watched() {
    if (letting_go.joinable()) letting_go.join();
    munmap(area, sizeof *area);
  }
  // From now on, and for a moment.
  void touch(uint32_t key) {
    if (letting_go.joinable()) letting_go.join();
    area->hazard.store(key);
    letting_go = std::thread([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      area->hazard.store(0);
    });
  }
  bool touched() const { return area->hazard.load() != 0; }
};

// The memory of a window that is no longer bound is the application's only when its user has let go.
void user_after_the_end() {
  Listener listener;
  for (const bool region : {false, true}) {
    Watched pair(listener);
    Memory far(pair.server->pd, 64, kWindowed);
    Window window(pair.server->pd);
    const uint32_t key = bind(*pair.server, window, far, 0, 64);
    pair.touch(key);
    ibv_send_wr request{};
    request.wr_id = 78;
    request.opcode = IBV_WR_LOCAL_INV;
    request.invalidate_rkey = key;
    CHECK(post_request(*pair.server, request) == 0);  // it waits in the queue
    region ? far.deregister() : window.release();
    CHECK(!pair.touched());
    pair.server->expect(78);
  }
  Watched pair(listener);
  Memory near(pair.client->pd, 64), far(pair.server->pd, 64, kWindowed);
  Window window(pair.server->pd);
  const uint32_t key = bind(*pair.server, window, far, 0, 64);
  post_receive(*pair.server, 9, far.sge(0, 64));
  pair.touch(key);
  send_with_invalidate(*pair.client, key, near.sge(0, 8));
  pair.server->expect(9, IBV_WC_WR_FLUSH_ERR);
  CHECK(!pair.touched());
  CHECK(pair.server->id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
}

// --- In another process, which writes as fast as it can.

void write_child(const std::string& path) {
  Side side = connect_side(path, {}, kRegion);
  post_receive(*side.end, 1, side.near->sge(0, sizeof(Remote)));
  post(*side.end, {.wr_id = 2}, {});  // ready
  side.end->expect(2);
  side.end->expect(1);
  Remote window;
  std::memcpy(&window, side.near->data, sizeof window);
  for (uint64_t i = 0;; i++) {
    const int error = try_post(*side.end, write_to(window, 0, 3), {side.near->sge(0, kRegion / 2)});
    CHECK(error == 0 || error == ENOMEM);
    ibv_wc wc;
    while (ibv_poll_cq(side.end->cq, 1, &wc) == 1) {
      if (wc.status == IBV_WC_SUCCESS) continue;
      CHECK(wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_WR_FLUSH_ERR);
      return;
    }
  }
}

struct Victim {
  Listener listener;
  Child child{"write", listener.path};
  Side side = accept_side(listener, {.channel = true}, kRegion, Kind::shared,
                          [](Side& made) { post_receive(*made.end, 1, made.near->sge(0, 64)); });
  Memory far{side.end->pd, kRegion, kWindowed};
  Window window{side.end->pd};
  uint32_t key = 0;

  Victim() {
    side.end->expect(1);
    key = bind(*side.end, window, far, 0, kRegion);
    const Remote told{far.address(), key};
    std::memcpy(side.near->data, &told, sizeof told);
    post(*side.end, {.wr_id = 4}, {side.near->sge(0, sizeof told)});
    side.end->expect(4);
    const volatile uint8_t* end = far.data + kRegion / 2 - 1;
    far.data[kRegion / 2 - 1] = 0xbb;
    await([&] { return *end != 0xbb; });  // it has begun
  }
};

// The peer ends when its WRITE fails, and its goodbye may be read before the failure is noticed here.
void ended_by_error(End& end) {
  const int status = end.id.events->expect(CmEvent::Type::disconnected).status;
  CHECK(status == ECONNABORTED || status == 0);
}

void invalidate_under_fire() {
  int flushed = 0;
  const int rounds = std::max(3, effort(12));
  for (int round = 0; round < rounds; round++) {
    Victim victim;
    bool ended = false;
    std::this_thread::sleep_for(std::chrono::microseconds(50 * round));
    if (round % 3 == 2) {
      victim.window.release();
    } else {
      ibv_send_wr request{};
      request.opcode = IBV_WR_LOCAL_INV;
      request.invalidate_rkey = victim.key;
      CHECK(post_request(*victim.side.end, request) == 0);
      const ibv_wc_status status = victim.side.end->completion().status;
      // The error of the peer's next WRITE may come first; then the end of the connection is the promise.
      if (status != IBV_WC_SUCCESS) {
        CHECK(status == IBV_WC_WR_FLUSH_ERR);
        ended_by_error(*victim.side.end);
      }
      flushed += status != IBV_WC_SUCCESS;
      ended = status != IBV_WC_SUCCESS;
    }
    std::memset(victim.far.data, 0xaa, kRegion);
    std::this_thread::sleep_for(std::chrono::microseconds(500));  // for what must not come
    CHECK(is_filled(victim.far.data, kRegion, 0xaa));
    if (!ended) ended_by_error(*victim.side.end);
  }
  std::printf("  %d of %d ended with the connection\n", flushed, rounds);
}

// A user that is stopped in the middle of a copy is not waited for without end, and one that is killed not at
// all.
void stopped_user(bool killed) {
  Victim victim;
  victim.child.stop();
  ibv_send_wr request{};
  request.opcode = IBV_WR_LOCAL_INV;
  request.invalidate_rkey = victim.key;
  request.wr_id = 8;
  // By time: only that shows whether a call waited for the other process, which is given up after 5 s.
  const auto begin = Clock::now();
  CHECK(post_request(*victim.side.end, request) == 0);
  CHECK(Clock::now() - begin < std::chrono::seconds(4));  // no call waits in there
  if (killed) victim.child.signal(SIGKILL);
  const ibv_wc wc = victim.side.end->completion();
  CHECK(wc.wr_id == 8 && (!killed || Clock::now() - begin < std::chrono::seconds(4)));
  // Bound once more, for another queue pair.
  const auto rebound = [&] {
    auto* domain = static_cast<shm::ProtectionDomain*>(victim.side.end->pd);
    const uint32_t key = ibv_inc_rkey(victim.window.mw->rkey);
    return domain->bind(victim.window.mw->rkey, key, victim.far.mr->rkey, victim.far.address(), kRegion, kAll,
                        UINT32_MAX, nullptr);
  };
  if (wc.status != IBV_WC_SUCCESS && !killed) {
    CHECK(wc.status == IBV_WC_LOC_QP_OP_ERR && wc.vendor_err == ETIMEDOUT);
    CHECK(!rebound());
  }
  victim.child.signal(SIGKILL);
  victim.child.signal(SIGCONT);
  victim.side.end->id.events->expect(CmEvent::Type::disconnected);
  CHECK(WIFSIGNALED(victim.child.wait()));
  await(rebound);
}

STRESS(shm_window) {
  if (count == 3) {
    write_child(arguments[2]);
    return 0;
  }
  side_by_side({
      {"a stopped user", [] { stopped_user(false); }},
      {"a killed user", [] { stopped_user(true); }},
      {"bounds and access", bounds_and_access},
      {"scope", scope},
      {"ends", ends},
      {"errors", errors},
      {"closed while queued", closed_while_queued},
      {"user after the end", user_after_the_end},
      {"invalidate under fire", invalidate_under_fire},
  });
  std::puts("ok");
  return 0;
}

}  // namespace shm_window_stress
