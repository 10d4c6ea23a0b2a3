// Every operation of the iwarp provider, over loopback: data, order, completions and events.
#include <algorithm>

#include "traffic.h"

namespace iwarp_operations_stress {

using namespace fixture;

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
// large as the work queues cannot overflow; and what was not signaled, when a later one has been.
void work_queue_entries() {
  Listener listener;
  Pair pair(listener, {.depth = 8}, {.progress = Progress::automatic});
  Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
  for (uint64_t round = 0; round < 100; round++) {
    for (int i = 0; i < 7; i++) post(*pair.client, write_to(far, 0, 0, IBV_SEND_INLINE), {near.sge(0, 64)});
    post(*pair.client, write_to(far, 0, round), {near.sge(0, 64)});
    pair.client->expect(round);
  }
  // One signaled before unsignaled ones frees its own entry only.
  ibv_wc wc;
  post(*pair.client, write_to(far, 0, 100), {near.sge(0, 64)});
  for (uint64_t i = 0; i < 7; i++) post(*pair.client, write_to(far, 0, 0, 0), {near.sge(0, 64)});
  CHECK(try_post(*pair.client, write_to(far, 0, 0, 0), {near.sge(0, 64)}) == ENOMEM);
  pair.client->expect(100);
  post(*pair.client, write_to(far, 0, 101), {near.sge(0, 64)});
  CHECK(try_post(*pair.client, write_to(far, 0, 0, 0), {near.sge(0, 64)}) == ENOMEM);
  pair.client->expect(101);
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
  std::memset(ones.bytes.data(), 1, kLength);
  for (int i = 0; i < 20; i++) {
    std::memset(target.bytes.data(), 0, kLength);
    post(*pair.client, read_from(target, 0, 1), {back.sge(0, kLength)});
    post(*pair.client, write_to(target, 0, 2, IBV_SEND_SIGNALED | IBV_SEND_FENCE), {ones.sge(0, kLength)});
    pair.client->expect(1);
    pair.client->expect(2);
    CHECK(is_filled(back.bytes.data(), kLength, 0));
    post(*pair.client, read_from(target, 0, 3), {back.sge(0, kLength)});
    pair.client->expect(3);
    CHECK(back.bytes == ones.bytes);
  }
}

// A queue armed for solicited events sleeps through the others; get_cq_event moves the data.
void solicited_events(Progress progress) {
  Listener listener;
  Pair pair(listener, {}, {.progress = progress, .channel = true});
  Memory source(pair.client->pd, 8), target(pair.server->pd, 64);
  sleeps_through_unsolicited(*pair.client, source, *pair.server, target, 100);
}

// An event of `channel`, which must be there.
ibv_cq* event_of(ibv_comp_channel* channel) {
  ibv_cq* ready = nullptr;
  void* ready_context = nullptr;
  CHECK(provider().data_path_verbs()->get_cq_event(channel, &ready, &ready_context) == 0);
  provider().data_path_verbs()->ack_cq_events(ready, 1);
  return ready;
}
bool readable(const ibv_comp_channel* channel) {
  pollfd looked_at{channel->fd, POLLIN, 0};
  return ::poll(&looked_at, 1, 0) == 1;
}

// A queue that is armed for all events stays so when it is armed for solicited ones. A small WRITE completes
// within its post, so its event is there at once.
void asking_for_less(Progress progress) {
  Listener listener;
  Pair pair(listener, {.progress = progress, .channel = true}, {.progress = Progress::automatic});
  Memory near(pair.client->pd, 8), far(pair.server->pd, 8);
  CHECK(ibv_req_notify_cq(pair.client->cq, 0) == 0);
  CHECK(ibv_req_notify_cq(pair.client->cq, 1) == 0);
  post(*pair.client, write_to(far, 0, 1), {near.sge(0, 8)});
  CHECK(event_of(pair.client->channel) == pair.client->cq);
  pair.client->expect(1);
}

// The channel of two queues stays readable until the events of both have been taken.
void two_queues_of_a_channel(Progress progress) {
  Listener listener;
  ibv_comp_channel* channel = provider().create_comp_channel(context());
  ibv_cq* queues[2];
  for (ibv_cq*& queue : queues) {
    queue = provider().create_cq(context(), 16, nullptr, channel, progress);
    CHECK(queue != nullptr && ibv_req_notify_cq(queue, 0) == 0);
  }
  {
    const Options automatic{.progress = Progress::automatic};
    Pair first(listener, {.progress = progress, .depth = 8, .cq = queues[0]}, automatic);
    Pair second(listener, {.progress = progress, .depth = 8, .cq = queues[1]}, automatic);
    // They stay: a WRITE that arrives when its region is gone ends the connection, which makes it readable.
    Memory near(first.client->pd, 8), far(first.server->pd, 8);
    Memory other_near(second.client->pd, 8), other_far(second.server->pd, 8);
    CHECK(!readable(channel));
    post(*first.client, write_to(far, 0, 1), {near.sge(0, 8)});
    post(*second.client, write_to(other_far, 0, 2), {other_near.sge(0, 8)});
    CHECK(readable(channel) && event_of(channel) == queues[0]);
    CHECK(readable(channel) && event_of(channel) == queues[1]);
    CHECK(!readable(channel));
    first.client->expect(1);
    second.client->expect(2);
  }
  for (ibv_cq* queue : queues) CHECK(provider().destroy_cq(queue) == 0);
  CHECK(provider().destroy_comp_channel(channel) == 0);
}

STRESS(iwarp_operations) {
  constexpr Progress kModes[] = {Progress::manual, Progress::automatic};
  timed("every operation", [] {
    for (const size_t length : {0, 1, 3, 64, 511, 513, 4096, 65408, 65409, 1 << 20, 3'000'001}) {
      every_operation(Progress::manual, Progress::manual, false, length);
      every_operation(Progress::automatic, Progress::automatic, true, length);
      every_operation(Progress::manual, Progress::automatic, true, length);
    }
  });
  for (const Progress mode : kModes) {
    timed("chains", [=] { chains(mode); });
    timed("solicited events", [=] { solicited_events(mode); });
    timed("asking for less", [=] { asking_for_less(mode); });
    timed("two queues of a channel", [=] { two_queues_of_a_channel(mode); });
  }
  timed("work queue entries", work_queue_entries);
  timed("fence", fence);
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_operations_stress
