// The iwarp provider from connection to data to failure, over loopback.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <functional>

#include "iwarp_fixture.h"

using namespace fixture;

namespace {

// Polls both ends until each has given its number of completions, so that manual progress on one side
// never waits for the other.
struct Completions {
  std::vector<ibv_wc> client, server;
};
Completions pump(End& client, size_t from_client, End& server, size_t from_server) {
  Completions done;
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (done.client.size() < from_client || done.server.size() < from_server) {
    ibv_wc wc;
    if (ibv_poll_cq(client.cq, 1, &wc) == 1) done.client.push_back(wc);
    if (ibv_poll_cq(server.cq, 1, &wc) == 1) done.server.push_back(wc);
    CHECK(Clock::now() < deadline);
  }
  CHECK(done.client.size() == from_client && done.server.size() == from_server);
  return done;
}

// Every operation, byte for byte, in one length.
void every_operation(Progress client_mode, Progress server_mode, bool channels, size_t length) {
  Listener listener;
  Pair pair(listener, {.progress = client_mode, .channel = channels},
            {.progress = server_mode, .channel = channels}, {1, 2, 3});
  End& client = *pair.client;
  End& server = *pair.server;
  Memory source(client.pd, length + 64), target(server.pd, length + 64), back(client.pd, length + 64);
  const auto same = [&](const Memory& one, const Memory& other) {
    return std::memcmp(one.bytes.data(), other.bytes.data(), length) == 0;
  };
  const size_t half = length / 2;

  source.fill(length);
  post_receive(server, 10, target.sge(0, length));
  post(client, {.wr_id = 1}, {source.sge(0, half), source.sge(half, length - half)});
  Completions done = pump(client, 1, server, 1);
  CHECK(done.client[0].wr_id == 1 && done.client[0].status == IBV_WC_SUCCESS);
  CHECK(done.client[0].opcode == IBV_WC_SEND && done.client[0].qp_num == client.qp->qp_num);
  CHECK(done.server[0].wr_id == 10 && done.server[0].status == IBV_WC_SUCCESS);
  CHECK(done.server[0].opcode == IBV_WC_RECV && done.server[0].byte_len == length);
  CHECK(done.server[0].wc_flags == 0 && same(source, target));

  source.fill(length + 1);
  post_receive(server, 11, target.sge(0, length));
  post(client, {.wr_id = 2, .opcode = IBV_WR_SEND_WITH_IMM, .immediate = 0xdeadbeef},
       {source.sge(0, length)});
  done = pump(client, 1, server, 1);
  CHECK(done.server[0].opcode == IBV_WC_RECV && done.server[0].byte_len == length);
  CHECK((done.server[0].wc_flags & IBV_WC_WITH_IMM) && ntohl(done.server[0].imm_data) == 0xdeadbeef);
  CHECK(same(source, target));

  source.fill(length + 2);
  post(client,
       {.wr_id = 3,
        .opcode = IBV_WR_RDMA_WRITE,
        .remote_address = target.address(),
        .remote_key = target.mr->rkey},
       {source.sge(0, length)});
  post_receive(server, 12, target.sge(0, 0));
  post(client,
       {.wr_id = 4,
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .remote_address = target.address(half),
        .remote_key = target.mr->rkey,
        .immediate = 5},
       {source.sge(half, length - half)});
  done = pump(client, 2, server, 1);
  CHECK(done.client[0].opcode == IBV_WC_RDMA_WRITE && done.client[1].opcode == IBV_WC_RDMA_WRITE);
  CHECK(done.server[0].opcode == IBV_WC_RECV_RDMA_WITH_IMM && done.server[0].wr_id == 12);
  CHECK(ntohl(done.server[0].imm_data) == 5 && done.server[0].byte_len == length - half);
  CHECK(same(source, target));

  target.fill(length + 3);
  post(client,
       {.wr_id = 5,
        .opcode = IBV_WR_RDMA_READ,
        .remote_address = target.address(),
        .remote_key = target.mr->rkey},
       {back.sge(0, half), back.sge(half, length - half)});
  done = pump(client, 1, server, 0);
  CHECK(done.client[0].opcode == IBV_WC_RDMA_READ && done.client[0].byte_len == length);
  CHECK(done.client[0].status == IBV_WC_SUCCESS && same(back, target));

  // The responder of the connection may speak first too.
  back.fill(1);
  post_receive(client, 13, back.sge(0, length));
  post(server, {.wr_id = 6}, {target.sge(0, length)});
  done = pump(client, 1, server, 1);
  CHECK(done.client[0].byte_len == length && same(back, target));
}

Send write_to(const Memory& memory, size_t offset, uint64_t wr_id, int flags = IBV_SEND_SIGNALED) {
  return {.wr_id = wr_id,
          .opcode = IBV_WR_RDMA_WRITE,
          .flags = flags,
          .remote_address = memory.address(offset),
          .remote_key = memory.mr->rkey};
}
Send read_from(const Memory& memory, size_t offset, uint64_t wr_id, int flags = IBV_SEND_SIGNALED) {
  Send send = write_to(memory, offset, wr_id, flags);
  send.opcode = IBV_WR_RDMA_READ;
  return send;
}

// Both in one doorbell, so that the peer's answer to the first finds the second outstanding.
void post_two(End& end, const Send& first, const Send& second, ibv_sge sge) {
  ibv_send_wr requests[2] = {}, *bad = nullptr;
  for (int i = 0; i < 2; i++) {
    const Send& send = i == 0 ? first : second;
    requests[i].wr_id = send.wr_id;
    requests[i].sg_list = &sge;
    requests[i].num_sge = 1;
    requests[i].opcode = send.opcode;
    requests[i].send_flags = static_cast<unsigned>(send.flags);
    requests[i].wr.rdma.remote_addr = send.remote_address;
    requests[i].wr.rdma.rkey = send.remote_key;
  }
  requests[0].next = &requests[1];
  CHECK(ibv_post_send(end.qp, requests, &bad) == 0);
}

// One doorbell for a chain; only signaled requests complete, in order; a full queue says ENOMEM.
void chains(Progress progress) {
  Listener listener;
  Pair pair(listener, {.progress = progress, .depth = 64, .reads = 2}, {.progress = progress, .reads = 2});
  End& client = *pair.client;
  Memory source(client.pd, 64 * 100), target(pair.server->pd, 64 * 100), back(client.pd, 64 * 100);
  source.fill(5);
  std::vector<ibv_send_wr> chain(64);
  std::vector<ibv_sge> sges(64);
  for (size_t i = 0; i < chain.size(); i++) {
    const bool read = i % 2 == 1;  // 32 READs with two allowed at once: the rest waits its turn
    sges[i] = (read ? back : source).sge((i / 2) * 100, 100);
    chain[i] = {};
    chain[i].wr_id = i;
    chain[i].next = i + 1 < chain.size() ? &chain[i + 1] : nullptr;
    chain[i].sg_list = &sges[i];
    chain[i].num_sge = 1;
    chain[i].opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    chain[i].send_flags = (read ? 0 : IBV_SEND_INLINE) | (i % 16 == 15 ? IBV_SEND_SIGNALED : 0);
    chain[i].wr.rdma.remote_addr = target.address((i / 2) * 100);
    chain[i].wr.rdma.rkey = target.mr->rkey;
  }
  ibv_send_wr* bad = nullptr;
  CHECK(ibv_post_send(client.qp, chain.data(), &bad) == 0);
  const Completions done = pump(client, 4, *pair.server, 0);
  for (size_t i = 0; i < 4; i++) CHECK(done.client[i].wr_id == 16 * i + 15);
  CHECK(std::memcmp(source.bytes.data(), back.bytes.data(), 32 * 100) == 0);

  // The READs cannot all be on their way, so the queue fills up.
  for (ibv_send_wr& request : chain) {
    request.opcode = IBV_WR_RDMA_READ;
    request.send_flags = 0;
  }
  Listener idle_listener;
  Pair idle(idle_listener, {.depth = 8, .reads = 2}, {.reads = 2});
  Memory idle_target(idle.server->pd, 100), idle_back(idle.client->pd, 100);
  for (int i = 0; i < 8; i++)
    CHECK(try_post(*idle.client, read_from(idle_target, 0, 1, 0), {idle_back.sge(0, 100)}) == 0);
  CHECK(try_post(*idle.client, read_from(idle_target, 0, 1, 0), {idle_back.sge(0, 100)}) == ENOMEM);
}

// A work queue entry is free again when its completion has been polled, so completion queues that are as
// large as the work queues cannot overflow; and what was never signaled never fills the queue.
void work_queue_entries() {
  Listener listener;
  Pair pair(listener, {.depth = 8}, {.progress = Progress::automatic});
  Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
  for (int i = 0; i < 1000; i++) {
    int error;
    while ((error = try_post(*pair.client, write_to(far, 0, 0, IBV_SEND_INLINE), {near.sge(0, 64)})) ==
           ENOMEM) {
      ibv_wc wc;
      CHECK(ibv_poll_cq(pair.client->cq, 1, &wc) == 0);  // moves a backlog, if there is one
    }
    CHECK(error == 0);
  }
  ibv_wc wc;
  for (uint64_t i = 0; i < 8; i++) post(*pair.client, write_to(far, 0, i), {near.sge(0, 64)});
  CHECK(try_post(*pair.client, write_to(far, 0, 8), {near.sge(0, 64)}) == ENOMEM);
  pair.client->expect(0);
  post(*pair.client, write_to(far, 0, 8), {near.sge(0, 64)});
  CHECK(try_post(*pair.client, write_to(far, 0, 9), {near.sge(0, 64)}) == ENOMEM);
  pair.client->destroy_qp();  // takes its completions with it
  CHECK(ibv_poll_cq(pair.client->cq, 1, &wc) == 0);
}

// A fenced WRITE waits for the READ before it, so the READ cannot see it.
void fence() {
  Listener listener;
  Pair pair(listener, {}, {.progress = Progress::automatic});
  constexpr size_t kLength = 1 << 20;
  Memory ones(pair.client->pd, kLength), back(pair.client->pd, kLength), target(pair.server->pd, kLength);
  std::fill(ones.bytes.begin(), ones.bytes.end(), 1);
  for (int i = 0; i < 20; i++) {
    std::fill(target.bytes.begin(), target.bytes.end(), 0);
    post(*pair.client, read_from(target, 0, 1), {back.sge(0, kLength)});
    post(*pair.client, write_to(target, 0, 2, IBV_SEND_SIGNALED | IBV_SEND_FENCE), {ones.sge(0, kLength)});
    pair.client->expect(1);
    pair.client->expect(2);
    CHECK(std::all_of(back.bytes.begin(), back.bytes.end(), [](uint8_t byte) { return byte == 0; }));
    post(*pair.client, read_from(target, 0, 3), {back.sge(0, kLength)});
    pair.client->expect(3);
    CHECK(back.bytes == ones.bytes);
  }
}

// A queue armed for solicited events sleeps through the others; get_cq_event moves the data.
void solicited_events(Progress progress) {
  Listener listener;
  Pair pair(listener, {}, {.progress = progress, .channel = true});
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
  CHECK(!event_within(100));
  post(*pair.client, {.wr_id = 2, .flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED}, {source.sge(0, 8)});
  CHECK(event_within(2000));
  server.expect(0);
  server.expect(1);
  CHECK(ibv_req_notify_cq(server.cq, 0) == 0);
  post(*pair.client, {.wr_id = 3}, {source.sge(0, 8)});
  CHECK(event_within(2000));
  server.expect(2);
  post(*pair.client, {.wr_id = 4}, {source.sge(0, 8)});  // not armed
  CHECK(!event_within(50));
  server.expect(3);
}

// --- Failures: who is told what.

void remote_access_errors(Progress progress) {
  enum class Fault { unknown_key, other_domain, no_right, past_end, before_start, wrap };
  for (const Fault fault : {Fault::unknown_key, Fault::other_domain, Fault::no_right, Fault::past_end,
                            Fault::before_start, Fault::wrap}) {
    for (const bool read : {true, false}) {
      Listener listener;
      Pair pair(listener, {.progress = progress}, {.progress = progress});
      End& client = *pair.client;
      End& server = *pair.server;
      Memory near(client.pd, 4096), far(server.pd, 4096), other(client.pd, 4096), shut(server.pd, 4096, 0);
      Send send = read ? read_from(far, 0, 1) : write_to(far, 0, 1);
      if (fault == Fault::unknown_key) send.remote_key ^= 1;
      if (fault == Fault::other_domain) send = read ? read_from(other, 0, 1) : write_to(other, 0, 1);
      if (fault == Fault::no_right) send = read ? read_from(shut, 0, 1) : write_to(shut, 0, 1);
      if (fault == Fault::past_end) send.remote_address += 4000;
      if (fault == Fault::before_start) send.remote_address -= 1;
      if (fault == Fault::wrap) send.remote_address = UINT64_MAX - 10;
      post_receive(server, 9, far.sge(0, 10));
      post_receive(client, 8, near.sge(0, 10));
      // A WRITE completes when it is sent, so it is the READ behind it that is outstanding.
      post(client, read_from(far, 0, 0), {near.sge(0, 1)});
      pump(client, 1, server, 0);
      if (read) {
        post(client, send, {near.sge(0, 128)});
      } else {
        send.flags = 0;
        post_two(client, send, read_from(far, 0, 1), near.sge(0, 128));
      }
      try_post(client, write_to(far, 0, 2), {near.sge(0, 128)});
      Completions done = pump(client, 3, server, 1);
      CHECK(done.server[0].wr_id == 9 && done.server[0].status == IBV_WC_WR_FLUSH_ERR);
      CHECK(done.client[0].wr_id == 1 && done.client[0].status == IBV_WC_REM_ACCESS_ERR);
      for (size_t i = 1; i < 3; i++) CHECK(done.client[i].status == IBV_WC_WR_FLUSH_ERR);
      CHECK(done.client[1].wr_id + done.client[2].wr_id == 2 + 8);
      CHECK(client.id.events->expect(CmEvent::Type::disconnected).status == ECONNABORTED);
      CHECK(server.id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
      // What is posted to a queue pair in error is flushed.
      post(client, write_to(far, 0, 3), {near.sge(0, 1)});
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
  {  // longer than the receive
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096);
    post_receive(*pair.server, 1, far.sge(0, 100));
    post_receive(*pair.server, 2, far.sge(0, 100));
    post_receive(*pair.client, 3, near.sge(0, 100));
    post(*pair.client, {.wr_id = 4}, {near.sge(0, 101)});
    const Completions done = pump(*pair.client, 2, *pair.server, 2);
    CHECK(done.server[0].wr_id == 1 && done.server[0].status == IBV_WC_LOC_LEN_ERR);
    CHECK(done.server[1].wr_id == 2 && done.server[1].status == IBV_WC_WR_FLUSH_ERR);
    CHECK(done.client[1].wr_id == 3 && done.client[1].status == IBV_WC_WR_FLUSH_ERR);
  }
  {  // no receive: iWARP knows no "not ready", the connection ends
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096);
    post_two(*pair.client, {.wr_id = 1, .flags = 0}, read_from(far, 0, 2), near.sge(0, 100));
    const Completions done = pump(*pair.client, 1, *pair.server, 0);
    CHECK(done.client[0].wr_id == 2 && done.client[0].status == IBV_WC_RNR_RETRY_EXC_ERR);
    CHECK(pair.server->id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
  }
  {  // a receive whose memory is not to be written
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096, 0);
    post_receive(*pair.server, 1, far.sge(0, 100));
    post(*pair.client, {.wr_id = 2, .flags = 0}, {near.sge(0, 100)});
    const Completions done = pump(*pair.client, 0, *pair.server, 1);
    CHECK(done.server[0].status == IBV_WC_LOC_PROT_ERR);
  }
}

void local_errors() {
  for (const size_t length : {size_t{100}, size_t{100'000}}) {
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 200'000), far(pair.server->pd, 200'000);
    ibv_sge bad = near.sge(0, length);
    bad.lkey ^= 1;
    post(*pair.client, write_to(far, 0, 1), {near.sge(0, 10)});
    post(*pair.client, write_to(far, 0, 2), {bad});
    try_post(*pair.client, write_to(far, 0, 3), {near.sge(0, 10)});
    const Completions done = pump(*pair.client, 3, *pair.server, 0);
    CHECK(done.client[0].wr_id == 1 && done.client[0].status == IBV_WC_SUCCESS);
    CHECK(done.client[1].wr_id == 2 && done.client[1].status == IBV_WC_LOC_PROT_ERR);
    CHECK(done.client[2].wr_id == 3 && done.client[2].status == IBV_WC_WR_FLUSH_ERR);
    pump(*pair.client, 0, *pair.server, 0);
    CHECK(pair.client->id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
  }
  Listener listener;
  Pair pair(listener, {}, {});
  Memory near(pair.client->pd, 4096);
  CHECK(try_post(*pair.client, {.flags = IBV_SEND_INLINE}, {near.sge(0, 4096)}) == EINVAL);
  CHECK(try_post(*pair.client, {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD}, {near.sge(0, 8)}) == EOPNOTSUPP);
  CHECK(try_post(*pair.client, {}, std::vector<ibv_sge>(5, near.sge(0, 1))) == EINVAL);
  errno = 0;
  CHECK(provider().reg_mr(pair.client->pd, near.bytes.data(), 10, IBV_ACCESS_REMOTE_WRITE) == nullptr &&
        errno == EINVAL);
  CHECK(provider().dealloc_pd(pair.client->pd) == EBUSY);
  CHECK(provider().destroy_cq(pair.client->cq) == EBUSY);
}

void disconnects(Progress progress) {
  Listener listener;
  for (const bool destroy : {false, true}) {
    Pair pair(listener, {.progress = progress}, {.progress = progress});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096);
    post_receive(*pair.client, 1, near.sge(0, 1));
    post_receive(*pair.server, 2, far.sge(0, 1));
    if (destroy) {
      pair.client->destroy_qp();
    } else {
      CHECK(pair.client->id.id->disconnect() == 0);
      pair.client->expect(1, IBV_WC_WR_FLUSH_ERR);
    }
    pair.server->expect(2, IBV_WC_WR_FLUSH_ERR);
    CHECK(pair.client->id.events->expect(CmEvent::Type::disconnected).status == 0);
    CHECK(pair.server->id.events->expect(CmEvent::Type::disconnected).status == 0);
    CHECK(pair.client->id.id->disconnect() == 0);
  }
}

// The connection goes away while a large message is on its way.
void cut_in_the_middle(Progress progress) {
  constexpr size_t kLength = 64 << 20;
  Listener listener;
  Pair pair(listener, {.progress = progress}, {.progress = progress});
  Memory near(pair.client->pd, kLength), far(pair.server->pd, kLength);
  post(*pair.client, write_to(far, 0, 1), {near.sge(0, kLength)});
  post(*pair.client, read_from(far, 0, 2), {near.sge(0, kLength)});
  for (int i = 0; i < 3; i++) {
    ibv_wc wc;
    CHECK(ibv_poll_cq(pair.server->cq, 1, &wc) == 0);
  }
  pair.server->destroy_qp();
  const Completions done = pump(*pair.client, 2, *pair.server, 0);
  const ibv_wc_status first = done.client[0].status;
  CHECK(done.client[0].wr_id == 1 && (first == IBV_WC_SUCCESS || first == IBV_WC_RETRY_EXC_ERR));
  CHECK(done.client[1].wr_id == 2);
  CHECK(done.client[1].status == (first == IBV_WC_SUCCESS ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR));
  CHECK(pair.client->id.events->expect(CmEvent::Type::disconnected).status != 0);
}

// The peer's process is killed while it writes and while this side waits for it.
void killed_process(Progress progress) {
  Listener listener;
  const std::string port = std::to_string(ntohs(listener.address().sin_port));
  char program[] = "/proc/self/exe", role[] = "writer";
  std::string argument = port;
  char* arguments[] = {program, role, argument.data(), nullptr};
  pid_t child = 0;
  CHECK(posix_spawn(&child, program, nullptr, nullptr, arguments, environ) == 0);
  CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
  End end(Id(std::move(request.request)), {.progress = progress});
  Memory memory(end.pd, 1 << 20);
  const uint64_t address = memory.address();
  ConnectParameters parameters;
  parameters.qp = end.qp;
  parameters.private_data.resize(12);
  std::memcpy(parameters.private_data.data(), &address, 8);
  std::memcpy(parameters.private_data.data() + 8, &memory.mr->rkey, 4);
  for (uint64_t i = 0; i < 8; i++) post_receive(end, i, memory.sge(0, 0));
  CHECK(end.id.id->accept(parameters) == 0);
  end.id.events->expect(CmEvent::Type::established);
  for (uint64_t i = 0; i < 4; i++) CHECK(end.expect(i).opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(kill(child, SIGKILL) == 0);
  CHECK(waitpid(child, nullptr, 0) == child);
  ibv_wc wc;
  do {
    wc = end.completion();
  } while (wc.status == IBV_WC_SUCCESS);
  CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
  end.id.events->expect(CmEvent::Type::disconnected);
}

// The other process of killed_process.
[[noreturn]] void write_for_ever(uint16_t port) {
  Id id;
  const sockaddr_in address = loopback(port);
  CHECK(id.id->resolve(reinterpret_cast<const sockaddr*>(&address), sizeof address, 1000) == 0);
  id.events->expect(CmEvent::Type::route_resolved);
  End end(std::move(id), {});
  ConnectParameters parameters;
  parameters.qp = end.qp;
  CHECK(end.id.id->connect(parameters) == 0);
  const CmEvent established = end.id.events->expect(CmEvent::Type::established);
  Send send{.opcode = IBV_WR_RDMA_WRITE_WITH_IMM};
  std::memcpy(&send.remote_address, established.private_data.data(), 8);
  std::memcpy(&send.remote_key, established.private_data.data() + 8, 4);
  Memory memory(end.pd, 1 << 20);
  for (int i = 0; i < 4; i++) {
    post(end, send, {memory.sge(0, 1 << 20)});
    end.completion();
  }
  send.opcode = IBV_WR_RDMA_WRITE;
  while (true) {
    if (try_post(end, send, {memory.sge(0, 1 << 20)}) == 0) end.completion(1000);
  }
}

void connecting_fails() {
  uint16_t closed_port;
  {
    Listener listener;
    closed_port = ntohs(listener.address().sin_port);
    // Rejected, with a reason.
    Id connecting;
    const sockaddr_in address = listener.address();
    CHECK(connecting.id->resolve(reinterpret_cast<const sockaddr*>(&address), sizeof address, 1000) == 0);
    connecting.events->expect(CmEvent::Type::route_resolved);
    End end(std::move(connecting), {});
    ConnectParameters parameters;
    parameters.qp = end.qp;
    parameters.private_data.assign(509, 1);
    CHECK(end.id.id->connect(parameters) == EINVAL);
    parameters.private_data.resize(508);
    CHECK(end.id.id->connect(parameters) == 0);
    CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
    CHECK(request.private_data.size() == 508);
    CHECK(request.request->reject({4, 5}) == 0);
    const CmEvent rejected = end.id.events->expect(CmEvent::Type::rejected);
    CHECK(rejected.private_data == std::vector<uint8_t>({4, 5}));
    request.request->close();
  }
  Id nobody;
  const sockaddr_in address = loopback(closed_port);
  CHECK(nobody.id->resolve(reinterpret_cast<const sockaddr*>(&address), sizeof address, 1000) == 0);
  nobody.events->expect(CmEvent::Type::route_resolved);
  End end(std::move(nobody), {});
  ConnectParameters parameters;
  parameters.qp = end.qp;
  CHECK(end.id.id->connect(parameters) == 0);
  CHECK(end.id.events->expect(CmEvent::Type::connect_failed).status == ECONNREFUSED);
  Id wrong;
  sockaddr unix_address{AF_UNIX, {}};
  CHECK(wrong.id->resolve(&unix_address, sizeof unix_address, 0) == EAFNOSUPPORT);

  // The initiator gives up before it is answered.
  Listener listener;
  {
    Id connecting;
    const sockaddr_in open = listener.address();
    CHECK(connecting.id->resolve(reinterpret_cast<const sockaddr*>(&open), sizeof open, 1000) == 0);
    connecting.events->expect(CmEvent::Type::route_resolved);
    End given_up(std::move(connecting), {});
    ConnectParameters again;
    again.qp = given_up.qp;
    CHECK(given_up.id.id->connect(again) == 0);
    CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
    given_up.destroy_qp();
    given_up.id.id->close();
    End server(Id(std::move(request.request)), {});
    ConnectParameters answer;
    answer.qp = server.qp;
    CHECK(server.id.id->accept(answer) == 0);
    CHECK(server.id.events->next().type == CmEvent::Type::connect_failed);
  }
}

// --- Many at once.

size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 4096; fd++) count += fcntl(fd, F_GETFD) != -1;
  return count;
}

void connect_and_disconnect(int threads, int each) {
  std::vector<std::thread> running;
  for (int t = 0; t < threads; t++) {
    running.emplace_back([=] {
      Listener listener;
      for (int i = 0; i < each; i++) {
        const Progress progress = i % 2 ? Progress::manual : Progress::automatic;
        Pair pair(listener, {.progress = progress, .channel = i % 3 == 0, .depth = 8},
                  {.progress = progress, .depth = 8});
        Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
        near.fill(static_cast<uint64_t>(i));
        post_receive(*pair.server, 1, far.sge(0, 64));
        post(*pair.client, {.wr_id = 2}, {near.sge(0, 64)});
        pump(*pair.client, 1, *pair.server, 1);
        CHECK(near.bytes == far.bytes);
        if (i % 4 == 0) CHECK(pair.client->id.id->disconnect() == 0);
        if (i % 4 == 1) pair.server->destroy_qp();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
}

// Many queue pairs on one completion queue: the epoll path of manual progress.
void shared_queue(Progress progress, bool channel) {
  constexpr size_t kPairs = 40;
  Listener listener;
  ibv_comp_channel* channels[2] = {};
  ibv_cq* queues[2];
  for (int side = 0; side < 2; side++) {
    if (channel) channels[side] = provider().create_comp_channel(context());
    queues[side] = provider().create_cq(context(), 4096, nullptr, channels[side], progress);
    CHECK(queues[side] != nullptr);
  }
  {
    std::vector<std::unique_ptr<Pair>> pairs;
    std::vector<std::unique_ptr<Memory>> near, far;
    for (size_t i = 0; i < kPairs; i++) {
      pairs.push_back(std::make_unique<Pair>(listener,
                                             Options{.progress = progress, .depth = 32, .cq = queues[0]},
                                             Options{.progress = progress, .depth = 32, .cq = queues[1]}));
      near.push_back(std::make_unique<Memory>(pairs[i]->client->pd, 20'000));
      far.push_back(std::make_unique<Memory>(pairs[i]->server->pd, 20'000));
      near[i]->fill(i);
    }
    for (int round = 0; round < 20; round++) {
      for (size_t i = 0; i < kPairs; i++) {
        post_receive(*pairs[i]->server, i, far[i]->sge(0, 20'000));
        post(*pairs[i]->client, {.wr_id = i}, {near[i]->sge(0, static_cast<size_t>(round) * 1000)});
      }
      pump(*pairs[0]->client, kPairs, *pairs[0]->server, kPairs);
      for (size_t i = 0; i < kPairs; i++) {
        CHECK(std::memcmp(near[i]->bytes.data(), far[i]->bytes.data(), static_cast<size_t>(round) * 1000) ==
              0);
      }
      if (round % 5 == 4) {  // some go away while others stay
        const size_t gone = static_cast<size_t>(round) / 5;
        near.erase(near.begin() + static_cast<long>(gone));
        far.erase(far.begin() + static_cast<long>(gone));
        pairs.erase(pairs.begin() + static_cast<long>(gone));
        pairs.push_back(std::make_unique<Pair>(listener,
                                               Options{.progress = progress, .depth = 32, .cq = queues[0]},
                                               Options{.progress = progress, .depth = 32, .cq = queues[1]}));
        near.push_back(std::make_unique<Memory>(pairs.back()->client->pd, 20'000));
        far.push_back(std::make_unique<Memory>(pairs.back()->server->pd, 20'000));
        near.back()->fill(gone);
      }
    }
  }
  for (int side = 0; side < 2; side++) {
    CHECK(provider().destroy_cq(queues[side]) == 0);
    if (channel) CHECK(provider().destroy_comp_channel(channels[side]) == 0);
  }
}

// Several threads post on one queue pair while others poll its queue.
void many_posters(Progress progress) {
  constexpr int kPosters = 3;
  constexpr uint64_t kEach = 3000;
  Listener listener;
  Pair pair(listener, {.progress = progress, .depth = 64}, {.progress = progress});
  // READs land behind what WRITEs are sent from: an outstanding READ owns its sink.
  Memory near(pair.client->pd, 2 * kPosters * 64), far(pair.server->pd, kPosters * 64);
  std::atomic<uint64_t> completed{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kPosters; t++) {
    threads.emplace_back([&, t] {
      const size_t at = static_cast<size_t>(t) * 64;
      for (uint64_t i = 0; i < kEach; i++) {
        const bool read = i % 3 == 2;
        const Send send = read ? read_from(far, at, i) : write_to(far, at, i);
        const size_t local = read ? kPosters * 64 + at : at;
        int error;
        while ((error = try_post(*pair.client, send, {near.sge(local, 64)})) == ENOMEM)
          std::this_thread::yield();
        CHECK(error == 0);
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
  std::thread server([&] {
    ibv_wc wc;
    while (!stop) {
      CHECK(ibv_poll_cq(pair.server->cq, 1, &wc) == 0);
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  server.join();
}

// Regions come and go while a peer writes to them: each WRITE lands or ends the connection.
void deregister_under_fire() {
  for (int round = 0; round < 5; round++) {
    Listener listener;
    Pair pair(listener, {}, {.progress = Progress::automatic});
    Memory near(pair.client->pd, 1 << 20);
    auto far = std::make_unique<Memory>(pair.server->pd, 1 << 20);
    const Send send = write_to(*far, 0, 1);
    std::thread remover([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      far.reset();  // memory is freed right after dereg_mr
    });
    while (true) {
      const int error = try_post(*pair.client, send, {near.sge(0, 1 << 20)});
      CHECK(error == 0 || error == ENOMEM);
      ibv_wc wc;
      if (ibv_poll_cq(pair.client->cq, 1, &wc) == 1 && wc.status != IBV_WC_SUCCESS) break;
    }
    remover.join();
  }
}

// A peer that never reads costs no more than its socket and its queues.
void peer_that_does_not_read() {
  Listener listener;
  Pair pair(listener, {.depth = 64, .reads = 4}, {.progress = Progress::automatic, .reads = 4});
  constexpr size_t kLength = 32 << 20;
  Memory near(pair.client->pd, kLength), far(pair.server->pd, kLength);
  far.fill(1);
  for (uint64_t i = 0; i < 8; i++) post(*pair.client, read_from(far, 0, i), {near.sge(0, kLength)});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the responses back up
  for (uint64_t i = 0; i < 8; i++) pair.client->expect(i);
  CHECK(near.bytes == far.bytes);
}

void timed(const char* name, const std::function<void()>& test) {
  const auto begin = Clock::now();
  test();
  std::printf("%-28s %6.0f ms\n", name,
              std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "writer")
    write_for_ever(static_cast<uint16_t>(std::atoi(argv[2])));
  constexpr Progress kModes[] = {Progress::manual, Progress::automatic};
  timed("every operation", [] {
    for (const size_t length : {0, 1, 3, 64, 511, 513, 4096, 65408, 65409, 1 << 20, 9'000'001}) {
      every_operation(Progress::manual, Progress::manual, false, length);
      every_operation(Progress::automatic, Progress::automatic, true, length);
      every_operation(Progress::manual, Progress::automatic, true, length);
    }
  });
  for (const Progress mode : kModes) {
    timed("chains", [=] { chains(mode); });
    timed("solicited events", [=] { solicited_events(mode); });
    timed("remote access errors", [=] { remote_access_errors(mode); });
    timed("disconnects", [=] { disconnects(mode); });
    timed("cut in the middle", [=] { cut_in_the_middle(mode); });
    timed("killed process", [=] { killed_process(mode); });
    timed("shared queue", [=] { shared_queue(mode, false); });
    timed("shared queue and channel", [=] { shared_queue(mode, true); });
    timed("many posters", [=] { many_posters(mode); });
  }
  timed("work queue entries", work_queue_entries);
  timed("fence", fence);
  timed("receive errors", receive_errors);
  timed("local errors", local_errors);
  timed("connecting fails", connecting_fails);
  timed("deregister under fire", deregister_under_fire);
  timed("peer that does not read", peer_that_does_not_read);
  const size_t before = open_descriptors();
  timed("1,000 connections", [] { connect_and_disconnect(4, 250); });
  CHECK(open_descriptors() == before);
  std::puts("ok");
}
