// The shm provider: regions that come and go on live connections, and beside queue pairs that come and go.
#include <algorithm>

#include "shm/progress_thread.h"
#include "shm/queue-pair/queue_pair.h"
#include "traffic.h"

namespace shm_memory_stress {

using namespace fixture;

// Regions made on a live connection work at once, hundreds of them, and their mappings go with them.
void regions_after_connect() {
  Listener listener;
  Pair pair(listener, {}, {});
  const Holdings before = holdings();
  for (int round = 0; round < 3; round++) {
    std::vector<std::unique_ptr<Memory>> near, far;
    for (uint64_t i = 0; i < 200; i++) {
      near.push_back(std::make_unique<Memory>(pair.client->pd, 8192));
      far.push_back(std::make_unique<Memory>(pair.server->pd, 8192));
      near[i]->fill(i);
      post(*pair.client, write_to(remote(*far[i]), 0, i), {near[i]->sge(0, 8192)});
      pair.client->expect(i);
      CHECK(same(*near[i], *far[i], 8192));
    }
  }
  await([&] {  // the peer unmaps when it hears of it
    const Holdings after = holdings();
    return after.mappings == before.mappings && after.descriptors == before.descriptors;
  });
}

// Regions come and go while a peer writes to them: each WRITE lands before dereg_mr returns, or fails.
void deregister_under_fire(Kind kind) {
  for (int round = 0; round < 20; round++) {
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 1 << 16);
    auto far = std::make_unique<Memory>(pair.server->pd, 1 << 16, kAllAccess, kind);
    const Send send = write_to(remote(*far), 0, 1);
    std::atomic<int> written{0};
    std::thread remover([&] {
      while (written < 5 * round) std::this_thread::yield();
      far->deregister();
      std::memset(far->data, 0xaa, far->size);
      std::this_thread::sleep_for(std::chrono::microseconds(200));  // for what must not come
      CHECK(is_filled(far->data, far->size, 0xaa));
      far.reset();
    });
    while (true) {
      const int error = try_post(*pair.client, send, {near.sge(0, 1 << 16)});
      CHECK(error == 0 || error == ENOMEM);
      ibv_wc wc;
      if (ibv_poll_cq(pair.client->cq, 1, &wc) != 1) continue;
      if (wc.status == IBV_WC_SUCCESS) {
        written++;
        continue;
      }
      CHECK(wc.status == IBV_WC_REM_ACCESS_ERR);
      break;
    }
    remover.join();
  }
}

// When `disconnected` comes, the peer writes nothing more.
void disconnect_under_fire() {
  for (int round = 0; round < 20; round++) {
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 1 << 16), far(pair.server->pd, 1 << 16);
    std::atomic<bool> stop{false};
    std::atomic<int> written{0};
    std::thread writer([&] {
      ibv_wc wc;
      while (!stop) {
        try_post(*pair.client, write_to(remote(far), 0, 1), {near.sge(0, 1 << 16)});
        written += ibv_poll_cq(pair.client->cq, 1, &wc) == 1;
      }
    });
    while (written < 2 * round) std::this_thread::yield();
    CHECK(pair.server->id.id->disconnect() == 0);
    pair.server->id.events->expect(CmEvent::Type::disconnected);
    std::memset(far.data, 0xaa, far.size);
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // for what must not come
    CHECK(is_filled(far.data, far.size, 0xaa));
    stop = true;
    writer.join();
  }
}

// A queue pair of no connection.
struct Lone {
  ibv_pd* pd = provider().alloc_pd(context());
  ibv_cq* cq = provider().create_cq(context(), 16, nullptr, nullptr, Progress::manual);

  Lone() { CHECK(pd != nullptr && cq != nullptr); }
  Lone(const Lone&) = delete;
  ~Lone() { CHECK(provider().destroy_cq(cq) == 0 && provider().dealloc_pd(pd) == 0); }
  ibv_qp* create() const {
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.cap = {1, 1, 1, 1, 0};
    ibv_qp* qp = provider().create_qp(pd, &attributes);
    CHECK(qp != nullptr);
    return qp;
  }
};

// The end of a region asks every queue pair of its domain, those too that other threads are just making. That
// the one meets the other is chance; TSan sees whether anything orders the two.
void queue_pairs_come_meanwhile() {
  const Lone lone;
  std::atomic<bool> over{false};
  std::thread remover([&] {
    while (!over) Memory(lone.pd, 64, kAllAccess, Kind::plain).deregister();
  });
  for (int i = 0; i < effort(3000); i++) CHECK(provider().destroy_qp(lone.create()) == 0);
  over = true;
  remover.join();
}

// A region's end that gives a peer up tells the queue pair, which may be on its way out: nothing is left to
// be done for it when it is gone.
void a_queue_pair_goes_meanwhile() {
  const Lone lone;
  shm::ProgressThread& thread = shm::ProgressThread::instance();
  std::atomic<bool> stands{false}, goes_on{false}, done{false};
  thread.post([&] {
    stands = true;
    while (!goes_on) std::this_thread::yield();
  });
  await([&] { return stands.load(); });
  std::unique_ptr<shm::QueuePair> going(static_cast<shm::QueuePair*>(lone.create()));
  CHECK(going->retire());
  going->fail_later(shm::Failure::stopped());
  going.reset();
  shm::ProgressThread::Errand last([&] { done = true; });
  thread.call(last);
  goes_on = true;
  await([&] { return done.load(); });
  thread.cancel(last);
}

STRESS(shm_memory) {
  timed("regions after connect", regions_after_connect);
  timed("deregister under fire", [] { deregister_under_fire(Kind::shared); });
  timed("deregister under fire, plain", [] { deregister_under_fire(Kind::plain); });
  timed("disconnect under fire", disconnect_under_fire);
  timed("queue pairs come meanwhile", queue_pairs_come_meanwhile);
  timed("a queue pair goes meanwhile", a_queue_pair_goes_meanwhile);
  std::puts("ok");
  return 0;
}

}  // namespace shm_memory_stress
