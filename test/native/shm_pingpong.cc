// Latency, message rate and bandwidth of the shm provider between two processes, each pinned to a core
// (not a test). The best of several runs counts: the machine has other work.
//   shm_pingpong [runs]
#include <sched.h>

#include <algorithm>

#include "shm_process.h"

using namespace fixture;

namespace {

constexpr int kIterations = 200'000;
constexpr size_t kRegion = 8 << 20;
constexpr Options kOptions{.depth = 256};

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

double microseconds(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

// Posting without the fixture's conveniences, which allocate.
struct Poster {
  End& end;
  ibv_sge sge;
  ibv_send_wr request{};

  Poster(End& of, ibv_sge what, const Send& send) : end(of), sge(what) {
    request.opcode = send.opcode;
    request.send_flags = static_cast<unsigned>(send.flags);
    request.wr.rdma.remote_addr = send.remote_address;
    request.wr.rdma.rkey = send.remote_key;
    request.sg_list = &sge;
    request.num_sge = 1;
  }
  void post() {
    ibv_send_wr* bad = nullptr;
    CHECK(ibv_post_send(end.qp, &request, &bad) == 0);
  }
};

// A number in the last eight bytes, polled in memory.
void write_ping_pong(Side& side, size_t size, bool first, int iterations) {
  uint8_t* out = side.near->data + kRegion / 2;
  auto* out_word = reinterpret_cast<uint64_t*>(out + size - 8);
  const std::atomic_ref<uint64_t> in(*reinterpret_cast<uint64_t*>(side.near->data + size - 8));
  const int inlined = size <= side.end->options.inline_data ? int{IBV_SEND_INLINE} : 0;
  Poster poster(*side.end, side.near->sge(kRegion / 2, size), write_to(side.far, 0, 0, inlined));
  for (uint64_t i = 1; i <= static_cast<uint64_t>(iterations); i++) {
    if (!first) {
      while (in.load(std::memory_order_acquire) != i) {
      }
    }
    *out_word = i;
    poster.post();
    if (first) {
      while (in.load(std::memory_order_acquire) != i) {
      }
    }
  }
}

void send_ping_pong(Side& side, size_t size, bool first, int iterations) {
  const int inlined = size <= side.end->options.inline_data ? int{IBV_SEND_INLINE} : 0;
  Poster poster(*side.end, side.near->sge(kRegion / 2, size), {.flags = inlined});
  ibv_sge sge = side.near->sge(0, 4096);  // as long as those posted for other sizes
  ibv_recv_wr receive{}, *bad = nullptr;
  receive.sg_list = &sge;
  receive.num_sge = 1;
  const auto wait = [&] {
    ibv_wc wc;
    int count;
    while ((count = ibv_poll_cq(side.end->cq, 1, &wc)) == 0) {
    }
    if (count != 1 || wc.status != IBV_WC_SUCCESS) {
      std::fprintf(stderr, "status %d\n", wc.status);
      std::abort();
    }
    CHECK(ibv_post_recv(side.end->qp, &receive, &bad) == 0);
  };
  for (int i = 0; i < iterations; i++) {
    if (!first) wait();
    poster.post();
    if (first) wait();
  }
}

void message_rate(Side& side, size_t chain_length) {
  constexpr int kMessages = 4'000'000;
  constexpr int kSignalEvery = 64;
  std::vector<ibv_send_wr> chain(chain_length);
  ibv_sge sge = side.near->sge(kRegion / 2, 64);
  for (size_t i = 0; i < chain_length; i++) {
    chain[i] = Poster(*side.end, sge, write_to(side.far, 64 * i, 0, 0)).request;
    chain[i].sg_list = &sge;
    chain[i].next = i + 1 < chain_length ? &chain[i + 1] : nullptr;
  }
  int outstanding = 0;
  ibv_wc wc;
  const auto begin = Clock::now();
  for (int posted = 0; posted < kMessages; posted += static_cast<int>(chain_length)) {
    const bool signal = posted % kSignalEvery + static_cast<int>(chain_length) >= kSignalEvery;
    chain.back().send_flags = signal ? IBV_SEND_SIGNALED : 0;
    ibv_send_wr* bad = nullptr;
    CHECK(ibv_post_send(side.end->qp, chain.data(), &bad) == 0);
    outstanding += signal;
    while (outstanding > 1) outstanding -= ibv_poll_cq(side.end->cq, 1, &wc);
  }
  while (outstanding > 0) outstanding -= ibv_poll_cq(side.end->cq, 1, &wc);
  std::printf("  WRITE 64 B, chains of %2zu: %6.2f M/s\n", chain_length,
              kMessages / microseconds(Clock::now() - begin));
}

double rate_of(size_t size, const std::function<void()>& one) {
  const int count = static_cast<int>((size_t{4} << 30) / size);
  const auto begin = Clock::now();
  for (int i = 0; i < count; i++) one();
  return static_cast<double>(size) * count / microseconds(Clock::now() - begin) / 1000;
}

void bandwidth(Side& side, size_t size) {
  const auto private_memory = std::make_unique<uint8_t[]>(size);
  uint8_t* source = side.near->data + kRegion / 2;
  const double copy = rate_of(size, [&] {
    std::memcpy(private_memory.get(), source, size);
    asm volatile("" ::: "memory");
  });
  Poster write(*side.end, side.near->sge(kRegion / 2, size), write_to(side.far, 0, 0, 0));
  const double written = rate_of(size, [&] { write.post(); });
  Poster read(*side.end, side.near->sge(kRegion / 2, size), read_from(side.far, 0, 0, 0));
  const double fetched = rate_of(size, [&] { read.post(); });
  std::printf("  %7zu B: memcpy %5.2f GB/s, WRITE %5.2f (%3.0f%%), READ %5.2f (%3.0f%%)\n", size, copy,
              written, 100 * written / copy, fetched, 100 * fetched / copy);
}

const Prepare kPostReceives = [](Side& side) {
  for (int i = 0; i < 64; i++) post_receive(*side.end, 0, side.near->sge(0, 4096));
};

void one_way(const char* what, size_t size, const std::function<void()>& run) {
  const auto begin = Clock::now();
  run();
  std::printf("  %s %4zu B: one way %.3f us\n", what, size,
              microseconds(Clock::now() - begin) / kIterations / 2);
}

constexpr size_t kSizes[] = {8, 64, 512, 4096};

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "echo") {
    pin(1);
    Side side = connect_side(argv[2], kOptions, kRegion, Kind::shared, kPostReceives);
    for (const size_t size : kSizes) write_ping_pong(side, size, false, kIterations);
    for (const size_t size : kSizes) send_ping_pong(side, size, false, kIterations);
    side.end->id.events->expect(CmEvent::Type::disconnected);
    return 0;
  }
  pin(0);
  const int runs = argc > 1 ? std::atoi(argv[1]) : 3;
  for (int run = 1; run <= runs; run++) {
    std::printf("run %d\n", run);
    Listener listener;
    Child child("echo", listener.path);
    Side side = accept_side(listener, kOptions, kRegion, Kind::shared, kPostReceives);
    for (const size_t size : kSizes)
      one_way("WRITE", size, [&] { write_ping_pong(side, size, true, kIterations); });
    for (const size_t size : kSizes)
      one_way("SEND ", size, [&] { send_ping_pong(side, size, true, kIterations); });
    for (const size_t chain : {1, 16}) message_rate(side, chain);
    for (const size_t size : {size_t{4096}, size_t{65536}, size_t{1} << 20}) bandwidth(side, size);
    std::fflush(stdout);
  }
}
