// The shm provider with both ends in this process: every operation, byte for byte.
#include "traffic.h"

namespace shm_operations_stress {

using namespace fixture;

// Every operation, byte for byte, in one length.
void every_operation(bool channels, Kind kind, size_t length) {
  Listener listener;
  Pair pair(listener, {.channel = channels}, {.channel = channels}, {1, 2, 3});
  End& client = *pair.client;
  End& server = *pair.server;
  Memory source(client.pd, length + 64, kAllAccess, kind), target(server.pd, length + 64, kAllAccess, kind),
      back(client.pd, length + 64, kAllAccess, kind);
  const size_t half = length / 2;

  source.fill(length);
  post_receive(server, 10, target.sge(0, length));
  post(client, {.wr_id = 1}, {source.sge(0, half), source.sge(half, length - half)});
  Completions done = pump(client, 1, server, 1);
  CHECK(done.client[0].wr_id == 1 && done.client[0].status == IBV_WC_SUCCESS);
  CHECK(done.client[0].opcode == IBV_WC_SEND && done.client[0].qp_num == client.qp->qp_num);
  CHECK(done.server[0].wr_id == 10 && done.server[0].status == IBV_WC_SUCCESS);
  CHECK(done.server[0].opcode == IBV_WC_RECV && done.server[0].byte_len == length);
  CHECK(done.server[0].wc_flags == 0 && same(source, target, length));

  source.fill(length + 1);
  {  // into three pieces
    ibv_sge pieces[3] = {target.sge(0, half), target.sge(half, 0), target.sge(half, length - half + 5)};
    ibv_recv_wr request{}, *bad = nullptr;
    request.wr_id = 11;
    request.sg_list = pieces;
    request.num_sge = 3;
    CHECK(ibv_post_recv(server.qp, &request, &bad) == 0);
  }
  post(client, {.wr_id = 2, .opcode = IBV_WR_SEND_WITH_IMM, .immediate = 0xdeadbeef},
       {source.sge(0, length)});
  done = pump(client, 1, server, 1);
  CHECK(done.server[0].opcode == IBV_WC_RECV && done.server[0].byte_len == length);
  CHECK((done.server[0].wc_flags & IBV_WC_WITH_IMM) && ntohl(done.server[0].imm_data) == 0xdeadbeef);
  CHECK(same(source, target, length));

  source.fill(length + 2);
  post(client, write_to(remote(target), 0, 3), {source.sge(0, length)});
  post_receive(server, 12, target.sge(0, 0));
  Send with_immediate = write_to(remote(target), half, 4);
  with_immediate.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  with_immediate.immediate = 5;
  post(client, with_immediate, {source.sge(half, length - half)});
  done = pump(client, 2, server, 1);
  CHECK(done.client[0].opcode == IBV_WC_RDMA_WRITE && done.client[1].opcode == IBV_WC_RDMA_WRITE);
  CHECK(done.server[0].opcode == IBV_WC_RECV_RDMA_WITH_IMM && done.server[0].wr_id == 12);
  CHECK(ntohl(done.server[0].imm_data) == 5 && done.server[0].byte_len == length - half);
  CHECK(same(source, target, length));

  target.fill(length + 3);
  post(client, read_from(remote(target), 0, 5), {back.sge(0, half), back.sge(half, length - half)});
  done = pump(client, 1, server, 0);
  CHECK(done.client[0].opcode == IBV_WC_RDMA_READ && done.client[0].byte_len == length);
  CHECK(done.client[0].status == IBV_WC_SUCCESS && same(back, target, length));

  // The responder of the connection may speak first too; inline data may be overwritten at once.
  const bool inlined = length <= client.options.inline_data;
  target.fill(length + 4);
  post_receive(client, 13, back.sge(0, length));
  post(server, {.wr_id = 6, .flags = IBV_SEND_SIGNALED | (inlined ? int{IBV_SEND_INLINE} : 0)},
       {target.sge(0, length)});
  done = pump(client, 1, server, 1);
  CHECK(done.client[0].byte_len == length && same(back, target, length));
}

void atomics() {
  Listener listener;
  Pair pair(listener, {}, {});
  Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
  auto* value = reinterpret_cast<uint64_t*>(far.data);
  auto* before = reinterpret_cast<uint64_t*>(near.data);
  const auto ask = [&](ibv_wr_opcode opcode, uint64_t compare_add, uint64_t swap) {
    Send send = read_from(remote(far), 0, 1);
    send.opcode = opcode;
    send.compare_add = compare_add;
    send.swap = swap;
    post(*pair.client, send, {near.sge(0, 8)});
    const ibv_wc wc = pair.client->expect(1);
    CHECK(wc.byte_len == 8);
    CHECK(wc.opcode == (opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? IBV_WC_COMP_SWAP : IBV_WC_FETCH_ADD));
    return *before;
  };
  *value = 40;
  CHECK(ask(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0) == 40 && *value == 42);
  CHECK(ask(IBV_WR_ATOMIC_CMP_AND_SWP, 41, 7) == 42 && *value == 42);
  CHECK(ask(IBV_WR_ATOMIC_CMP_AND_SWP, 42, 7) == 42 && *value == 7);
  // Not aligned.
  Send send = read_from(remote(far), 4, 2);
  send.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  CHECK(try_post(*pair.client, send, {near.sge(0, 4)}) == EINVAL);
  post(*pair.client, send, {near.sge(0, 8)});
  pair.client->expect(2, IBV_WC_REM_INV_REQ_ERR);
}

// Both sides of several connections add to one word.
void contended_atomics() {
  const uint64_t kEach = effort(5000);
  Listener listener;
  Pair pair(listener, {}, {}), other(listener, {}, {});
  Memory word(pair.server->pd, 8);
  Memory results(pair.client->pd, 64);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 3; t++) {
    threads.emplace_back([&, t] {
      Send send = read_from(remote(word), 0, t);
      send.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      send.compare_add = 1;
      for (uint64_t i = 0; i < kEach; i++) {
        int error;
        ibv_wc wc[16];
        while ((error = try_post(*pair.client, send, {results.sge(8 * t, 8)})) == ENOMEM)
          CHECK(ibv_poll_cq(pair.client->cq, 16, wc) >= 0);
        CHECK(error == 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(word.data)).load() == 3 * kEach);
}

// One doorbell for a chain; only signaled requests complete, in order; a full queue says ENOMEM.
void chains() {
  Listener listener;
  Pair pair(listener, {.depth = 64}, {});
  End& client = *pair.client;
  Memory source(client.pd, 6400), target(pair.server->pd, 6400), back(client.pd, 6400);
  source.fill(5);
  std::vector<ibv_send_wr> chain(64);
  std::vector<ibv_sge> sges(64);
  for (size_t i = 0; i < chain.size(); i++) {
    const bool read = i % 2 == 1;
    sges[i] = (read ? back : source).sge((i / 2) * 100, 100);
    chain[i] = {};
    chain[i].wr_id = i;
    chain[i].next = i + 1 < chain.size() ? &chain[i + 1] : nullptr;
    chain[i].sg_list = &sges[i];
    chain[i].num_sge = 1;
    chain[i].opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    chain[i].send_flags = (read ? 0 : IBV_SEND_INLINE) | (i % 16 == 15 ? IBV_SEND_SIGNALED : 0) |
                          (i % 3 == 0 ? IBV_SEND_FENCE : 0);
    chain[i].wr.rdma.remote_addr = target.address((i / 2) * 100);
    chain[i].wr.rdma.rkey = target.mr->rkey;
  }
  ibv_send_wr* bad = nullptr;
  CHECK(ibv_post_send(client.qp, chain.data(), &bad) == 0);
  const Completions done = pump(client, 4, *pair.server, 0);
  for (size_t i = 0; i < 4; i++) CHECK(done.client[i].wr_id == 16 * i + 15);
  CHECK(same(source, back, 3200));

  // A completion that is not polled keeps its entry.
  for (uint64_t i = 0; i < 64; i++) post(client, write_to(remote(target), 0, i), {source.sge(0, 8)});
  CHECK(try_post(client, write_to(remote(target), 0, 64), {source.sge(0, 8)}) == ENOMEM);
  client.expect(0);
  post(client, write_to(remote(target), 0, 64), {source.sge(0, 8)});
  for (uint64_t i = 1; i <= 64; i++) client.expect(i);
  // Unsignaled ones keep theirs until a later one is polled.
  for (uint64_t i = 0; i < 63; i++) post(client, write_to(remote(target), 0, i, 0), {source.sge(0, 8)});
  post(client, write_to(remote(target), 0, 63), {source.sge(0, 8)});
  CHECK(try_post(client, write_to(remote(target), 0, 64), {source.sge(0, 8)}) == ENOMEM);
  client.expect(63);
  for (uint64_t i = 0; i < 64; i++) post(client, write_to(remote(target), 0, i), {source.sge(0, 8)});
  CHECK(try_post(client, write_to(remote(target), 0, 64), {source.sge(0, 8)}) == ENOMEM);
  for (uint64_t i = 0; i < 64; i++) client.expect(i);
}

// Memory polling: the end of a WRITE is seen last.
void memory_polling() {
  Listener listener;
  Pair pair(listener, {}, {});
  constexpr size_t kLength = 264;
  Memory near(pair.client->pd, kLength), far(pair.server->pd, kLength);
  const std::atomic_ref<uint64_t> last(*reinterpret_cast<uint64_t*>(far.data + kLength - 8));
  std::atomic<uint64_t> seen{0};
  const uint64_t rounds = effort(20'000);
  std::thread reader([&] {
    for (uint64_t round = 1; round <= rounds; round++) {
      while (last.load(std::memory_order_acquire) != round) std::this_thread::yield();
      for (size_t at = 0; at < kLength; at += 8) {
        uint64_t word;
        std::memcpy(&word, far.data + at, 8);
        CHECK(word == round);
      }
      seen.store(round, std::memory_order_release);
    }
  });
  for (uint64_t round = 1; round <= rounds; round++) {
    for (size_t at = 0; at < kLength; at += 8) std::memcpy(near.data + at, &round, 8);
    post(*pair.client, write_to(remote(far), 0, round), {near.sge(0, kLength)});
    pair.client->expect(round);
    while (seen.load(std::memory_order_acquire) != round) std::this_thread::yield();
  }
  reader.join();
}

STRESS(shm_operations) {
  timed("every operation", [] {
    for (const size_t length : {0, 1, 3, 64, 111, 112, 113, 511, 513, 4096, 65409, 1 << 20, 3'000'001}) {
      every_operation(false, Kind::shared, length);
      every_operation(true, Kind::plain, length);
    }
  });
  timed("atomics", atomics);
  timed("contended atomics", contended_atomics);
  timed("chains", chains);
  timed("memory polling", memory_polling);
  std::puts("ok");
  return 0;
}

}  // namespace shm_operations_stress
