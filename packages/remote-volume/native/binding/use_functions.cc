// How servers and slabs are used, and how fast servers may be.
#include "base/clock.h"
#include "binding/convert.h"
#include "binding/volume_object.h"

namespace rdmakit::volume::binding {

namespace {

void set_limits(const Napi::CallbackInfo& info) {
  const int error = to_engine(info[0]).set_limits(to_uint32(info[1], "server"), to_uint64(info[2], "bytes"),
                                                  to_uint64(info[3], "operations"));
  check(info.Env(), error, "setLimits", "server out of range");
}

// Sums of all lanes, of refills too.
Napi::Value usage(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  VolumeEngine& engine = to_engine(info[0]);
  const uint32_t server = to_uint32(info[1], "server");
  if (server >= kMaxServers) check(env, EINVAL, "usage", "server out of range");
  uint64_t bytes = 0;
  uint64_t operations = 0;
  const auto add = [&](const Lane& lane) {
    const ServerStatistics& from = lane.statistics(server);
    bytes += from.bytes_read.get() + from.bytes_written.get();
    operations += from.reads.get() + from.writes.get();
  };
  for (uint32_t i = 0; i < engine.lane_count(); i++) add(engine.lane(i));
  if (const RefillLane* refills = engine.refill_lane(); refills != nullptr) add(*refills);
  return new_object(env, "bytes", static_cast<double>(bytes), "operations", static_cast<double>(operations));
}

Napi::Value idle(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  uint64_t nanoseconds = 0;
  const int error = to_engine(info[0]).volume().idle(to_uint32(info[1], "slab"), now_ns(), nanoseconds);
  check(env, error, "idle", "slab out of range");
  return Napi::Number::New(env, static_cast<double>(nanoseconds / 1'000'000));
}

}  // namespace

void add_use_functions(Napi::Object& exports) {
  define(exports, "setLimits", set_limits);
  define(exports, "usage", usage);
  define(exports, "idle", idle);
}

}  // namespace rdmakit::volume::binding
