// Counters as plain JavaScript objects.
#include "binding/engine_object.h"

namespace rdmakit::nbd::binding {

namespace {

double number(uint64_t value) { return static_cast<double>(value); }

Napi::Object describe(Napi::Env env, const Histogram& histogram) {
  Napi::Array buckets = Napi::Array::New(env);
  for (size_t i = 0; i < Histogram::kBuckets; i++) {
    const uint64_t count = histogram.count(i);
    if (count == 0) continue;
    Napi::Array bucket = Napi::Array::New(env, 3);
    bucket.Set(0u, number(Histogram::lower(i)));
    bucket.Set(1u, number(Histogram::lower(i + 1)));
    bucket.Set(2u, number(count));
    buckets.Set(buckets.Length(), bucket);
  }
  Napi::Object result = Napi::Object::New(env);
  result.Set("sum", number(histogram.sum()));
  result.Set("buckets", buckets);
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
  set("zeroPages", from.zero_pages);
  set("pagesWrong", from.pages_wrong);
  set("pagesRepaired", from.pages_repaired);
  set("pagesWaitedFor", from.pages_waited_for);
  set("turnsWaitedFor", from.turns_waited_for);
  set("spins", from.spins);
  set("sleeps", from.sleeps);
  set("spinLimit", from.spin_limit);
  to.Set("readLatency", describe(env, from.read_latency));
  to.Set("writeLatency", describe(env, from.write_latency));
  return to;
}

// Sums of all lanes, for each server that any of them used.
Napi::Array describe_servers(Napi::Env env, Engine& engine) {
  const Lane* refills = engine.refill_lane();
  Napi::Array servers = Napi::Array::New(env);
  for (uint32_t server = 0; server < kMaxServers; server++) {
    std::array<uint64_t, 5> sums{};
    const auto add = [&](const Lane& lane) {
      const ServerStatistics& from = lane.statistics(server);
      size_t i = 0;
      for (const Counter* each :
           {&from.reads, &from.writes, &from.bytes_read, &from.bytes_written, &from.outstanding})
        sums[i++] += each->get();
    };
    for (uint32_t i = 0; i < engine.lane_count(); i++) add(engine.lane(i));
    if (refills != nullptr) add(*refills);
    if (sums[0] + sums[1] == 0) continue;
    Napi::Object to = Napi::Object::New(env);
    to.Set("server", server);
    size_t i = 0;
    for (const char* name : {"reads", "writes", "bytesRead", "bytesWritten", "outstandingOperations"})
      to.Set(name, number(sums[i++]));
    servers.Set(servers.Length(), to);
  }
  return servers;
}

Napi::Value describe_refill(Napi::Env env, Engine& engine) {
  const Lane* lane = engine.refill_lane();
  if (lane == nullptr) return env.Null();
  const RefillStatistics& from = lane->refill()->statistics();
  Napi::Object to = Napi::Object::New(env);
  const auto set = [&to](const char* name, const Counter& counter) { to.Set(name, number(counter.get())); };
  to.Set("active", from.active.get() != 0);
  set("slab", from.slab);
  set("pagesDone", from.pages_done);
  set("pages", from.pages);
  set("slabsFilled", from.slabs);
  set("bytesCopied", from.bytes);
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
  result.Set("writtenPages", number(engine.volume().count_pages(PageState::written)));
  result.Set("lostPages", number(engine.volume().count_pages(PageState::lost)));
  result.Set("mappedSlabs", number(engine.volume().mapped()));
  result.Set("sparePlaces", number(engine.volume().spares()));
  result.Set("handshakes", number(engine.acceptor().handshakes()));
  result.Set("handshakesRefused", number(engine.acceptor().refused()));
  result.Set("lanes", lanes);
  result.Set("servers", describe_servers(env, engine));
  result.Set("refill", describe_refill(env, engine));
  return result;
}

}  // namespace rdmakit::nbd::binding
