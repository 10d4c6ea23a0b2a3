// Memory that goes while this process itself copies a message into it, in a poll.
#include "gate.h"
#include "shm/memory/protection_domain.h"
#include "traffic.h"

namespace shm_receive_copy_stress {

using namespace fixture;

constexpr size_t kPage = Gate::kSize;

// dereg_mr returns when the copy into a receive is over, and not before.
void a_copy_is_waited_for() {
  Listener listener;
  Pair pair(listener, {}, {});
  Memory near(pair.client->pd, kPage);
  near.fill(1);
  Gate gate;
  ibv_mr* mr = provider().reg_mr(pair.server->pd, gate.data, kPage, IBV_ACCESS_LOCAL_WRITE);
  CHECK(mr != nullptr);
  const uint32_t key = mr->lkey;
  post_receive(*pair.server, 1, {gate.address(), kPage, key});
  post(*pair.client, {.wr_id = 2}, {near.sge(0, 64)});
  pair.client->expect(2);
  gate.close();
  std::thread poller([&] { pair.server->expect(1); });
  await([] { return Gate::reached.load(); });
  std::atomic<bool> returned{false};
  std::thread remover([&] {
    CHECK(provider().dereg_mr(mr) == 0);
    returned = true;
  });
  await([&] { return !static_cast<shm::ProtectionDomain*>(pair.server->pd)->is_live(key); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // for what must not come
  CHECK(!returned);
  gate.open();
  poller.join();
  remover.join();
  CHECK(std::memcmp(gate.data, near.data, 64) == 0);
}

// Regions are closed and unmapped while messages come into them and peers disconnect.
void closed_under_messages() {
  for (int round = 0; round < effort(60); round++) {
    Listener listener;
    Pair pair(listener, {.depth = 64}, {.depth = 64});
    Memory near(pair.client->pd, kPage);
    auto far = std::make_unique<Memory>(pair.server->pd, kPage);
    std::atomic<int> arrived{0};
    std::atomic<bool> stop{false};
    for (uint64_t i = 0; i < 64; i++) post_receive(*pair.server, i, far->sge(i * 64, 64));
    std::thread poller([&, qp = pair.server->qp, key = far->mr->lkey, address = far->address()] {
      while (!stop) {
        ibv_wc wc;
        if (ibv_poll_cq(pair.server->cq, 1, &wc) != 1 || wc.opcode != IBV_WC_RECV) continue;
        CHECK(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_LOC_PROT_ERR ||
              wc.status == IBV_WC_WR_FLUSH_ERR);
        if (wc.status != IBV_WC_SUCCESS) continue;
        arrived++;
        ibv_sge sge{address + wc.wr_id * 64, 64, key};
        ibv_recv_wr request{}, *bad = nullptr;
        request.wr_id = wc.wr_id;
        request.sg_list = &sge;
        request.num_sge = 1;
        CHECK(ibv_post_recv(qp, &request, &bad) == 0);
      }
    });
    std::thread sender([&] {
      while (!stop) {
        const int error = try_post(*pair.client, {}, {near.sge(0, 64)});
        CHECK(error == 0 || error == ENOMEM);
        ibv_wc wc;
        ibv_poll_cq(pair.client->cq, 1, &wc);
      }
    });
    await([&] { return arrived > round; });
    std::thread leaver([&, leaves = round % 2 == 0] {
      if (leaves) CHECK(pair.client->id.id->disconnect() == 0);
    });
    far->deregister();
    std::memset(far->data, 0xaa, far->size);
    CHECK(is_filled(far->data, far->size, 0xaa));
    far.reset();  // what comes late finds no memory there
    leaver.join();
    stop = true;
    poller.join();
    sender.join();
  }
}

STRESS(shm_receive_copy) {
  timed("a copy is waited for", a_copy_is_waited_for);
  timed("closed under messages", closed_under_messages);
  std::puts("ok");
  return 0;
}

}  // namespace shm_receive_copy_stress
