// The shm provider with both ends in this process: operations, waiting, failures, many at once.
// What takes two processes is in shm_process_stress.cc.
#include <sys/stat.h>

#include <algorithm>

#include "shm_traffic.h"

using namespace fixture;

namespace {

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
  constexpr uint64_t kEach = 5000;
  Listener listener;
  Pair pair(listener, {}, {}), other(listener, {}, {});
  Memory word(pair.server->pd, 8);
  Memory results(pair.client->pd, 64);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 3; t++) {
    threads.emplace_back([&, t] {
      Send send = read_from(remote(word), 0, t, 0);
      send.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      send.compare_add = 1;
      for (uint64_t i = 0; i < kEach; i++) post_patiently(*pair.client, send, {results.sge(8 * t, 8)});
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

  // A completion that nobody polls keeps its entry.
  for (uint64_t i = 0; i < 64; i++) post(client, write_to(remote(target), 0, i), {source.sge(0, 8)});
  CHECK(try_post(client, write_to(remote(target), 0, 64), {source.sge(0, 8)}) == ENOMEM);
  client.expect(0);
  post(client, write_to(remote(target), 0, 64), {source.sge(0, 8)});
  for (uint64_t i = 1; i <= 64; i++) client.expect(i);
  // Unsignaled ones before it do not count.
  for (uint64_t i = 0; i < 1000; i++) post(client, write_to(remote(target), 0, i, 0), {source.sge(0, 8)});
  for (uint64_t i = 0; i < 64; i++) post(client, write_to(remote(target), 0, i), {source.sge(0, 8)});
  CHECK(try_post(client, write_to(remote(target), 0, 64), {source.sge(0, 8)}) == ENOMEM);
  for (uint64_t i = 0; i < 64; i++) client.expect(i);
}

// --- Waiting.

// SENDs wait for receives, in order, and everything behind them; other queue pairs do not.
void receiver_not_ready(bool sender_polls) {
  Listener listener;
  Pair pair(listener, {.depth = 64}, {.depth = 64}), other(listener, {}, {});
  End& client = *pair.client;
  End& server = *pair.server;
  constexpr size_t kMessage = 1000;
  Memory near(client.pd, 64 * kMessage), far(server.pd, 64 * kMessage), aside(client.pd, 64);
  Memory near2(other.client->pd, 64), far2(other.server->pd, 64);
  near.fill(1);
  for (uint64_t i = 0; i < 40; i++) {
    const size_t length = i % 2 ? kMessage : 10;
    Send send{.wr_id = i};
    if (i % 4 == 0) {
      std::memcpy(aside.data, near.data + i * kMessage, 10);
      send.flags |= IBV_SEND_INLINE;
      post(client, send, {aside.sge(0, 10)});
      std::memset(aside.data, 0xff, 10);
    } else {
      post(client, send, {near.sge(i * kMessage, length)});
    }
  }
  Send behind = write_to(remote(far), 63 * kMessage, 40);
  post(client, behind, {near.sge(63 * kMessage, kMessage)});
  ibv_wc wc;
  CHECK(ibv_poll_cq(client.cq, 1, &wc) == 0);
  CHECK(far.data[63 * kMessage] == 0);
  post(*other.client, write_to(remote(far2), 0, 1), {near2.sge(0, 8)});
  other.client->expect(1);
  int full = 0;
  for (uint64_t i = 41; full == 0; i++) full = try_post(client, write_to(remote(far), 0, i, 0), {});
  CHECK(full == ENOMEM);

  for (uint64_t i = 0; i < 40; i++) {
    post_receive(server, i, far.sge(i * kMessage, kMessage));
    if (sender_polls && i % 8 == 0) {
      const uint64_t oldest = client.completion().wr_id;
      CHECK(oldest == i / 8);
    }
  }
  for (uint64_t i = 0; i < 40; i++) {
    const size_t length = i % 2 ? kMessage : 10;
    CHECK(server.expect(i).byte_len == length);
    CHECK(std::memcmp(near.data + i * kMessage, far.data + i * kMessage, length) == 0);
  }
  for (uint64_t i = sender_polls ? 5 : 0; i <= 40; i++) client.expect(i);
  CHECK(std::memcmp(near.data + 63 * kMessage, far.data + 63 * kMessage, kMessage) == 0);

  // A disconnect flushes what still waits, in order.
  for (uint64_t i = 0; i < 10; i++) post(client, {.wr_id = i}, {near.sge(0, 10)});
  CHECK(server.id.id->disconnect() == 0);
  for (uint64_t i = 0; i < 10; i++) client.expect(i, IBV_WC_WR_FLUSH_ERR);
}

// A queue armed for solicited events sleeps through the others.
void solicited_events() {
  Listener listener;
  Pair pair(listener, {}, {.channel = true});
  End& server = *pair.server;
  Memory source(pair.client->pd, 8), target(server.pd, 64);
  const DataPathVerbs& verbs = *provider().data_path_verbs();
  const auto event_within = [&](int ms) {
    const auto deadline = Clock::now() + std::chrono::milliseconds(ms);
    while (Clock::now() < deadline) {
      pollfd waiting{server.channel->fd, POLLIN, 0};
      ::poll(&waiting, 1, 20);
      ibv_cq* ready = nullptr;
      void* ready_context = nullptr;
      if (verbs.get_cq_event(server.channel, &ready, &ready_context) == 0) {
        verbs.ack_cq_events(ready, 1);
        return true;
      }
    }
    return false;
  };
  CHECK(!event_within(30));
  for (uint64_t i = 0; i < 4; i++) post_receive(server, i, target.sge(8 * i, 8));
  CHECK(ibv_req_notify_cq(server.cq, 1) == 0);
  post(*pair.client, {.wr_id = 1}, {source.sge(0, 8)});
  CHECK(!event_within(60));
  post(*pair.client, {.wr_id = 2, .flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED}, {source.sge(0, 8)});
  CHECK(event_within(2000));
  server.expect(0);
  server.expect(1);
  CHECK(ibv_req_notify_cq(server.cq, 0) == 0);
  post(*pair.client, {.wr_id = 3}, {source.sge(0, 8)});
  CHECK(event_within(2000));
  server.expect(2);
  post(*pair.client, {.wr_id = 4}, {source.sge(0, 8)});  // not armed
  CHECK(!event_within(30));
  server.expect(3);
}

// A sleeper and a sender that pauses at random: no wake-up is lost.
void sleep_and_wake(int messages) {
  Listener listener;
  Pair pair(listener, {.channel = true}, {.channel = true});
  Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
  std::thread echo([&] {
    for (int i = 0; i < 8; i++) post_receive(*pair.server, 0, far.sge(0, 64));
    for (int i = 0; i < messages;) {
      if (pair.server->completion().opcode != IBV_WC_RECV) continue;
      i++;
      post_receive(*pair.server, 0, far.sge(0, 64));
      post(*pair.server, {.flags = 0}, {far.sge(0, 64)});
    }
  });
  for (int i = 0; i < 8; i++) post_receive(*pair.client, 0, near.sge(0, 64));
  unsigned random = 1;
  for (int i = 0; i < messages; i++) {
    post(*pair.client, {.flags = 0}, {near.sge(0, 64)});
    CHECK(pair.client->completion().opcode == IBV_WC_RECV);
    post_receive(*pair.client, 0, near.sge(0, 64));
    random = random * 1664525 + 1013904223;
    if (random >> 30 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random >> 24 & 0x3f));
    } else {
      for (volatile unsigned spin = random >> 20 & 0xfff; spin > 0;) spin = spin - 1;
    }
  }
  echo.join();
}

// --- Failures: who is told what.

void remote_access_errors() {
  enum class Fault { unknown_key, other_domain, no_right, past_end, before_start, wrap, deregistered };
  for (const Fault fault : {Fault::unknown_key, Fault::other_domain, Fault::no_right, Fault::past_end,
                            Fault::before_start, Fault::wrap, Fault::deregistered}) {
    for (const bool read : {true, false}) {
      Listener listener;
      Pair pair(listener, {}, {});
      End& client = *pair.client;
      End& server = *pair.server;
      Memory near(client.pd, 4096), far(server.pd, 4096), other(client.pd, 4096),
          shut(server.pd, 4096, IBV_ACCESS_LOCAL_WRITE), gone(server.pd, 4096);
      Send send = read ? read_from(remote(far), 0, 1) : write_to(remote(far), 0, 1);
      if (fault == Fault::unknown_key) send.remote_key ^= 1;
      if (fault == Fault::other_domain)
        send.remote_address = other.address(), send.remote_key = other.mr->rkey;
      if (fault == Fault::no_right) send.remote_address = shut.address(), send.remote_key = shut.mr->rkey;
      if (fault == Fault::past_end) send.remote_address += 4000;
      if (fault == Fault::before_start) send.remote_address -= 1;
      if (fault == Fault::wrap) send.remote_address = UINT64_MAX - 10;
      if (fault == Fault::deregistered) {
        send.remote_address = gone.address(), send.remote_key = gone.mr->rkey;
        gone.deregister();
      }
      post_receive(server, 9, far.sge(0, 10));
      post_receive(client, 8, near.sge(0, 10));
      send.flags = 0;  // an error completes also when it was not asked for
      post(client, send, {near.sge(0, 128)});
      try_post(client, write_to(remote(far), 0, 2), {near.sge(0, 128)});
      Completions done = pump(client, 3, server, 1);
      CHECK(done.server[0].wr_id == 9 && done.server[0].status == IBV_WC_WR_FLUSH_ERR);
      CHECK(done.client[0].wr_id == 1 && done.client[0].status == IBV_WC_REM_ACCESS_ERR);
      for (size_t i = 1; i < 3; i++) CHECK(done.client[i].status == IBV_WC_WR_FLUSH_ERR);
      CHECK(done.client[1].wr_id + done.client[2].wr_id == 2 + 8);
      CHECK(client.id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
      CHECK(server.id.events->expect(CmEvent::Type::disconnected).status == ECONNABORTED);
      // What is posted to a queue pair in error is flushed.
      post(client, write_to(remote(far), 0, 3), {near.sge(0, 1)});
      post_receive(client, 4, near.sge(0, 1));
      client.expect(3, IBV_WC_WR_FLUSH_ERR);
      client.expect(4, IBV_WC_WR_FLUSH_ERR);
      ibv_qp_attr attributes{};
      ibv_qp_init_attr init{};
      CHECK(provider().query_qp(client.qp, &attributes, IBV_QP_STATE, &init) == 0);
      CHECK(attributes.qp_state == IBV_QPS_ERR);
    }
  }
}

void receive_errors() {
  for (const size_t room : {10, 100, 1000}) {  // longer than the receive
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096);
    post_receive(*pair.server, 0, far.sge(0, 4096));
    post_receive(*pair.server, 1, far.sge(0, room));
    post_receive(*pair.server, 2, far.sge(0, 100));
    post_receive(*pair.client, 3, near.sge(0, 100));
    post(*pair.client, {.wr_id = 4, .flags = 0}, {near.sge(0, 2000)});
    post(*pair.client, {.wr_id = 5, .flags = 0}, {near.sge(0, room + 1)});
    const Completions done = pump(*pair.client, 2, *pair.server, 3);
    CHECK(done.server[0].wr_id == 0 && done.server[0].status == IBV_WC_SUCCESS);
    CHECK(done.server[1].wr_id == 1 && done.server[1].status == IBV_WC_LOC_LEN_ERR);
    CHECK(done.server[2].wr_id == 2 && done.server[2].status == IBV_WC_WR_FLUSH_ERR);
    CHECK(done.client[0].wr_id == 5 && done.client[0].status == IBV_WC_REM_INV_REQ_ERR);
    CHECK(done.client[1].wr_id == 3 && done.client[1].status == IBV_WC_WR_FLUSH_ERR);
  }
  for (const size_t length : {size_t{100}, size_t{4000}}) {  // memory that is not to be written
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096, 0);
    post_receive(*pair.server, 1, far.sge(0, length));
    post(*pair.client, {.wr_id = 2, .flags = 0}, {near.sge(0, length)});
    CHECK(pair.server->completion().status == IBV_WC_LOC_PROT_ERR);
    pair.client->id.events->expect(CmEvent::Type::disconnected);
    pair.server->id.events->expect(CmEvent::Type::disconnected);
  }
}

void local_errors() {
  Listener listener;
  {
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 2000), far(pair.server->pd, 2000);
    ibv_sge bad = near.sge(0, 100);
    bad.lkey ^= 1;
    post(*pair.client, write_to(remote(far), 0, 1), {near.sge(0, 10)});
    post(*pair.client, write_to(remote(far), 0, 2), {bad});
    try_post(*pair.client, write_to(remote(far), 0, 3), {near.sge(0, 10)});
    pair.client->expect(1);
    pair.client->expect(2, IBV_WC_LOC_PROT_ERR);
    pair.client->expect(3, IBV_WC_WR_FLUSH_ERR);
    CHECK(pair.client->id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
  }
  Pair pair(listener, {}, {});
  Memory near(pair.client->pd, 4096);
  CHECK(try_post(*pair.client, {.flags = IBV_SEND_INLINE}, {near.sge(0, 4096)}) == EINVAL);
  CHECK(try_post(*pair.client, {.opcode = IBV_WR_LOCAL_INV}, {near.sge(0, 8)}) == EOPNOTSUPP);
  CHECK(try_post(*pair.client, {}, std::vector<ibv_sge>(5, near.sge(0, 1))) == EINVAL);
  errno = 0;
  CHECK(provider().reg_mr(pair.client->pd, near.data, 10, IBV_ACCESS_REMOTE_WRITE) == nullptr &&
        errno == EINVAL);
  CHECK(provider().dealloc_pd(pair.client->pd) == EBUSY);
  CHECK(provider().destroy_cq(pair.client->cq) == EBUSY);
}

void disconnects() {
  Listener listener;
  for (const bool destroy : {false, true}) {
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096);
    post_receive(*pair.client, 1, near.sge(0, 1));
    post_receive(*pair.server, 2, far.sge(0, 1));
    post_receive(*pair.server, 3, far.sge(0, 1));
    post(*pair.client, {.wr_id = 4, .flags = 0}, {near.sge(0, 1)});
    if (destroy) {
      pair.client->destroy_qp();
    } else {
      CHECK(pair.client->id.id->disconnect() == 0);
      pair.client->expect(1, IBV_WC_WR_FLUSH_ERR);
    }
    pair.server->expect(2);  // what had arrived is delivered
    pair.server->expect(3, IBV_WC_WR_FLUSH_ERR);
    CHECK(pair.client->id.events->expect(CmEvent::Type::disconnected).status == 0);
    CHECK(pair.server->id.events->expect(CmEvent::Type::disconnected).status == 0);
    CHECK(pair.client->id.id->disconnect() == 0);
  }
}

void connecting_fails() {
  std::string path;
  {
    Listener listener;
    path = listener.path;
    struct stat status;
    CHECK(stat(path.c_str(), &status) == 0 && (status.st_mode & 07777) == 0600);
    // Somebody lives there.
    Id second;
    const sockaddr_un address = place(path);
    CHECK(second.id->listen(generic(address), sizeof address, 1) == EADDRINUSE);
    // Rejected, with a reason.
    auto end = resolve(path, {});
    ConnectParameters parameters;
    parameters.qp = end->qp;
    parameters.private_data.assign(513, 1);
    CHECK(end->id.id->connect(parameters) == EINVAL);
    parameters.private_data.resize(512);
    CHECK(end->id.id->connect(parameters) == 0);
    CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
    CHECK(request.private_data.size() == 512);
    CHECK(request.request->reject({4, 5}) == 0);
    const CmEvent rejected = end->id.events->expect(CmEvent::Type::rejected);
    CHECK(rejected.private_data == std::vector<uint8_t>({4, 5}));
    request.request->close();
  }
  CHECK(access(path.c_str(), F_OK) != 0);
  {
    auto end = resolve(path, {});
    connect(*end);
    CHECK(end->id.events->expect(CmEvent::Type::connect_failed).status == ECONNREFUSED);
  }
  {  // a socket whose owner is dead is replaced; a file is not
    const int stale = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const sockaddr_un address = place(path);
    CHECK(bind(stale, generic(address), sizeof address) == 0 && close(stale) == 0);
    { Listener again(path); }
    CHECK(access(path.c_str(), F_OK) != 0);
    const int file = open(path.c_str(), O_CREAT | O_WRONLY, 0600);
    CHECK(file >= 0 && close(file) == 0);
    Id id;
    CHECK(id.id->listen(generic(address), sizeof address, 1) == EADDRINUSE);
    CHECK(unlink(path.c_str()) == 0);
  }
  Id wrong;
  sockaddr internet{AF_INET, {}};
  CHECK(wrong.id->resolve(&internet, sizeof internet, 0) == EAFNOSUPPORT);
  sockaddr_un abstract = place("");
  CHECK(wrong.id->resolve(generic(abstract), sizeof abstract, 0) == EINVAL);

  // The initiator gives up before it is answered.
  Listener listener;
  auto given_up = resolve(listener.path, {});
  connect(*given_up);
  CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
  given_up.reset();
  End server(Id(std::move(request.request)), {});
  accept(server);
  CHECK(server.id.events->next().type == CmEvent::Type::connect_failed);

  // Strangers that say nothing or nonsense do no harm.
  const sockaddr_un address = listener.address();
  std::vector<int> strangers;
  for (int i = 0; i < 20; i++) {
    strangers.push_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    CHECK(::connect(strangers.back(), generic(address), sizeof address) == 0);
    if (i % 2) CHECK(send(strangers.back(), "GET / HTTP/1.1", 14, 0) == 14);
  }
  Pair pair(listener, {}, {});
  for (const int stranger : strangers) close(stranger);
}

// --- Memory that comes and goes.

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
  const auto deadline = Clock::now() + std::chrono::seconds(5);
  Holdings after = holdings();
  while (after.mappings != before.mappings || after.descriptors != before.descriptors) {
    CHECK(Clock::now() < deadline);  // the peer unmaps when it hears of it
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    after = holdings();
  }
}

// Regions come and go while a peer writes to them: each WRITE lands before dereg_mr returns, or fails.
void deregister_under_fire(Kind kind) {
  for (int round = 0; round < 20; round++) {
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 1 << 16);
    auto far = std::make_unique<Memory>(pair.server->pd, 1 << 16, kAllAccess, kind);
    const Send send = write_to(remote(*far), 0, 1);
    std::thread remover([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(500 + 100 * round));
      far->deregister();
      std::memset(far->data, 0xaa, far->size);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      CHECK(std::all_of(far->data, far->data + far->size, [](uint8_t byte) { return byte == 0xaa; }));
      far.reset();
    });
    while (true) {
      const int error = try_post(*pair.client, send, {near.sge(0, 1 << 16)});
      CHECK(error == 0 || error == ENOMEM);
      ibv_wc wc;
      if (ibv_poll_cq(pair.client->cq, 1, &wc) != 1 || wc.status == IBV_WC_SUCCESS) continue;
      CHECK(wc.status == IBV_WC_REM_ACCESS_ERR);
      break;
    }
    remover.join();
  }
}

// When disconnect() has returned, the peer writes nothing more.
void disconnect_under_fire() {
  for (int round = 0; round < 20; round++) {
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 1 << 16), far(pair.server->pd, 1 << 16);
    std::atomic<bool> stop{false};
    std::thread writer([&] {
      ibv_wc wc;
      while (!stop) {
        try_post(*pair.client, write_to(remote(far), 0, 1), {near.sge(0, 1 << 16)});
        ibv_poll_cq(pair.client->cq, 1, &wc);
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    CHECK(pair.server->id.id->disconnect() == 0);
    std::memset(far.data, 0xaa, far.size);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    CHECK(std::all_of(far.data, far.data + far.size, [](uint8_t byte) { return byte == 0xaa; }));
    stop = true;
    writer.join();
  }
}

// Memory polling: the end of a WRITE is seen last.
void memory_polling() {
  Listener listener;
  Pair pair(listener, {}, {});
  constexpr size_t kLength = 264;
  Memory near(pair.client->pd, kLength), far(pair.server->pd, kLength);
  const std::atomic_ref<uint64_t> last(*reinterpret_cast<uint64_t*>(far.data + kLength - 8));
  std::atomic<uint64_t> seen{0};
  std::thread reader([&] {
    for (uint64_t round = 1; round <= 20'000; round++) {
      while (last.load(std::memory_order_acquire) != round) std::this_thread::yield();
      for (size_t at = 0; at < kLength; at += 8) {
        uint64_t word;
        std::memcpy(&word, far.data + at, 8);
        CHECK(word == round);
      }
      seen.store(round, std::memory_order_release);
    }
  });
  for (uint64_t round = 1; round <= 20'000; round++) {
    for (size_t at = 0; at < kLength; at += 8) std::memcpy(near.data + at, &round, 8);
    post(*pair.client, write_to(remote(far), 0, round, 0), {near.sge(0, kLength)});
    while (seen.load(std::memory_order_acquire) != round) std::this_thread::yield();
  }
  reader.join();
}

// --- Many at once.

void connect_and_disconnect(int threads, int each) {
  std::vector<std::thread> running;
  for (int t = 0; t < threads; t++) {
    running.emplace_back([=] {
      Listener listener;
      for (int i = 0; i < each; i++) {
        Pair pair(listener, {.channel = i % 3 == 0, .depth = 8}, {.channel = i % 5 == 0, .depth = 8});
        Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
        near.fill(static_cast<uint64_t>(i));
        post_receive(*pair.server, 1, far.sge(0, 64));
        post(*pair.client, {.wr_id = 2}, {near.sge(0, 64)});
        pump(*pair.client, 1, *pair.server, 1);
        CHECK(same(near, far, 64));
        if (i % 4 == 0) CHECK(pair.client->id.id->disconnect() == 0);
        if (i % 4 == 1) pair.server->destroy_qp();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
}

// Many queue pairs on one completion queue, more than one poll looks at.
void shared_queue(bool channel) {
  constexpr size_t kPairs = 70;
  Listener listener;
  ibv_comp_channel* channels[2] = {};
  ibv_cq* queues[2];
  for (int side = 0; side < 2; side++) {
    if (channel) channels[side] = provider().create_comp_channel(context());
    queues[side] = provider().create_cq(context(), 4096, nullptr, channels[side], Progress::manual);
    CHECK(queues[side] != nullptr);
  }
  {
    std::vector<std::unique_ptr<Pair>> pairs;
    std::vector<std::unique_ptr<Memory>> near, far;
    const auto add = [&](uint64_t seed) {
      pairs.push_back(std::make_unique<Pair>(listener, Options{.depth = 32, .cq = queues[0]},
                                             Options{.depth = 32, .cq = queues[1]}));
      near.push_back(std::make_unique<Memory>(pairs.back()->client->pd, 20'000));
      far.push_back(std::make_unique<Memory>(pairs.back()->server->pd, 20'000));
      near.back()->fill(seed);
    };
    for (size_t i = 0; i < kPairs; i++) add(i);
    for (int round = 0; round < 20; round++) {
      const size_t length = static_cast<size_t>(round) * 40;
      for (size_t i = 0; i < kPairs; i++) {
        post_receive(*pairs[i]->server, i, far[i]->sge(0, 20'000));
        post(*pairs[i]->client, {.wr_id = i}, {near[i]->sge(0, length)});
      }
      pump(*pairs[0]->client, kPairs, *pairs[0]->server, kPairs);
      for (size_t i = 0; i < kPairs; i++) CHECK(same(*near[i], *far[i], length));
      if (round % 5 == 4) {  // some go away while others stay
        const long gone = round / 5;
        near.erase(near.begin() + gone);
        far.erase(far.begin() + gone);
        pairs.erase(pairs.begin() + gone);
        add(static_cast<uint64_t>(gone));
      }
    }
    if (channel) {  // the quietest of them wakes a sleeper
      for (size_t i = 0; i < kPairs; i += 23) {
        CHECK(ibv_req_notify_cq(queues[1], 0) == 0);
        ibv_wc wc;
        CHECK(ibv_poll_cq(queues[1], 1, &wc) == 0);
        post_receive(*pairs[i]->server, i, far[i]->sge(0, 20'000));
        post(*pairs[i]->client, {.wr_id = i, .flags = 0}, {near[i]->sge(0, 100)});
        pollfd waiting{channels[1]->fd, POLLIN, 0};
        CHECK(::poll(&waiting, 1, 2000) == 1);
        ibv_cq* ready = nullptr;
        void* ready_context = nullptr;
        CHECK(provider().data_path_verbs()->get_cq_event(channels[1], &ready, &ready_context) == 0);
        provider().data_path_verbs()->ack_cq_events(ready, 1);
        CHECK(pairs[i]->server->completion().wr_id == i);
      }
    }
  }
  for (int side = 0; side < 2; side++) {
    CHECK(provider().destroy_cq(queues[side]) == 0);
    if (channel) CHECK(provider().destroy_comp_channel(channels[side]) == 0);
  }
}

// Several threads post on one queue pair while others poll its queue.
void many_posters() {
  constexpr int kPosters = 3;
  constexpr uint64_t kEach = 5000;
  Listener listener;
  Pair pair(listener, {.depth = 64}, {});
  Memory near(pair.client->pd, kPosters * 64), far(pair.server->pd, kPosters * 64);
  std::atomic<uint64_t> completed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kPosters; t++) {
    threads.emplace_back([&, t] {
      const size_t at = static_cast<size_t>(t) * 64;
      for (uint64_t i = 0; i < kEach; i++) {
        post_patiently(*pair.client,
                       i % 3 == 2 ? read_from(remote(far), at, i) : write_to(remote(far), at, i),
                       {near.sge(at, 64)});
      }
    });
  }
  for (int t = 0; t < 2; t++) {
    threads.emplace_back([&] {
      ibv_wc wc[8];
      while (completed < kPosters * kEach) {
        const int count = ibv_poll_cq(pair.client->cq, 8, wc);
        CHECK(count >= 0);
        for (int i = 0; i < count; i++) CHECK(wc[i].status == IBV_WC_SUCCESS);
        completed += static_cast<uint64_t>(count);
        if (count == 0) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Messages in both directions at once through queues that are short, so that senders wait all the time.
void two_way_stream() {
  constexpr uint64_t kMessages = 20'000;
  Listener listener;
  Pair pair(listener, {.depth = 16}, {.depth = 16});
  const auto run = [](End& end) {
    Memory out(end.pd, 16 * 256), in(end.pd, 16 * 256);
    uint64_t sent = 0, completed = 0, received = 0;
    for (uint64_t i = 0; i < 8; i++) post_receive(end, i, in.sge(i * 256, 256));
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    while (completed < kMessages || received < kMessages) {
      while (sent < kMessages && sent - completed < 16) {
        const size_t length = 8 + sent * 13 % 240;
        uint8_t* at = out.data + sent % 16 * 256;
        std::memcpy(at, &sent, 8);
        std::memset(at + 8, static_cast<int>(sent), length - 8);
        if (try_post(end, {.wr_id = sent}, {out.sge(sent % 16 * 256, length)}) != 0) break;
        sent++;
      }
      ibv_wc wc;
      if (ibv_poll_cq(end.cq, 1, &wc) == 0) {
        CHECK(Clock::now() < deadline);
        std::this_thread::yield();
        continue;
      }
      CHECK(wc.status == IBV_WC_SUCCESS);
      if (wc.opcode == IBV_WC_SEND) {
        CHECK(wc.wr_id == completed++);
        continue;
      }
      const uint8_t* at = in.data + wc.wr_id * 256;
      CHECK(std::memcmp(at, &received, 8) == 0 && wc.byte_len == 8 + received * 13 % 240);
      CHECK(std::all_of(at + 8, at + wc.byte_len, [&](uint8_t b) { return b == (received & 0xff); }));
      received++;
      if (received + 8 <= kMessages) post_receive(end, wc.wr_id, in.sge(wc.wr_id * 256, 256));
    }
    // The other side may still be reading these.
    end.id.events->empty();
  };
  std::thread other([&] { run(*pair.server); });
  run(*pair.client);
  other.join();
}

}  // namespace

int main() {
  timed("every operation", [] {
    for (const size_t length : {0, 1, 3, 64, 111, 112, 113, 511, 513, 4096, 65409, 1 << 20, 9'000'001}) {
      every_operation(false, Kind::shared, length);
      every_operation(true, Kind::plain, length);
    }
  });
  timed("atomics", atomics);
  timed("contended atomics", contended_atomics);
  timed("chains", chains);
  timed("receiver not ready, sender polls", [] { receiver_not_ready(true); });
  timed("receiver not ready, sender sleeps", [] { receiver_not_ready(false); });
  timed("solicited events", solicited_events);
  timed("sleep and wake", [] { sleep_and_wake(5000); });
  timed("remote access errors", remote_access_errors);
  timed("receive errors", receive_errors);
  timed("local errors", local_errors);
  timed("disconnects", disconnects);
  timed("connecting fails", connecting_fails);
  timed("regions after connect", regions_after_connect);
  timed("deregister under fire", [] { deregister_under_fire(Kind::shared); });
  timed("deregister under fire, plain", [] { deregister_under_fire(Kind::plain); });
  timed("disconnect under fire", disconnect_under_fire);
  timed("memory polling", memory_polling);
  timed("shared queue", [] { shared_queue(false); });
  timed("shared queue and channel", [] { shared_queue(true); });
  timed("many posters", many_posters);
  timed("two-way stream", two_way_stream);
  const Holdings before = holdings();
  timed("1,000 connections", [] { connect_and_disconnect(4, 250); });
  const Holdings after = holdings();
  CHECK(after.descriptors == before.descriptors && after.mappings == before.mappings);
  std::puts("ok");
}
