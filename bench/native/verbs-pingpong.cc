// Latency, bandwidth and message rate of verbs between two processes, over any provider. What is measured
// is what perftest and ucx_perftest measure: half a round trip, or what one side gets through.
//   verbs-pingpong --listen URI [--progress manual|automatic]
//   verbs-pingpong --connect URI --test write-lat|send-lat|write-bw|send-bw|write-rate [--size 64]
//                  [--iterations N] [--warmup N] [--depth 16] [--chain 1] [--progress …]
//   verbs-pingpong --memcpy [--size 1048576] [--iterations N]
// The connecting side prints one line of JSON.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "arguments.h"
#include "verbs-traffic.h"

using namespace bench;
using namespace rdmakit;

namespace {

constexpr int kSecondsToLive = 120;    // of the process: whatever hangs ends then
constexpr uint32_t kInlineData = 220;  // what ib_write_lat asks for
constexpr uint32_t kQueueDepth = 256;  // at least; bandwidth tests take twice their window if that is more

struct Options {
  std::string listen, connect;
  bool memcpy = false;
  Progress progress = Progress::manual;
  Plan plan{{}, kTestCount, 0, 0, 0, 16, 1};
};

void print_rate(const Plan& plan, double seconds) {
  std::printf(
      "{\"test\":\"%s\",\"size\":%u,\"iterations\":%u,\"depth\":%u,\"chain\":%u,\"mebibytesPerSecond\":%.2f,"
      "\"millionPerSecond\":%.5f}\n",
      plan.test == kTestCount ? "memcpy" : kTests[plan.test], plan.size, plan.iterations, plan.depth,
      plan.chain, static_cast<double>(plan.size) * plan.iterations / seconds / (1 << 20),
      plan.iterations / seconds / 1e6);
}

void initiate(Side& side, const Plan& plan) {
  Recorder recorder(plan);
  recorder.start();
  if (plan.test == kWriteLatency || plan.test == kSendLatency) {
    plan.test == kWriteLatency ? side.write_latency(true, recorder) : side.send_latency(true, recorder);
    recorder.print(plan);
    return;
  }
  std::vector<ibv_send_wr> chain = side.make_chain();
  const auto run = [&](uint64_t rounds) {
    if (plan.test == kWriteBandwidth) side.write_rounds(rounds);
    if (plan.test == kSendBandwidth) side.send_rounds(rounds);
    if (plan.test == kWriteRate) side.write_chains(chain, rounds);
  };
  run(plan.warmup);
  const auto begin = Clock::now();
  run(plan.iterations);
  print_rate(plan, seconds_since(begin));
}

void respond(Side& side, const Plan& plan) {
  Recorder recorder(plan);
  if (plan.test == kWriteLatency) side.write_latency(false, recorder);
  if (plan.test == kSendLatency) side.send_latency(false, recorder);
  if (plan.test == kSendBandwidth) side.receive_rounds(plan.rounds());
  const bool sends = plan.test == kSendLatency || plan.test == kSendBandwidth;
  side.wait_received((sends ? plan.rounds() : 0) + 1);  // the farewell
}

uint32_t depth_of(const Plan& plan) { return std::max(kQueueDepth, 2 * plan.depth + 2 * plan.chain); }
uint32_t inline_of(const Plan& plan) { return plan.size <= kInlineData ? plan.size : 0; }

void serve(const Options& options) {
  const Uri uri(options.listen);
  Id listener = listen(uri);
  CmEvent request = listener.expect(CmEvent::Type::connect_request);
  Plan plan = heard<Plan>(request.private_data);
  if (plan.test >= kTestCount || plan.size > (64u << 20) || plan.depth > 4096 || plan.chain > 4096)
    fail("a strange plan");
  Id id(std::move(request.request));
  Queue queue(*uri.provider, id->context(), static_cast<int>(4 * depth_of(plan)), options.progress);
  Endpoint endpoint(queue, std::move(id), depth_of(plan), inline_of(plan));
  Memory memory(queue, Side::bytes_for(plan));
  Side side(endpoint, memory, plan);
  side.set_target(plan.region);
  endpoint.accept(told(Region{reinterpret_cast<uint64_t>(memory.data), memory.mr->rkey}));
  endpoint.id.expect(CmEvent::Type::established);
  respond(side, plan);
  endpoint.id->disconnect();
}

void connect(const Options& options) {
  const Uri uri(options.connect);
  Plan plan = options.plan;
  Id id = resolve(uri);
  Queue queue(*uri.provider, id->context(), static_cast<int>(4 * depth_of(plan)), options.progress);
  Endpoint endpoint(queue, std::move(id), depth_of(plan), inline_of(plan));
  Memory memory(queue, Side::bytes_for(plan));
  plan.region = {reinterpret_cast<uint64_t>(memory.data), memory.mr->rkey};
  Side side(endpoint, memory, plan);
  endpoint.connect(told(plan));
  side.set_target(heard<Region>(endpoint.id.expect(CmEvent::Type::established).private_data));
  initiate(side, plan);
  side.farewell();
  // The peer disconnects when it has the farewell. The flushes are no failure, so they are not checked.
  CmEvent event;
  ibv_wc wc;
  for (const auto begin = Clock::now(); !endpoint.id.next(event) && seconds_since(begin) < 5;)
    ibv_poll_cq(queue.cq, 1, &wc);
}

// The main part of a WRITE over shm: a copy from a region into memory that another process may map.
void copy(const Options& options) {
  const Plan& plan = options.plan;
  MemoryOptions shared;
  shared.shared = true;
  const auto* from = static_cast<const uint8_t*>(shm_provider().map_memory(plan.size, {}));
  auto* to = static_cast<uint8_t*>(map_private_memory(plan.size, shared));
  if (from == nullptr || to == nullptr) fail("map_memory", errno);
  const auto run = [&](uint32_t rounds) {
    for (uint32_t i = 0; i < rounds; ++i) {
      std::memcpy(to, from, plan.size);
      asm volatile("" ::: "memory");  // or all copies but one are dead stores
    }
  };
  run(plan.warmup);
  const auto begin = Clock::now();
  run(plan.iterations);
  print_rate(plan, seconds_since(begin));
}

Options options_of(int argc, char** argv) {
  Options options;
  Plan& plan = options.plan;
  parse(argc, argv,
        {{"listen", into(options.listen)},
         {"connect", into(options.connect)},
         {"test", one_of(kTests, [&plan](uint32_t test) { plan.test = test; })},
         {"size", into(plan.size)},
         {"iterations", into(plan.iterations)},
         {"warmup", into(plan.warmup)},
         {"depth", into(plan.depth)},
         {"chain", into(plan.chain)},
         {"progress", into(options.progress)}},
        {{"memcpy", [&options](const std::string&) { options.memcpy = true; }}});
  plan.depth = std::max(1u, plan.depth);
  plan.chain = std::max(1u, plan.chain);
  const bool big = options.memcpy || plan.test == kWriteBandwidth || plan.test == kSendBandwidth;
  if (plan.size == 0) plan.size = big ? 1 << 20 : 64;
  if (plan.iterations == 0) plan.iterations = big ? 2000 : 100'000;
  if (plan.warmup == 0) plan.warmup = plan.iterations / 10;
  if (plan.test == kWriteLatency && (plan.size < 8 || plan.size % 8 != 0))
    fail("write-lat wants a multiple of 8 bytes");
  if (plan.test == kTestCount && !options.connect.empty()) fail("which --test?");
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  alarm(kSecondsToLive);
  const Options options = options_of(argc, argv);
  if (options.memcpy) {
    copy(options);
  } else if (!options.listen.empty()) {
    serve(options);
  } else if (!options.connect.empty()) {
    connect(options);
  } else {
    fail("--listen, --connect or --memcpy?");
  }
}
