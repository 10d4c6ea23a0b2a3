// The iwarp provider from connection to data to failure, over loopback.
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

}  // namespace

int main() {
  for (const size_t length : {0, 1, 3, 64, 511, 513, 4096, 65408, 65409, 1 << 20, 9'000'001}) {
    every_operation(Progress::manual, Progress::manual, false, length);
    every_operation(Progress::automatic, Progress::automatic, true, length);
    every_operation(Progress::manual, Progress::automatic, true, length);
  }
  std::puts("ok");
}
