// Shared receive queues over iwarp.
#include <algorithm>

#include "traffic.h"

namespace iwarp_shared_receive_stress {

using namespace fixture;

// A shared receive queue with a domain and memory of its own.
struct Shared {
  ibv_pd* pd = provider().alloc_pd(context());
  ibv_srq* srq = nullptr;

  explicit Shared(uint32_t depth, uint32_t sges = 2) {
    ibv_srq_init_attr attributes{};
    attributes.attr = {depth, sges, 0};
    srq = provider().create_srq(pd, &attributes);
    CHECK(srq != nullptr && attributes.attr.max_wr >= depth && attributes.attr.max_sge >= sges);
  }
  Shared(const Shared&) = delete;
  ~Shared() {
    CHECK(provider().destroy_srq(srq) == 0);
    CHECK(provider().dealloc_pd(pd) == 0);
  }
  int try_post(uint64_t wr_id, std::vector<ibv_sge> sges) {
    ibv_recv_wr request{}, *bad = nullptr;
    request.wr_id = wr_id;
    request.sg_list = sges.data();
    request.num_sge = static_cast<int>(sges.size());
    const int error = ibv_post_srq_recv(srq, &request, &bad);
    CHECK(error == 0 || bad == &request);
    return error;
  }
  void post(uint64_t wr_id, std::vector<ibv_sge> sges) { CHECK(try_post(wr_id, std::move(sges)) == 0); }
};

void life(Progress progress) {
  Listener listener;
  Shared shared(8);
  Memory target(shared.pd, 4096);
  Options options{.progress = progress, .srq = shared.srq};
  Pair one(listener, {.progress = progress}, options), two(listener, {.progress = progress}, options);
  Memory near(one.client->pd, 4096), other(two.client->pd, 4096);
  near.fill(1);
  other.fill(2);
  for (uint64_t i = 0; i < 8; i++) shared.post(i, {target.sge(512 * i, 256), target.sge(512 * i + 256, 256)});
  CHECK(shared.try_post(8, {target.sge(0, 1)}) == ENOMEM);
  CHECK(shared.try_post(8, std::vector<ibv_sge>(3, target.sge(0, 1))) == EINVAL);
  ibv_recv_wr own{}, *bad = nullptr;
  CHECK(ibv_post_recv(one.server->qp, &own, &bad) == EINVAL);  // it has no queue of its own
  CHECK(provider().destroy_srq(shared.srq) == EBUSY);

  post(*one.client, {.wr_id = 1}, {near.sge(0, 400)});
  Completions done = pump(*one.client, 1, *one.server, 1);
  CHECK(done.server[0].wr_id == 0 && done.server[0].byte_len == 400);
  CHECK(done.server[0].qp_num == one.server->qp->qp_num);
  CHECK(std::memcmp(&target.bytes[0], &near.bytes[0], 400) == 0);
  post(*two.client, {.wr_id = 2, .opcode = IBV_WR_SEND_WITH_IMM, .immediate = 7}, {other.sge(0, 512)});
  done = pump(*two.client, 1, *two.server, 1);
  CHECK(done.server[0].wr_id == 1 && done.server[0].qp_num == two.server->qp->qp_num);
  CHECK(ntohl(done.server[0].imm_data) == 7 && std::memcmp(&target.bytes[512], &other.bytes[0], 512) == 0);
  Memory written(one.server->pd, 64);
  post(*one.client,
       {.wr_id = 3,
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .remote_address = written.address(),
        .remote_key = written.mr->rkey,
        .immediate = 9},
       {near.sge(0, 64)});
  done = pump(*one.client, 1, *one.server, 1);
  CHECK(done.server[0].wr_id == 2 && done.server[0].opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  // What completed is free again.
  for (uint64_t i = 8; i < 11; i++) shared.post(i, {target.sge(0, 1)});
  CHECK(shared.try_post(11, {target.sge(0, 1)}) == ENOMEM);
  for (uint64_t i = 3; i < 11; i++) {
    post(*two.client, {.wr_id = i}, {other.sge(0, 1)});
    done = pump(*two.client, 1, *two.server, 1);
    CHECK(done.server[0].wr_id == i && done.server[0].status == IBV_WC_SUCCESS);
  }
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  CHECK(provider().query_qp(one.server->qp, &attributes, 0, &init) == 0 && init.srq == shared.srq);
}

// The limit's event comes once for each time that it is armed.
void limit() {
  Listener listener;
  Shared shared(16);
  AsyncLog log;
  Memory target(shared.pd, 64);
  Pair pair(listener, {}, {.srq = shared.srq});
  Memory near(pair.client->pd, 64);
  for (uint64_t i = 0; i < 16; i++) shared.post(i, {target.sge(0, 8)});
  ibv_srq_attr attr{};
  attr.srq_limit = 17;
  CHECK(provider().modify_srq(shared.srq, &attr, IBV_SRQ_LIMIT) == EINVAL);
  attr.srq_limit = 14;
  CHECK(provider().modify_srq(shared.srq, &attr, IBV_SRQ_LIMIT) == 0);
  CHECK(provider().query_srq(shared.srq, &attr) == 0 && attr.srq_limit == 14 && attr.max_wr == 16);
  const auto take = [&] {
    post(*pair.client, {.wr_id = 1}, {near.sge(0, 8)});
    pump(*pair.client, 1, *pair.server, 1);
  };
  take();
  take();
  CHECK(log.count(IBV_EVENT_SRQ_LIMIT_REACHED) == 0);
  take();  // 13 are left
  log.expect(IBV_EVENT_SRQ_LIMIT_REACHED, shared.srq);
  CHECK(provider().query_srq(shared.srq, &attr) == 0 && attr.srq_limit == 0);
  take();
  // Armed above what is left: at once.
  attr.srq_limit = 14;
  CHECK(provider().modify_srq(shared.srq, &attr, IBV_SRQ_LIMIT) == 0);
  log.expect(IBV_EVENT_SRQ_LIMIT_REACHED, shared.srq);
  CHECK(provider().modify_srq(shared.srq, &attr, IBV_SRQ_MAX_WR) == EOPNOTSUPP);
  take();
  CHECK(log.count(IBV_EVENT_SRQ_LIMIT_REACHED) == 0);
  attr.max_wr = 1 << 30;
  ibv_srq_init_attr much{nullptr, attr};
  errno = 0;
  CHECK(provider().create_srq(shared.pd, &much) == nullptr && errno == EINVAL);
}

// Two large messages arrive at the same time, interleaved: each has its own receive from its first byte to
// its last.
void interleaved(Progress progress) {
  constexpr size_t kLength = 3'000'001;
  Listener listener;
  Shared shared(8);
  Memory target(shared.pd, 2 * kLength);
  const Options options{.progress = progress, .srq = shared.srq};
  Pair one(listener, {}, options), two(listener, {}, options);
  Memory first(one.client->pd, kLength), second(two.client->pd, kLength);
  first.fill(1);
  second.fill(2);
  for (int round = 0; round < 3; round++) {
    for (uint64_t i = 0; i < 2; i++) shared.post(i, {target.sge(i * kLength, kLength)});
    post(*one.client, {.wr_id = 1}, {first.sge(0, kLength)});
    post(*two.client, {.wr_id = 2}, {second.sge(0, kLength)});
    End* ends[] = {one.client.get(), two.client.get(), one.server.get(), two.server.get()};
    ibv_wc got[4];
    bool have[4] = {};
    const auto deadline = Clock::now() + kHang;
    while (!std::all_of(have, have + 4, [](bool each) { return each; })) {
      CHECK(Clock::now() < deadline);
      for (size_t i = 0; i < 4; i++) {
        if (!have[i]) have[i] = ibv_poll_cq(ends[i]->cq, 1, &got[i]) == 1;
      }
    }
    for (const ibv_wc& wc : got) CHECK(wc.status == IBV_WC_SUCCESS);
    CHECK(got[2].wr_id + got[3].wr_id == 1);
    CHECK(std::memcmp(&target.bytes[got[2].wr_id * kLength], first.bytes.data(), kLength) == 0);
    CHECK(std::memcmp(&target.bytes[got[3].wr_id * kLength], second.bytes.data(), kLength) == 0);
  }
}

// A queue pair fails in the middle of a message; `next` is the receive behind it, as 6. False: all of the
// message was there before the machine let this thread look.
bool fails_in_a_message(Listener& listener, const Options& options, Shared& shared, AsyncLog& log,
                        ibv_sge next) {
  constexpr uint32_t kLength = 16 << 20;
  Pair pair(listener, {.progress = options.progress}, options);
  Memory source(pair.client->pd, kLength), large(shared.pd, kLength);
  shared.post(5, {large.sge(0, kLength)});
  shared.post(6, {next});
  ibv_srq_attr attr{};
  attr.srq_limit = 2;
  CHECK(provider().modify_srq(shared.srq, &attr, IBV_SRQ_LIMIT) == 0);
  post(*pair.client, {.wr_id = 7}, {source.sge(0, kLength)});
  const auto deadline = Clock::now() + kHang;
  ibv_wc wc;
  int completed;
  do {  // until the message has taken its receive
    completed = ibv_poll_cq(pair.server->cq, 1, &wc);
    CHECK(Clock::now() < deadline);
    CHECK(provider().query_srq(shared.srq, &attr) == 0);
  } while (completed == 0 && attr.srq_limit != 0);
  CHECK(provider().data_path_verbs()->move_to_error(pair.server->qp) == 0);
  if (completed == 0) wc = pair.server->completion();
  CHECK(wc.wr_id == 5 && (wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_WR_FLUSH_ERR));
  log.expect(IBV_EVENT_QP_LAST_WQE_REACHED, pair.server->qp);
  const bool in_the_middle = wc.status == IBV_WC_WR_FLUSH_ERR;
  CHECK(ibv_poll_cq(pair.server->cq, 1, &wc) == 0);
  pair.server->destroy_qp();
  pair.client->destroy_qp();
  return in_the_middle;
}

// A queue pair that fails flushes what a message had taken, and nothing of the others'.
void failures(Progress progress) {
  Listener listener;
  Shared shared(8);
  AsyncLog log;
  Memory target(shared.pd, 1 << 20);
  const Options options{.progress = progress, .srq = shared.srq};
  Pair other(listener, {.progress = progress}, options);
  Memory near(other.client->pd, 64);
  {  // too long for it
    Pair pair(listener, {.progress = progress}, options);
    Memory source(pair.client->pd, 4096);
    shared.post(1, {target.sge(0, 100)});
    shared.post(2, {target.sge(0, 100)});
    post(*pair.client, {.wr_id = 3}, {source.sge(0, 101)});
    const Completions done = pump(*pair.client, 1, *pair.server, 1);
    CHECK(done.server[0].wr_id == 1 && done.server[0].status == IBV_WC_LOC_LEN_ERR);
    log.expect(IBV_EVENT_QP_LAST_WQE_REACHED, pair.server->qp);
  }
  post(*other.client, {.wr_id = 4}, {near.sge(0, 1)});
  CHECK(pump(*other.client, 1, *other.server, 1).server[0].wr_id == 2);
  bool in_the_middle = false;
  for (int turn = 0; !in_the_middle; turn++) {
    CHECK(turn < 50);
    in_the_middle = fails_in_a_message(listener, options, shared, log, target.sge(0, 100));
    post(*other.client, {.wr_id = 8}, {near.sge(0, 1)});
    CHECK(pump(*other.client, 1, *other.server, 1).server[0].wr_id == 6);
  }
  {  // empty: as with a queue of its own
    ibv_sge sge = near.sge(0, 1);
    post_two(*other.client, {.wr_id = 9, .flags = 0}, {.wr_id = 10, .opcode = IBV_WR_RDMA_READ}, sge);
    const Completions done = pump(*other.client, 1, *other.server, 0);
    CHECK(done.client[0].wr_id == 10 && done.client[0].status == IBV_WC_RNR_RETRY_EXC_ERR);
    log.expect(IBV_EVENT_QP_REQ_ERR, other.server->qp);
  }
  // A queue pair that is destroyed in the middle of a message gives its receive back.
  for (int i = 0; i < 20; i++) {
    Pair pair(listener, {.progress = progress}, options);
    Memory source(pair.client->pd, 2 << 20), large(shared.pd, 2 << 20);
    for (uint64_t each = 0; each < 8 && i == 0; each++) shared.post(each, {large.sge(0, 2 << 20)});
    if (i > 0) shared.try_post(9, {large.sge(0, 2 << 20)});
    post(*pair.client, {.wr_id = 7}, {source.sge(0, 2 << 20)});
    ibv_wc wc;
    ibv_poll_cq(pair.server->cq, 1, &wc);
    pair.server->destroy_qp();
    pair.client->destroy_qp();
  }
}

// Many queue pairs, each served by its own thread or by the progress thread, take from one queue while two
// threads post to it.
void many(Progress progress) {
  constexpr size_t kPairs = 6;
  const uint64_t kEach = effort(500);
  const uint64_t kAll = kPairs * kEach;
  Listener listener;
  Shared shared(64, 1);
  Memory target(shared.pd, 64 * 64);
  std::atomic<uint64_t> received{0}, credits{64};
  {
    std::vector<std::unique_ptr<Pair>> pairs;
    for (size_t i = 0; i < kPairs; i++) {
      pairs.push_back(std::make_unique<Pair>(listener, Options{.progress = progress, .depth = 16},
                                             Options{.progress = progress, .srq = shared.srq}));
    }
    for (uint64_t i = 0; i < 64; i++) shared.post(i, {target.sge(64 * i, 64)});
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kPairs; t++) {
      threads.emplace_back([&, t] {  // sends only what there is a receive for
        End& client = *pairs[t]->client;
        Memory near(client.pd, 64);
        for (uint64_t i = 0; i < kEach; i++) {
          while (true) {
            uint64_t have = credits.load();
            if (have > 0 && credits.compare_exchange_weak(have, have - 1)) break;
            std::this_thread::yield();
          }
          std::fill(near.bytes.begin(), near.bytes.end(), static_cast<uint8_t>(t + 1));
          post(client, {.wr_id = i}, {near.sge(0, 64)});
          client.expect(i);
        }
      });
      threads.emplace_back([&, t] {
        End& server = *pairs[t]->server;
        for (uint64_t i = 0; i < kEach; i++) {
          const ibv_wc wc = server.completion();
          CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 64 && wc.wr_id < 64);
          const uint8_t* at = &target.bytes[64 * wc.wr_id];
          CHECK(at[0] == t + 1 && at[63] == t + 1);
          shared.post(wc.wr_id, {target.sge(64 * wc.wr_id, 64)});
          received++;
          credits++;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(received == kAll);
}

STRESS(iwarp_shared_receive) {
  for (const Progress mode : {Progress::manual, Progress::automatic}) {
    timed("life", [=] { life(mode); });
    timed("interleaved", [=] { interleaved(mode); });
    timed("failures", [=] { failures(mode); });
    timed("many", [=] { many(mode); });
  }
  timed("limit", limit);
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_shared_receive_stress
