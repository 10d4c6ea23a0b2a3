// Counters as plain JavaScript objects.
#include "binding/convert.h"
#include "binding/volume_object.h"

namespace rdmakit::volume::binding {

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
  return new_object(env, "sum", number(histogram.sum()), "buckets", buckets);
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

const char* compression_name(Compression mode) {
  switch (mode) {
    case Compression::off:
      return "none";
    case Compression::measured:
      return "lz4";
    case Compression::always:
      return "lz4-always";
  }
  return "none";
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
  set("pagesReadAhead", from.pages_read_ahead);
  set("bytesFromReadAhead", from.bytes_from_read_ahead);
  set("zeroPages", from.zero_pages);
  set("pagesCompressed", from.pages_packed);
  set("bytesSpared", from.bytes_spared);
  to.Set("compressing", from.compressing.get() != 0);
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
Napi::Array describe_servers(Napi::Env env, VolumeEngine& engine) {
  const RefillLane* refills = engine.refill_lane();
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

Napi::Value describe_refill(Napi::Env env, VolumeEngine& engine) {
  const RefillLane* lane = engine.refill_lane();
  if (lane == nullptr) return env.Null();
  const RefillStatistics& from = lane->work().refill().statistics();
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

// Only of the written pages something can be missing.
Napi::Value describe_backup(Napi::Env env, VolumeEngine& engine) {
  const Backup* backup = engine.backup();
  if (backup == nullptr) return env.Null();
  const Volume& volume = engine.volume();
  const RefillLane* lane = engine.refill_lane();
  const BackupStatistics& from = backup->statistics();
  Napi::Object to = Napi::Object::New(env);
  to.Set("file", backup->path());
  to.Set("working", backup->working());
  to.Set("bytesWritten", number(from.bytes_written.get()));
  to.Set("bytesRead", number(from.bytes_read.get()));
  // In this order: a page that gets from one to the other meanwhile is counted twice, and not passed over.
  to.Set("stalePages", number(backup->map().count_missing(volume.pages(), 0, volume.size() / kPage)));
  to.Set("queuedPages", number(backup->queued()));
  to.Set("missedPages", number(backup->missed()));
  to.Set("caughtUpPages", number(lane == nullptr || lane->work().catch_up() == nullptr
                                     ? 0
                                     : lane->work().catch_up()->pages().get()));
  return to;
}

// Counts the written pages of a slab that the backup neither has nor will get.
Napi::Value missing_in_backup(const Napi::CallbackInfo& info) {
  VolumeEngine& engine = to_engine(info[0]);
  const uint32_t slab = to_uint32(info[1], "slab");
  const Volume& volume = engine.volume();
  const Backup* backup = engine.backup();
  const bool known = backup != nullptr && slab < volume.slabs();
  return Napi::Number::New(info.Env(),
                           known ? number(backup->map().count_missing(volume.pages(), volume.first_page(slab),
                                                                      volume.pages_of(slab)))
                                 : 0);
}

// Of these, before anything is written, those that no WRITE brings again that was open when the last process
// ended.
Napi::Value lacking_in_backup(const Napi::CallbackInfo& info) {
  VolumeEngine& engine = to_engine(info[0]);
  const uint32_t slab = to_uint32(info[1], "slab");
  const Volume& volume = engine.volume();
  const Backup* backup = engine.backup();
  const bool known = backup != nullptr && slab < volume.slabs();
  return Napi::Number::New(
      info.Env(), known ? number(backup->map().count_lacking(volume.pages(), volume.first_page(slab),
                                                             volume.pages_of(slab), volume.left_claimed()))
                        : 0);
}

Napi::Value backup_warnings(const Napi::CallbackInfo& info) {
  return to_array(info.Env(), to_engine(info[0]).backup_warnings());
}

Napi::Value failed_servers(const Napi::CallbackInfo& info) {
  return to_array(info.Env(), to_engine(info[0]).volume().failed_in_order());
}

Napi::Value statistics(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  VolumeEngine& engine = to_engine(info[0]);
  Napi::Array lanes = Napi::Array::New(env);
  for (uint32_t i = 0; i < engine.lane_count(); i++) lanes.Set(i, describe(env, engine.lane(i)));
  Napi::Object result = Napi::Object::New(env);
  result.Set("failedServers", failed_servers(info));
  result.Set("writtenPages", number(engine.volume().count_pages(PageState::written)));
  result.Set("lostPages", number(engine.volume().count_pages(PageState::lost)));
  result.Set("compress", compression_name(engine.volume().compression()));
  result.Set("mappedSlabs", number(engine.volume().mapped()));
  result.Set("sparePlaces", number(engine.volume().spares()));
  describe_front(result, engine);
  result.Set("lanes", lanes);
  result.Set("servers", describe_servers(env, engine));
  result.Set("refill", describe_refill(env, engine));
  result.Set("backup", describe_backup(env, engine));
  return result;
}

}  // namespace

void add_statistics_functions(Napi::Object& exports) {
  define(exports, "failedServers", failed_servers);
  define(exports, "backupWarnings", backup_warnings);
  define(exports, "missingInBackup", missing_in_backup);
  define(exports, "lackingInBackup", lacking_in_backup);
  define(exports, "statistics", statistics);
}

}  // namespace rdmakit::volume::binding
