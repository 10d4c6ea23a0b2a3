// The iwarp provider: WRITEs of lent bytes that cannot begin yet, because of a fence behind READs or of more
// READs than may be outstanding (ORD). Costs 0.1 s plain, 0.3 s under ASan, 2 s under TSan.
#include "../../lent.h"
#include "../traffic.h"

namespace iwarp_lent_behind_reads_stress {

using namespace fixture;

enum class Behind { fence, depth };

constexpr uint32_t kDepth = 2;
constexpr size_t kRead = 3000;
constexpr size_t kWrites = std::size(kLent);

// READs that the server, which nobody polls, does not answer: as many as may be outstanding, and one more.
uint32_t post_reads(End& client, const Memory& back, const Memory& source, Behind behind) {
  const uint32_t reads = behind == Behind::fence ? kDepth : kDepth + 1;
  for (uint32_t i = 0; i < reads; i++) {
    post(client, read_from(source, i * kRead, i), {back.sge(i * kRead, kRead)});
  }
  return reads;
}

// What is lent is at its place as soon as the call returns, and that is what arrives, after the READs.
void waits(Progress progress, Behind behind) {
  Listener listener;
  Pair pair(listener, {.progress = progress, .reads = kDepth}, {.reads = kDepth});
  End& client = *pair.client;
  End& server = *pair.server;
  Memory source(server.pd, (kDepth + 1) * kRead), back(client.pd, (kDepth + 1) * kRead);
  Memory near(client.pd, kWrites * kLargest), far(server.pd, kWrites * kLargest);
  source.fill(7);
  for (uint32_t i = 0; i < kWrites; i++) post_receive(server, 1000 + i, far.sge(0, 1));

  const uint32_t reads = post_reads(client, back, source, behind);
  for (uint32_t i = 0; i < kWrites; i++) {
    Send send = write_to(far, i * kLargest, 100 + i);
    send.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    send.immediate = i;
    if (behind == Behind::fence) send.flags |= IBV_SEND_FENCE;
    post_lent(client, send, near, i * kLargest, kLent[i], i);
    CHECK(arrived(near, i * kLargest, kLent[i].length, i), "case %u", i);
  }
  // A WRITE that had not waited would be complete: the first of them are small.
  ibv_wc wc;
  for (int i = 0; i < 50; i++) CHECK(ibv_poll_cq(client.cq, 1, &wc) == 0);

  const Completions done = pump(client, reads + kWrites, server, kWrites);
  for (uint32_t i = 0; i < reads; i++) {
    CHECK(done.client[i].wr_id == i && done.client[i].status == IBV_WC_SUCCESS);
  }
  CHECK(std::memcmp(back.bytes.data(), source.bytes.data(), reads * kRead) == 0);
  for (uint32_t i = 0; i < kWrites; i++) {
    CHECK(done.client[reads + i].wr_id == 100 + i && done.client[reads + i].status == IBV_WC_SUCCESS);
    CHECK(done.server[i].wr_id == 1000 + i && ntohl(done.server[i].imm_data) == i);
    CHECK(arrived(far, i * kLargest, kLent[i].length, i), "case %u", i);
  }
}

// The READ and the fenced WRITE in one call: the READ leaves within it.
void one_call(Progress progress, const Lent& lent) {
  Listener listener;
  Pair pair(listener, {.progress = progress, .reads = kDepth}, {.reads = kDepth});
  End& client = *pair.client;
  Memory source(pair.server->pd, kRead), back(client.pd, kRead);
  Memory near(client.pd, kLargest), far(pair.server->pd, kLargest);
  source.fill(8);
  std::vector<uint8_t> bytes(lent.length);
  fill_noise(bytes.data(), bytes.size(), 9);
  std::memcpy(near.bytes.data(), bytes.data(), lent.length);
  std::memset(near.bytes.data() + lent.from, kPlace, lent.to - lent.from);

  ibv_sge elements[2] = {back.sge(0, kRead), near.sge(0, lent.length)};
  ibv_send_wr requests[2] = {}, *bad = nullptr;
  for (uint32_t i = 0; i < 2; i++) {
    requests[i].wr_id = i;
    requests[i].sg_list = &elements[i];
    requests[i].num_sge = 1;
    requests[i].opcode = i == 0 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE_WITH_IMM;
    requests[i].send_flags = IBV_SEND_SIGNALED | (i == 1 ? IBV_SEND_FENCE : 0);
    requests[i].wr.rdma.remote_addr = (i == 0 ? source : far).address();
    requests[i].wr.rdma.rkey = (i == 0 ? source : far).mr->rkey;
  }
  requests[0].next = &requests[1];
  post_receive(*pair.server, 2, far.sge(0, 1));
  const LentBytes what{bytes.data() + lent.from, near.address(lent.from), lent.to - lent.from};
  CHECK(provider().data_path_verbs()->post_send_lent(client.qp, requests, &bad, what) == 0);
  std::memset(bytes.data(), kGone, bytes.size());
  CHECK(arrived(near, 0, lent.length, 9));
  ibv_wc wc;
  CHECK(ibv_poll_cq(client.cq, 1, &wc) == 0);

  const Completions done = pump(client, 2, *pair.server, 1);
  for (uint32_t i = 0; i < 2; i++) {
    CHECK(done.client[i].wr_id == i && done.client[i].status == IBV_WC_SUCCESS);
  }
  CHECK(back.bytes == source.bytes && arrived(far, 0, lent.length, 9));
}

STRESS(iwarp_lent_behind_reads) {
  for (const Progress progress : {Progress::manual, Progress::automatic}) {
    timed("behind a fence", [=] { waits(progress, Behind::fence); });
    timed("behind too many READs", [=] { waits(progress, Behind::depth); });
    timed("READ and fence in one call", [=] {
      for (const Lent& lent : kLent) one_call(progress, lent);
    });
  }
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_lent_behind_reads_stress
