// Counters as plain JavaScript objects.
#include "binding/engine_object.h"

namespace rdmakit::nbd::binding {

namespace {

double number(uint64_t value) { return static_cast<double>(value); }

Napi::Array buckets(Napi::Env env, const Histogram& histogram) {
  Napi::Array result = Napi::Array::New(env);
  for (size_t i = 0; i < Histogram::kBuckets; i++) {
    const uint64_t count = histogram.count(i);
    if (count == 0) continue;
    Napi::Array pair = Napi::Array::New(env, 2);
    pair.Set(0u, number(uint64_t{1} << i));
    pair.Set(1u, number(count));
    result.Set(result.Length(), pair);
  }
  return result;
}

const char* state_name(Lane::State state) {
  switch (state) {
    case Lane::State::idle:
      return "idle";
    case Lane::State::reserved:
    case Lane::State::serving:
      return "serving";
    case Lane::State::draining:
      return "draining";
    case Lane::State::stopped:
      return "stopped";
  }
  return "stopped";
}

Napi::Object describe(Napi::Env env, const Lane& lane) {
  const LaneStatistics& from = lane.statistics();
  Napi::Object to = Napi::Object::New(env);
  const auto set = [&to](const char* name, const Counter& counter) { to.Set(name, number(counter.get())); };
  to.Set("state", state_name(lane.state()));
  set("connections", from.connections);
  set("reads", from.reads);
  set("writes", from.writes);
  set("flushes", from.flushes);
  set("trims", from.trims);
  set("writeZeroes", from.write_zeroes);
  set("caches", from.caches);
  set("blockStatuses", from.block_statuses);
  set("bytesRead", from.bytes_read);
  set("bytesWritten", from.bytes_written);
  set("errors", from.errors);
  set("inFlight", from.in_flight);
  set("rdmaReads", from.rdma_reads);
  set("rdmaWrites", from.rdma_writes);
  set("rdmaFences", from.rdma_fences);
  set("outstandingOperations", from.outstanding_operations);
  set("pagesReadWithoutNetwork", from.pages_read_without_network);
  set("pagesWaitedFor", from.pages_waited_for);
  set("spins", from.spins);
  set("sleeps", from.sleeps);
  set("spinLimit", from.spin_limit);
  to.Set("readLatency", buckets(env, from.read_latency));
  to.Set("writeLatency", buckets(env, from.write_latency));
  return to;
}

}  // namespace

Napi::Value statistics(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  Engine& engine = to_engine(info[0]);
  Napi::Array failed = Napi::Array::New(env);
  for (uint32_t server = 0; server < kMaxServers; server++) {
    if (engine.volume().failed(server)) failed.Set(failed.Length(), server);
  }
  Napi::Array lanes = Napi::Array::New(env);
  for (uint32_t i = 0; i < engine.lane_count(); i++) lanes.Set(i, describe(env, engine.lane(i)));
  Napi::Object result = Napi::Object::New(env);
  result.Set("failedServers", failed);
  result.Set("writtenPages", number(engine.volume().pages().count(PageState::written)));
  result.Set("lostPages", number(engine.volume().pages().count(PageState::lost)));
  result.Set("handshakes", number(engine.acceptor().handshakes()));
  result.Set("handshakesRefused", number(engine.acceptor().refused()));
  result.Set("lanes", lanes);
  return result;
}

}  // namespace rdmakit::nbd::binding
