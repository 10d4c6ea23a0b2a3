// Shared receive queues over shm: several senders take receives from one queue, in this process and others.
#include <map>
#include <set>

#include "events.h"
#include "process.h"

namespace shm_shared_receives_stress {

using namespace fixture;

// The side that owns a shared receive queue: a buffer for each receive, and its number as wr_id.
struct Owner {
  ibv_pd* pd = provider().alloc_pd(context());
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq;
  ibv_srq* srq;
  size_t bytes;
  std::unique_ptr<Memory> memory;

  explicit Owner(uint32_t depth, size_t buffer, bool with_channel = false) : bytes(buffer) {
    if (with_channel) channel = provider().create_comp_channel(context());
    cq = provider().create_cq(context(), 1024, nullptr, channel, Progress::manual);
    ibv_srq_init_attr attributes{};
    attributes.attr = {depth, 2, 0};
    srq = provider().create_srq(pd, &attributes);
    CHECK(cq != nullptr && srq != nullptr && attributes.attr.max_wr >= depth);
    memory = std::make_unique<Memory>(pd, attributes.attr.max_wr * bytes);
  }
  Owner(const Owner&) = delete;
  ~Owner() {
    memory.reset();
    CHECK(provider().destroy_srq(srq) == 0 && provider().destroy_cq(cq) == 0);
    if (channel != nullptr) CHECK(provider().destroy_comp_channel(channel) == 0);
    CHECK(provider().dealloc_pd(pd) == 0);
  }
  Options options() const { return {.cq = cq, .pd = pd, .srq = srq}; }
  int try_receive(uint64_t number) {
    ibv_sge sges[2] = {memory->sge(number * bytes, bytes / 2),
                       memory->sge(number * bytes + bytes / 2, bytes - bytes / 2)};
    ibv_recv_wr request{}, *bad = nullptr;
    request.wr_id = number;
    request.sg_list = sges;
    request.num_sge = 2;
    return ibv_post_srq_recv(srq, &request, &bad);
  }
  void receive(uint64_t number) { CHECK(try_receive(number) == 0); }
  uint8_t* at(uint64_t number) const { return memory->data + number * bytes; }
  ibv_wc completion() {
    ibv_wc wc{};
    const auto deadline = Clock::now() + kHang;
    int count;
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0) CHECK(Clock::now() < deadline);
    CHECK(count == 1);
    return wc;
  }
};

void every_kind_of_message() {
  Listener listener;
  Owner owner(32, 8192);
  Pair one(listener, {}, owner.options()), other(listener, {}, owner.options());
  Memory source(one.client->pd, 8192), second(other.client->pd, 8192);
  source.fill(1);
  second.fill(2);
  uint64_t number = 0;
  for (int round = 0; round < 40; round++) {
    for (const size_t length : {0, 1, 112, 113, 4096, 8192}) {
      for (const bool first : {true, false}) {
        End& from = first ? *one.client : *other.client;
        const Memory& memory = first ? source : second;
        owner.receive(number % 32);
        Send send{.wr_id = 7, .opcode = length == 113 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, .immediate = 5};
        post(from, send, {memory.sge(0, length)});
        from.expect(7);
        const ibv_wc wc = owner.completion();
        CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == number % 32);
        CHECK(wc.byte_len == length && wc.qp_num == (first ? one : other).server->qp->qp_num);
        CHECK(((wc.wc_flags & IBV_WC_WITH_IMM) != 0) == (length == 113));
        CHECK(std::memcmp(owner.at(wc.wr_id), memory.data, length) == 0);
        number++;
      }
    }
    Memory far(owner.pd, 64);
    Send write = write_to(remote(far), 0, 8);
    write.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    owner.receive(3);
    post(*one.client, write, {source.sge(0, 64)});
    one.client->expect(8);
    const ibv_wc wc = owner.completion();
    CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wr_id == 3 && same(source, far, 64));
  }
}

void misuse() {
  Listener listener;
  Owner owner(4, 64);
  {
    Pair pair(listener, {}, owner.options());
    Memory source(pair.client->pd, 256);
    ibv_recv_wr request{}, *bad = nullptr;
    CHECK(ibv_post_recv(pair.server->qp, &request, &bad) == EINVAL && bad == &request);
    request.num_sge = 3;
    CHECK(ibv_post_srq_recv(owner.srq, &request, &bad) == EINVAL);
    for (uint64_t i = 0; i < 4; i++) owner.receive(i);
    CHECK(owner.try_receive(0) == ENOMEM);
    CHECK(provider().destroy_srq(owner.srq) == EBUSY);
    // Of another protection domain.
    ibv_pd* pd = provider().alloc_pd(context());
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = attributes.recv_cq = owner.cq;
    attributes.srq = owner.srq;
    CHECK(provider().create_qp(pd, &attributes) == nullptr && errno == EINVAL);
    CHECK(provider().dealloc_pd(pd) == 0);
    // A message that is too long is an error of its queue pair.
    post(*pair.client, {.wr_id = 1}, {source.sge(0, 200)});
    pair.client->expect(1, IBV_WC_REM_INV_REQ_ERR);
    ibv_wc wc = owner.completion();
    CHECK(wc.status == IBV_WC_LOC_LEN_ERR && wc.wr_id == 0);
    pair.server->id.events->expect(CmEvent::Type::disconnected);
  }
  Pair next(listener, {}, owner.options());
  Memory source(next.client->pd, 64);
  for (uint64_t i = 1; i < 4; i++) {  // the others were not flushed
    post(*next.client, {.wr_id = 2}, {source.sge(0, 64)});
    CHECK(owner.completion().wr_id == i);
  }
}

void limit_and_last_receive() {
  Listener listener;
  Owner owner(16, 64);
  Watch watch;
  Pair pair(listener, {}, owner.options());
  Memory source(pair.client->pd, 64);
  const auto arm = [&](uint32_t limit) {
    ibv_srq_attr attributes{0, 0, limit};
    CHECK(provider().modify_srq(owner.srq, &attributes, IBV_SRQ_LIMIT) == 0);
  };
  const auto armed = [&] {
    ibv_srq_attr attributes{};
    CHECK(provider().query_srq(owner.srq, &attributes) == 0 && attributes.max_wr == 16);
    return attributes.srq_limit;
  };
  ibv_srq_attr wrong{64, 0, 0};
  CHECK(provider().modify_srq(owner.srq, &wrong, IBV_SRQ_MAX_WR) == EOPNOTSUPP);
  for (uint64_t i = 0; i < 16; i++) owner.receive(i);
  arm(4);
  for (uint64_t i = 0; i < 16; i++) {  // 12 leave four, which is not fewer than four
    if (i == 12) CHECK(armed() == 4 && watch.none());
    post(*pair.client, {.wr_id = i}, {source.sge(0, 64)});
    pair.client->expect(i);
    if (i == 12) watch.expect(IBV_EVENT_SRQ_LIMIT_REACHED, owner.srq);
  }
  CHECK(armed() == 0);
  for (int i = 0; i < 16; i++) CHECK(owner.completion().status == IBV_WC_SUCCESS);
  arm(1);  // there are fewer already
  await([&] { return watch.how_many(IBV_EVENT_SRQ_LIMIT_REACHED, owner.srq) >= 2; });
  CHECK(armed() == 0);
  CHECK(pair.server->id.id->disconnect() == 0);
  watch.expect(IBV_EVENT_QP_LAST_WQE_REACHED, pair.server->qp);
  CHECK(watch.how_many(IBV_EVENT_SRQ_LIMIT_REACHED, owner.srq) == 2);
}

// Many senders, few receives, most of them waiting most of the time: nothing is lost, no sender starves, and
// the messages of each stay in order.
void starving(bool asleep) {
  constexpr size_t kSenders = 5;
  const uint64_t kEach = static_cast<uint64_t>(effort(1000));
  Listener listener;
  Owner owner(4, 64);
  std::vector<std::unique_ptr<Pair>> pairs;
  std::map<uint32_t, uint64_t> next;
  for (size_t i = 0; i < kSenders; i++) {
    pairs.push_back(
        std::make_unique<Pair>(listener, Options{.channel = asleep, .depth = 16}, owner.options()));
    next[pairs.back()->server->qp->qp_num] = 0;
  }
  std::vector<std::thread> senders;
  for (const auto& pair : pairs) {
    senders.emplace_back([kEach, &end = *pair->client] {
      for (uint64_t i = 0, completed = 0; completed < kEach;) {
        uint64_t word = i;
        if (i < kEach && i - completed < 16) {
          ibv_sge sge{reinterpret_cast<uint64_t>(&word), sizeof word, 0};
          post(end, {.wr_id = i++, .flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}, {sge});
        } else {
          end.expect(completed++);
        }
      }
    });
  }
  for (uint64_t i = 0; i < 4; i++) owner.receive(i);
  for (uint64_t i = 0; i < kSenders * kEach; i++) {
    const ibv_wc wc = owner.completion();
    CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 8);
    uint64_t word;
    std::memcpy(&word, owner.at(wc.wr_id), sizeof word);
    CHECK(word == next.at(wc.qp_num)++);
    if (i % 500 == 499) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    owner.receive(wc.wr_id);
  }
  for (std::thread& sender : senders) sender.join();
}

// --- Senders in processes of their own that are killed: what they had taken comes back.

constexpr size_t kDepth = 16;

void flood_child(const std::string& path) {
  auto end = resolve(path, {.depth = 64});
  Memory source(end->pd, 64 << 10);
  connect(*end);
  end->id.events->expect(CmEvent::Type::established);
  for (uint64_t i = 0;; i++) {
    const int error = try_post(*end, {.wr_id = i}, {source.sge(0, i % 3 == 0 ? 64 : 60'000)});
    CHECK(error == 0 || error == ENOMEM);
    ibv_wc wc;
    while (ibv_poll_cq(end->cq, 1, &wc) == 1) {
      if (wc.status != IBV_WC_SUCCESS) return;
    }
  }
}

void killed_takers() {
  Listener listener;
  Owner owner(kDepth, 64 << 10);
  for (uint64_t i = 0; i < kDepth; i++) owner.receive(i);
  size_t flushed = 0;
  for (int round = 0; round < effort(18); round++) {
    Child children[] = {{"flood", listener.path}, {"flood", listener.path}};
    std::vector<std::unique_ptr<End>> ends;
    for ([[maybe_unused]] Child& child : children) {
      CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
      ends.push_back(std::make_unique<End>(Id(std::move(request.request)), owner.options()));
      accept(*ends.back());
    }
    for (const auto& end : ends) end->id.events->expect(CmEvent::Type::established);
    ibv_wc wc;
    for (int received = 0; received < 50 + 3 * round;) {
      if (ibv_poll_cq(owner.cq, 1, &wc) != 1) continue;
      CHECK(wc.status == IBV_WC_SUCCESS);
      owner.receive(wc.wr_id);
      received++;
    }
    for (Child& child : children) child.signal(SIGKILL);
    for (const auto& end : ends) end->id.events->expect(CmEvent::Type::disconnected);
    for (Child& child : children) CHECK(WIFSIGNALED(child.wait()));
    while (ibv_poll_cq(owner.cq, 1, &wc) == 1) {
      CHECK(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_WR_FLUSH_ERR);
      flushed += wc.status == IBV_WC_WR_FLUSH_ERR;
      owner.receive(wc.wr_id);
    }
    ends.clear();
    // All receives are there: each takes a message, once.
    CHECK(owner.try_receive(0) == ENOMEM);
    Pair pair(listener, {}, owner.options());
    Memory source(pair.client->pd, 64);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < kDepth; i++) {
      post(*pair.client, {.wr_id = i}, {source.sge(0, 64)});
      pair.client->expect(i);
      seen.insert(owner.completion().wr_id);
    }
    CHECK(seen.size() == kDepth);
    for (const uint64_t number : seen) owner.receive(number);
  }
  std::printf("  %zu receives had been taken by the killed\n", flushed);
}

STRESS(shm_shared_receives) {
  if (count == 3) {
    flood_child(arguments[2]);
    return 0;
  }
  timed("every kind of message", every_kind_of_message);
  timed("misuse", misuse);
  timed("limit and last receive", limit_and_last_receive);
  timed("starving, senders poll", [] { starving(false); });
  timed("starving, senders sleep", [] { starving(true); });
  timed("killed takers", killed_takers);
  std::puts("ok");
  return 0;
}

}  // namespace shm_shared_receives_stress
