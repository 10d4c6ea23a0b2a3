// Memory windows over iwarp: bound, used, ended by either side, and what is refused.
#include "traffic.h"

namespace iwarp_window_stress {

using namespace fixture;

constexpr int kRegionAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
constexpr int kWindowAccess = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

struct Window {
  ibv_mw* mw;
  explicit Window(ibv_pd* pd) : mw(provider().alloc_mw(pd, IBV_MW_TYPE_2)) { CHECK(mw != nullptr); }
  Window(const Window&) = delete;
  ~Window() { CHECK(provider().dealloc_mw(mw) == 0); }
};

int post_bind(End& end, uint64_t wr_id, Window& window, const Memory& memory, size_t offset, size_t length,
              int access = kWindowAccess, int key = -1) {
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = wr_id;
  request.opcode = IBV_WR_BIND_MW;
  request.send_flags = IBV_SEND_SIGNALED;
  request.bind_mw.mw = window.mw;
  request.bind_mw.rkey =
      key < 0 ? ibv_inc_rkey(window.mw->rkey) : (window.mw->rkey & ~0xffu) | static_cast<uint32_t>(key);
  request.bind_mw.bind_info = {memory.mr, memory.address(offset), length, static_cast<unsigned>(access)};
  return ibv_post_send(end.qp, &request, &bad);
}
int post_invalidate(End& end, uint64_t wr_id, ibv_wr_opcode opcode, uint32_t key,
                    std::vector<ibv_sge> sges = {}, int flags = IBV_SEND_SIGNALED) {
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = wr_id;
  request.opcode = opcode;
  request.send_flags = static_cast<unsigned>(flags);
  request.invalidate_rkey = key;
  request.sg_list = sges.data();
  request.num_sge = static_cast<int>(sges.size());
  return ibv_post_send(end.qp, &request, &bad);
}
Send through(ibv_wr_opcode opcode, uint64_t wr_id, const Memory& memory, size_t offset, uint32_t key) {
  return {.wr_id = wr_id, .opcode = opcode, .remote_address = memory.address(offset), .remote_key = key};
}

// Server binds, client writes, reads and adds through the window; it ends by LOCAL_INV, is rebound under
// another key and ends by the client's SEND_WITH_INV.
void life(Progress progress) {
  Listener listener;
  Pair pair(listener, {.progress = progress}, {.progress = progress});
  End& client = *pair.client;
  End& server = *pair.server;
  Memory near(client.pd, 256), far(server.pd, 256, kRegionAccess);
  Window window(server.pd);
  const uint32_t first = window.mw->rkey;
  CHECK(post_bind(server, 1, window, far, 64, 128, kWindowAccess | IBV_ACCESS_REMOTE_ATOMIC, 0x5a) == 0);
  Completions done = pump(client, 0, server, 1);
  CHECK(done.server[0].wr_id == 1 && done.server[0].status == IBV_WC_SUCCESS);
  CHECK(done.server[0].opcode == IBV_WC_BIND_MW);
  const uint32_t key = window.mw->rkey;
  CHECK((key & 0xff) == 0x5a && key >> 8 == first >> 8);
  CHECK(provider().dereg_mr(far.mr) == EBUSY);

  near.fill(1);
  post(client, through(IBV_WR_RDMA_WRITE, 2, far, 64, key), {near.sge(0, 128)});
  post(client, through(IBV_WR_RDMA_READ, 3, far, 72, key), {near.sge(128, 100)});
  done = pump(client, 2, server, 0);
  CHECK(done.client[1].status == IBV_WC_SUCCESS);
  CHECK(std::memcmp(&far.bytes[64], &near.bytes[0], 128) == 0);
  CHECK(std::memcmp(&near.bytes[8], &near.bytes[128], 100) == 0);
  ibv_send_wr add{}, *bad = nullptr;
  ibv_sge sum = near.sge(248, 8);
  add.wr_id = 4;
  add.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  add.send_flags = IBV_SEND_SIGNALED;
  add.sg_list = &sum;
  add.num_sge = 1;
  add.wr.atomic.remote_addr = far.address(64);
  add.wr.atomic.rkey = key;
  add.wr.atomic.compare_add = 1;
  CHECK(ibv_post_send(client.qp, &add, &bad) == 0);
  CHECK(pump(client, 1, server, 0).client[0].status == IBV_WC_SUCCESS);

  CHECK(post_invalidate(server, 5, IBV_WR_LOCAL_INV, key) == 0);
  done = pump(client, 0, server, 1);
  CHECK(done.server[0].status == IBV_WC_SUCCESS && done.server[0].opcode == IBV_WC_LOCAL_INV);
  CHECK(post_bind(server, 6, window, far, 0, 64) == 0);
  pump(client, 0, server, 1);
  CHECK(window.mw->rkey == ibv_inc_rkey(key));

  // The peer ends it together with its message, in each form of SEND.
  for (const int flags : {0, int{IBV_SEND_SOLICITED}, int{IBV_SEND_INLINE}}) {
    post(client, through(IBV_WR_RDMA_WRITE, 7, far, 0, window.mw->rkey), {near.sge(0, 64)});
    post_receive(server, 8, {0, 0, 0});
    CHECK(post_invalidate(client, 9, IBV_WR_SEND_WITH_INV, window.mw->rkey, {}, IBV_SEND_SIGNALED | flags) ==
          0);
    done = pump(client, 2, server, 1);
    CHECK(done.client[1].status == IBV_WC_SUCCESS && done.client[1].opcode == IBV_WC_SEND);
    CHECK(done.server[0].status == IBV_WC_SUCCESS && done.server[0].wc_flags == IBV_WC_WITH_INV);
    CHECK(done.server[0].invalidated_rkey == window.mw->rkey && done.server[0].opcode == IBV_WC_RECV);
    CHECK(std::memcmp(&far.bytes[0], &near.bytes[0], 64) == 0);
    CHECK(post_bind(server, 10, window, far, 0, 64) == 0);
    CHECK(pump(client, 0, server, 1).server[0].status == IBV_WC_SUCCESS);
  }
  // Of many segments: it ends with the last.
  Memory large(client.pd, 1 << 20), larger(server.pd, 1 << 20);
  large.fill(3);
  post_receive(server, 11, larger.sge(0, 1 << 20));
  CHECK(post_invalidate(client, 12, IBV_WR_SEND_WITH_INV, window.mw->rkey, {large.sge(0, 1 << 20)}) == 0);
  done = pump(client, 1, server, 1);
  CHECK(done.server[0].wc_flags == IBV_WC_WITH_INV && done.server[0].byte_len == 1 << 20);
  CHECK(large.bytes == larger.bytes);
  CHECK(provider().dereg_mr(std::exchange(far.mr, nullptr)) == 0);  // nothing is bound to it any more
  CHECK(provider().dealloc_pd(server.pd) == EBUSY);
}

// Whatever the peer does beyond the window ends the connection.
void bounds_and_rights(Progress progress) {
  enum class Fault { before, behind, access, old_key, other_key, ended, no_local_key };
  for (const Fault fault : {Fault::before, Fault::behind, Fault::access, Fault::old_key, Fault::other_key,
                            Fault::ended, Fault::no_local_key}) {
    Listener listener;
    Pair pair(listener, {.progress = progress}, {.progress = progress});
    End& client = *pair.client;
    End& server = *pair.server;
    Memory near(client.pd, 256), far(server.pd, 256, kRegionAccess | kWindowAccess);
    Window window(server.pd);
    CHECK(post_bind(server, 1, window, far, 64, 128, IBV_ACCESS_REMOTE_READ) == 0);
    pump(client, 0, server, 1);
    Send send = through(IBV_WR_RDMA_READ, 2, far, 64, window.mw->rkey);
    if (fault == Fault::before) send.remote_address -= 1;
    if (fault == Fault::behind) send.remote_address += 65;
    if (fault == Fault::access) send.opcode = IBV_WR_RDMA_WRITE;
    if (fault == Fault::old_key)
      send.remote_key = (send.remote_key & ~0xffu) | ((send.remote_key - 1) & 0xff);
    if (fault == Fault::other_key) send.remote_key ^= 0x01000000;
    if (fault == Fault::ended) {
      CHECK(post_invalidate(server, 3, IBV_WR_LOCAL_INV, window.mw->rkey) == 0);
      pump(client, 0, server, 1);
    }
    if (fault == Fault::no_local_key) {  // its own side may not use it as an lkey
      post(server, {.wr_id = 4}, {{far.address(64), 8, window.mw->rkey}});
      CHECK(pump(client, 0, server, 1).server[0].status == IBV_WC_LOC_PROT_ERR);
      continue;
    }
    if (fault == Fault::access) {
      Send read = read_from(far, 0, 2);
      send.flags = 0;
      post_two(client, send, read, near.sge(0, 64));
    } else {
      post(client, send, {near.sge(0, 64)});
    }
    const Completions done = pump(client, 1, server, 0);
    CHECK(done.client[0].wr_id == 2 && done.client[0].status == IBV_WC_REM_ACCESS_ERR);
    CHECK(client.id.events->expect(CmEvent::Type::disconnected).status == ECONNABORTED);
  }
}

// A window is its queue pair's alone (type 2B): another of the same domain cannot use or end it.
void other_queue_pair() {
  Listener listener;
  Pair one(listener, {}, {});
  Pair other(listener, {}, {});
  Memory near(other.client->pd, 64), far(one.server->pd, 256, kRegionAccess);
  Window window(one.server->pd);
  CHECK(post_bind(*one.server, 1, window, far, 0, 128) == 0);
  pump(*one.client, 0, *one.server, 1);
  CHECK(post_invalidate(*other.server, 2, IBV_WR_LOCAL_INV, window.mw->rkey) == 0);
  CHECK(pump(*other.client, 0, *other.server, 1).server[0].status == IBV_WC_MW_BIND_ERR);
  Pair third(listener, {}, {});
  Memory there(third.client->pd, 64);
  post(*third.client, through(IBV_WR_RDMA_READ, 3, far, 0, window.mw->rkey), {there.sge(0, 8)});
  CHECK(pump(*third.client, 1, *third.server, 0).client[0].status == IBV_WC_REM_ACCESS_ERR);
}

void bad_bindings() {
  enum class Fault { bound_already, no_bind_right, no_write_right, beyond, empty, other_domain };
  for (const Fault fault : {Fault::bound_already, Fault::no_bind_right, Fault::no_write_right, Fault::beyond,
                            Fault::empty, Fault::other_domain}) {
    Listener listener;
    Pair pair(listener, {}, {});
    End& end = *pair.server;
    Memory plain(end.pd, 256), readable(end.pd, 256, IBV_ACCESS_MW_BIND), good(end.pd, 256, kRegionAccess);
    Memory foreign(pair.client->pd, 256, kRegionAccess);
    Window window(end.pd);
    if (fault == Fault::bound_already) {
      CHECK(post_bind(end, 0, window, good, 0, 8) == 0);
      end.expect(0);
    }
    const Memory& memory = fault == Fault::no_bind_right    ? plain
                           : fault == Fault::no_write_right ? readable
                           : fault == Fault::other_domain   ? foreign
                                                            : good;
    const size_t length = fault == Fault::beyond ? 257 : fault == Fault::empty ? 0 : 256;
    CHECK(post_bind(end, 1, window, memory, 0, length) == 0);
    post(end, {.wr_id = 2}, {good.sge(0, 1)});
    end.expect(1, IBV_WC_MW_BIND_ERR);
    end.expect(2, IBV_WC_WR_FLUSH_ERR);
  }
  Listener listener;
  Pair pair(listener, {}, {});
  End& end = *pair.server;
  Memory memory(end.pd, 256, kRegionAccess);
  Window window(end.pd), other(end.pd);
  CHECK(post_bind(end, 1, window, memory, 0, 8, IBV_ACCESS_ZERO_BASED) == EOPNOTSUPP);
  std::swap(window.mw->rkey, other.mw->rkey);
  ibv_send_wr request{}, *bad = nullptr;
  request.opcode = IBV_WR_BIND_MW;
  request.bind_mw.mw = window.mw;
  request.bind_mw.rkey = window.mw->rkey ^ 0x100;
  request.bind_mw.bind_info = {memory.mr, memory.address(), 8, 0};
  CHECK(ibv_post_send(end.qp, &request, &bad) == EINVAL && bad == &request);
  std::swap(window.mw->rkey, other.mw->rkey);
  errno = 0;
  CHECK(provider().alloc_mw(end.pd, IBV_MW_TYPE_1) == nullptr && errno == EOPNOTSUPP);
  // Invalidation of a key that is no window: a region, nothing at all.
  CHECK(post_invalidate(end, 3, IBV_WR_LOCAL_INV, memory.mr->rkey) == 0);
  end.expect(3, IBV_WC_MW_BIND_ERR);
}

// A peer that invalidates what it may not gets a Terminate; both sides learn of it.
void cannot_invalidate(Progress progress) {
  for (const bool region : {true, false}) {
    Listener listener;
    Pair pair(listener, {.progress = progress}, {.progress = progress});
    End& client = *pair.client;
    End& server = *pair.server;
    Memory near(client.pd, 256), far(server.pd, 256);
    Window window(server.pd);  // never bound
    post_receive(server, 1, far.sge(0, 100));
    ibv_send_wr requests[2] = {}, *bad = nullptr;
    ibv_sge sge = near.sge(0, 10);
    for (ibv_send_wr& request : requests) {
      request.sg_list = &sge;
      request.num_sge = 1;
    }
    requests[0].opcode = IBV_WR_SEND_WITH_INV;
    requests[0].invalidate_rkey = region ? far.mr->rkey : window.mw->rkey;
    requests[0].next = &requests[1];
    requests[1].wr_id = 2;
    requests[1].opcode = IBV_WR_RDMA_READ;
    requests[1].send_flags = IBV_SEND_SIGNALED;
    requests[1].wr.rdma = {far.address(), far.mr->rkey};
    CHECK(ibv_post_send(client.qp, requests, &bad) == 0);
    const Completions done = pump(client, 1, server, 1);
    CHECK(done.server[0].wr_id == 1 && done.server[0].status == IBV_WC_LOC_ACCESS_ERR);
    CHECK(done.client[0].wr_id == 2 && done.client[0].status == IBV_WC_REM_ACCESS_ERR);
    CHECK(server.id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
    CHECK(client.id.events->expect(CmEvent::Type::disconnected).status == ECONNABORTED);
  }
}

// A queue pair that goes away takes its bindings with it, so no later one inherits them.
void teardown() {
  Listener listener;
  auto pair = std::make_unique<Pair>(listener, Options{}, Options{});
  ibv_pd* pd = pair->server->pd;
  auto far = std::make_unique<Memory>(pd, 256, kRegionAccess);
  std::vector<std::unique_ptr<Window>> windows;
  for (uint64_t i = 0; i < 10; i++) {
    windows.push_back(std::make_unique<Window>(pd));
    CHECK(post_bind(*pair->server, i, *windows.back(), *far, i, 8) == 0);
    pair->server->expect(i);
  }
  windows.resize(5);  // bound windows may be deallocated
  CHECK(provider().dereg_mr(far->mr) == EBUSY);
  pair->server->destroy_qp();
  far.reset();
  windows.clear();
}

// Windows are bound and ended by their owner while the peer writes through them: each WRITE lands in the
// window or ends the connection, and memory is free as soon as the window has ended.
void under_fire() {
  for (int round = 0; round < 20; round++) {
    Listener listener;
    Pair pair(listener, {}, {.progress = Progress::automatic});
    Memory near(pair.client->pd, 1 << 18);
    auto far = std::make_unique<Memory>(pair.server->pd, 1 << 18, kRegionAccess);
    Window window(pair.server->pd);
    CHECK(post_bind(*pair.server, 1, window, *far, 0, 1 << 18) == 0);
    pair.server->expect(1);
    const Send send = through(IBV_WR_RDMA_WRITE, 1, *far, 0, window.mw->rkey);
    std::atomic<int> written{0};
    std::thread owner([&] {
      while (written < round % 4 * 8) std::this_thread::yield();
      const int error = post_invalidate(*pair.server, 2, IBV_WR_LOCAL_INV, window.mw->rkey);
      CHECK(error == 0);
      pair.server->expect(2);
      far.reset();
    });
    while (true) {
      const int error = try_post(*pair.client, send, {near.sge(0, 1 << 18)});
      CHECK(error == 0 || error == ENOMEM);
      ibv_wc wc;
      if (ibv_poll_cq(pair.client->cq, 1, &wc) != 1) continue;
      if (wc.status != IBV_WC_SUCCESS) break;
      written++;
    }
    owner.join();
  }
}

STRESS(iwarp_window) {
  for (const Progress mode : {Progress::manual, Progress::automatic}) {
    timed("life", [=] { life(mode); });
    timed("bounds and rights", [=] { bounds_and_rights(mode); });
    timed("cannot invalidate", [=] { cannot_invalidate(mode); });
  }
  timed("other queue pair", other_queue_pair);
  timed("bad bindings", bad_bindings);
  timed("teardown", teardown);
  timed("under fire", under_fire);
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_window_stress
