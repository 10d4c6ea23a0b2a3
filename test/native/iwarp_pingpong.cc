// Latency and bandwidth of the iwarp provider over loopback, two threads polling (not a test).
//   iwarp_pingpong [manual|automatic]
#include <algorithm>

#include "iwarp_fixture.h"

using namespace fixture;

namespace {

double microseconds(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

void ping_pong(Progress progress, uint32_t size, int iterations) {
  Listener listener;
  Pair pair(listener, {.progress = progress}, {.progress = progress});
  Memory near(pair.client->pd, size), far(pair.server->pd, size);
  const int flags = size <= pair.client->options.inline_data ? IBV_SEND_INLINE : 0;
  const auto wait = [](End& end) {
    ibv_wc wc;
    int count;
    while ((count = ibv_poll_cq(end.cq, 1, &wc)) == 0) {
    }
    CHECK(count == 1 && wc.status == IBV_WC_SUCCESS);
  };
  std::thread echo([&] {
    post_receive(*pair.server, 1, far.sge(0, size));
    for (int i = 0; i < iterations; i++) {
      wait(*pair.server);
      post_receive(*pair.server, 1, far.sge(0, size));
      post(*pair.server, {.flags = flags}, {far.sge(0, size)});
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::vector<double> times;
  times.reserve(iterations);
  for (int i = 0; i < iterations; i++) {
    const auto begin = Clock::now();
    post_receive(*pair.client, 1, near.sge(0, size));
    post(*pair.client, {.flags = flags}, {near.sge(0, size)});
    wait(*pair.client);
    times.push_back(microseconds(Clock::now() - begin) / 2);
  }
  echo.join();
  std::sort(times.begin(), times.end());
  std::printf("SEND %u B: one way median %.2f us, 10%% %.2f, 99%% %.2f\n", size, times[times.size() / 2],
              times[times.size() / 10], times[times.size() * 99 / 100]);
}

// One READ at a time from a target whose application does nothing: what a page fault waits for.
void read_latency(uint32_t size, int iterations) {
  Listener listener;
  Pair pair(listener, {}, {.progress = Progress::automatic});
  Memory near(pair.client->pd, size), far(pair.server->pd, size);
  std::vector<double> times;
  for (int i = 0; i < iterations; i++) {
    const auto begin = Clock::now();
    post(*pair.client,
         {.opcode = IBV_WR_RDMA_READ, .remote_address = far.address(), .remote_key = far.mr->rkey},
         {near.sge(0, size)});
    pair.client->expect(0);
    times.push_back(microseconds(Clock::now() - begin));
  }
  std::sort(times.begin(), times.end());
  std::printf("READ %u B from an idle application: median %.2f us, 99%% %.2f\n", size,
              times[times.size() / 2], times[times.size() * 99 / 100]);
}

void bandwidth(Progress progress, ibv_wr_opcode opcode, uint32_t size, int count) {
  Listener listener;
  Pair pair(listener, {.progress = progress}, {.progress = progress});
  Memory near(pair.client->pd, size), far(pair.server->pd, size);
  near.fill(1);
  far.fill(2);
  std::atomic<bool> stop{false};
  std::thread target([&] {
    ibv_wc wc;
    while (!stop) {
      if (progress == Progress::manual) {
        ibv_poll_cq(pair.server->cq, 1, &wc);
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  });
  constexpr int kWindow = 16;
  int posted = 0, completed = 0;
  const auto begin = Clock::now();
  while (completed < count) {
    while (posted < count && posted - completed < kWindow) {
      post(*pair.client, {.opcode = opcode, .remote_address = far.address(), .remote_key = far.mr->rkey},
           {near.sge(0, size)});
      posted++;
    }
    ibv_wc wc;
    const int got = ibv_poll_cq(pair.client->cq, 1, &wc);
    CHECK(got >= 0);
    if (got == 1) {
      CHECK(wc.status == IBV_WC_SUCCESS);
      completed++;
    }
  }
  // A WRITE completes when it is in the socket; a READ behind it when it is in the peer's memory.
  post(*pair.client,
       {.opcode = IBV_WR_RDMA_READ, .remote_address = far.address(), .remote_key = far.mr->rkey},
       {near.sge(0, 1)});
  pair.client->expect(0);
  const double seconds = microseconds(Clock::now() - begin) / 1e6;
  stop = true;
  target.join();
  std::printf("%s %u B: %.2f GB/s, %.0f /s\n", opcode == IBV_WR_RDMA_READ ? "READ" : "WRITE", size,
              double(size) * count / seconds / 1e9, count / seconds);
}

}  // namespace

int main(int argc, char** argv) {
  const Progress progress =
      argc > 1 && std::string(argv[1]) == "automatic" ? Progress::automatic : Progress::manual;
  for (const uint32_t size : {64u, 4096u}) ping_pong(progress, size, 100'000);
  read_latency(4096, 50'000);
  for (const uint32_t size : {4096u, 1u << 20}) {
    const int count = size > 65536 ? 4000 : 200'000;
    bandwidth(progress, IBV_WR_RDMA_WRITE, size, count);
    bandwidth(progress, IBV_WR_RDMA_READ, size, count);
  }
}
