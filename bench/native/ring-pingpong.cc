// Latency and message rate of the ring between two processes, over any provider, without JavaScript.
//   ring-pingpong --listen URI [--mode caller|poll|event|adaptive]
//   ring-pingpong --connect URI [--test ring-lat|ring-rate] [--size 64] [--iterations N] [--warmup N] [--mode
//   …]
// Both sides take [--notification immediate|send] [--capacity 1048576] [--inline 256] [--signal-every N]
// [--batch 16]: messages that share a doorbell in ring-rate. In mode caller, the default, the program polls.
// The connecting side prints one line of JSON; ring-lat is half a round trip, as ib_send_lat has it.
#include <sched.h>
#include <unistd.h>

#include <bit>
#include <cstdio>
#include <string>
#include <vector>

#include "arguments.h"
#include "ring-end.h"
#include "verbs-traffic.h"

using namespace bench;
using namespace rdmakit;

namespace {

constexpr int kSecondsToLive = 120;  // of the process: whatever hangs ends then
constexpr const char* kRingTests[] = {"ring-lat", "ring-rate"};
constexpr const char* kModes[] = {"poll", "event", "adaptive", "caller"};
enum : uint32_t { kLatency, kRate, kRingTestCount };

struct Options {
  std::string listen, connect;
  RingShape shape;
  RingPlan plan{};
};

uint64_t rounds(const RingPlan& plan) { return uint64_t{plan.warmup} + plan.iterations; }

// ---- Hot path begins ----

void bounce(RingEnd& end, const RingPlan& plan, bool first, Recorder& recorder) {
  const std::vector<uint8_t> payload(plan.size, 1);
  const auto send = [&] {
    if (!end.send(ring::FrameType::data, payload.data(), plan.size)) fail("no room for one message");
    end.flush();
  };
  for (uint64_t round = 1; round <= rounds(plan); ++round) {
    if (first) send();
    while (end.take() == 0) end.wait();
    if (!first) send();
    if (first) recorder.mark(round);
  }
}

void stream(RingEnd& end, const RingPlan& plan, uint64_t messages) {
  const std::vector<uint8_t> payload(plan.size, 1);
  uint32_t answers = 0;
  for (uint64_t sent = 0; sent < messages;) {
    if (end.send(ring::FrameType::data, payload.data(), plan.size)) {
      ++sent;
    } else {
      end.flush();
      answers += end.take();
      if (answers == 0) sched_yield();
    }
  }
  end.flush();
  // The other side answers when it has them all.
  while (answers == 0 && (answers = end.take()) == 0) {
  }
}

void swallow(RingEnd& end, uint64_t messages) {
  for (uint64_t received = 0; received < messages;) {
    const uint32_t some = end.take();
    if (some == 0) end.wait();
    received += some;
  }
  const uint8_t answer = 0;
  if (!end.send(ring::FrameType::data, &answer, 1)) fail("no room for one message");
  end.flush();
}

// ---- Hot path ends ----

void initiate(RingEnd& end, const RingPlan& plan) {
  if (plan.test == kLatency) {
    Recorder recorder(plan.warmup, plan.iterations);
    recorder.start();
    bounce(end, plan, true, recorder);
    recorder.print(kRingTests[plan.test], plan.size);
    return;
  }
  stream(end, plan, plan.warmup);
  const auto begin = Clock::now();
  stream(end, plan, plan.iterations);
  const double seconds = seconds_since(begin);
  std::printf(
      "{\"test\":\"%s\",\"size\":%u,\"iterations\":%u,\"mebibytesPerSecond\":%.2f,\"millionPerSecond\":%.5f}"
      "\n",
      kRingTests[plan.test], plan.size, plan.iterations,
      static_cast<double>(plan.size) * plan.iterations / seconds / (1 << 20),
      plan.iterations / seconds / 1e6);
}

void respond(RingEnd& end, const RingPlan& plan) {
  if (plan.test == kLatency) {
    Recorder nobody(0, 0);
    bounce(end, plan, false, nobody);
  } else {
    swallow(end, plan.warmup);
    swallow(end, plan.iterations);
  }
  while (!end.closed() && end.take() == 0) end.wait();
}

void serve(Options options) {
  const Uri uri(options.listen);
  Id listener = listen(uri);
  CmEvent request = listener.expect(CmEvent::Type::connect_request);
  const auto plan = heard<RingPlan>(request.private_data);
  if (plan.test >= kRingTestCount || plan.log2_capacity > ring::kMaxLog2Capacity) fail("a strange plan");
  RingEnd end(*uri.provider, Id(std::move(request.request)), options.shape);
  end.establish(plan);
  end.endpoint().accept(told(end.describe()));
  end.endpoint().id.expect(CmEvent::Type::established);
  respond(end, plan);
  end.endpoint().id->disconnect();
}

void connect(const Options& options) {
  const Uri uri(options.connect);
  Id id = resolve(uri);
  RingEnd end(*uri.provider, std::move(id), options.shape);
  RingPlan plan = end.describe();
  plan.test = options.plan.test;
  plan.size = options.plan.size;
  plan.warmup = options.plan.warmup;
  plan.iterations = options.plan.iterations;
  end.endpoint().connect(told(plan));
  end.establish(heard<RingPlan>(end.endpoint().id.expect(CmEvent::Type::established).private_data));
  initiate(end, plan);
  end.send(ring::FrameType::close, nullptr, 0);
  end.flush();
  CmEvent event;
  for (const auto begin = Clock::now(); !end.endpoint().id.next(event) && seconds_since(begin) < 5;)
    usleep(1000);
}

Options options_of(int argc, char** argv) {
  static constexpr const char* kNotifications[] = {"immediate", "send"};
  Options options;
  RingPlan& plan = options.plan;
  RingShape& shape = options.shape;
  uint32_t capacity = 1u << shape.log2_capacity;
  parse(argc, argv,
        {{"listen", into(options.listen)},
         {"connect", into(options.connect)},
         {"test", one_of(kRingTests, [&plan](uint32_t test) { plan.test = test; })},
         {"size", into(plan.size)},
         {"iterations", into(plan.iterations)},
         {"warmup", into(plan.warmup)},
         {"mode", one_of(kModes, [&shape](uint32_t mode) { shape.mode = static_cast<ring::Mode>(mode); })},
         {"notification", one_of(kNotifications, [&shape](uint32_t at) { shape.immediate = at == 0; })},
         {"capacity", into(capacity)},
         {"inline", into(shape.inline_data)},
         {"signal-every", into(shape.send.signal_every)},
         {"batch", into(shape.send.batch_frames)}});
  shape.log2_capacity = static_cast<uint32_t>(std::bit_width(capacity) - 1);
  if (plan.size == 0) plan.size = 64;
  if (plan.iterations == 0) plan.iterations = plan.test == kRate ? 2'000'000 : 100'000;
  if (plan.warmup == 0) plan.warmup = plan.iterations / 10 + 1;
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  alarm(kSecondsToLive);
  const Options options = options_of(argc, argv);
  if (!options.listen.empty()) {
    serve(options);
  } else if (!options.connect.empty()) {
    connect(options);
  } else {
    fail("--listen or --connect?");
  }
}
