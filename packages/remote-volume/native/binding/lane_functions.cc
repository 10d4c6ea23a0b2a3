// Lanes and servers of an engine while it lives.
#include "binding/convert.h"
#include "binding/volume_object.h"
#include "rdma/arena.h"

namespace rdmakit::volume::binding {

namespace {

Napi::Value lane_requirements(const Napi::CallbackInfo& info) {
  const LaneRequirements needs = volume::lane_requirements();
  Napi::Object object = Napi::Object::New(info.Env());
  object.Set("arenaBytes", static_cast<double>(needs.arena_bytes));
  object.Set("sendQueueDepth", needs.send_queue_depth);
  object.Set("completionQueueEntries", needs.completion_queue_entries);
  object.Set("maxInlineData", needs.max_inline_data);
  return object;
}

LaneResources to_resources(const Napi::CallbackInfo& info) {
  LaneResources resources;
  resources.cq = to_reference<CqRef>(info[1], HandleKind::completion_queue, "completionQueue");
  resources.channel = to_optional<ChannelRef>(info[2], HandleKind::completion_channel, "channel");
  resources.queue_pairs = to_vector(info[3], "queuePairs", [](const Napi::Value& each) {
    return to_optional<QpRef>(each, HandleKind::queue_pair, "queuePair");
  });
  resources.memory_regions = to_vector(info[4], "memoryRegions", [](const Napi::Value& each) {
    return to_optional<MrRef>(each, HandleKind::memory_region, "memoryRegion");
  });
  return resources;
}

Napi::Value describe_lane(Napi::Env env, uint32_t index, const std::vector<std::string>& warnings) {
  return new_object(env, "index", index, "warnings", to_array(env, warnings));
}

Napi::Value add_lane(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  VolumeEngine& engine = to_engine(info[0]);
  uint32_t index = 0;
  std::vector<std::string> warnings;
  std::string why;
  check(env, engine.add_lane(to_resources(info), index, warnings, why), "addLane", why);
  return describe_lane(env, index, warnings);
}

Napi::Value add_refill_lane(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  VolumeEngine& engine = to_engine(info[0]);
  std::vector<std::string> warnings;
  std::string why;
  check(env, engine.add_refill_lane(to_resources(info), warnings, why), "addRefillLane", why);
  return describe_lane(env, kRefillLane, warnings);
}

void connect_server(const Napi::CallbackInfo& info) {
  VolumeEngine& engine = to_engine(info[0]);
  const auto qp = to_reference<QpRef>(info[3], HandleKind::queue_pair, "queuePair");
  const auto mr = to_optional<MrRef>(info[4], HandleKind::memory_region, "memoryRegion");
  std::string why;
  const int error =
      engine.connect_server(to_uint32(info[1], "lane"), to_uint32(info[2], "server"), qp, mr, why);
  check(info.Env(), error, "connectServer", why);
}

void fail_server(const Napi::CallbackInfo& info) {
  const int error =
      to_engine(info[0]).fail_server(to_uint32(info[1], "server"), to_string(info[2], "reason"));
  check(info.Env(), error, "failServer", "server out of range");
}

void disconnect_server(const Napi::CallbackInfo& info) {
  std::string why;
  const int error = to_engine(info[0]).disconnect_server(to_uint32(info[1], "server"), why);
  check(info.Env(), error, "disconnectServer", why);
}

void release_server(const Napi::CallbackInfo& info) {
  std::string why;
  const int error = to_engine(info[0]).release_server(to_uint32(info[1], "server"), why);
  check(info.Env(), error, "releaseServer", why);
}

Napi::Value synchronize(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), static_cast<double>(to_engine(info[0]).synchronize()));
}

void pin_lane(const Napi::CallbackInfo& info) {
  // The maximum for which the kernel is built (CONFIG_NR_CPUS of x86).
  constexpr uint32_t kProcessors = 8192;
  const std::vector<uint32_t> processors = to_vector(info[2], "processors", [](const Napi::Value& each) {
    const uint32_t processor = to_uint32(each, "processor");
    if (processor >= kProcessors)
      throw Napi::TypeError::New(each.Env(), "processor must be an integer of 0 … 8191");
    return processor;
  });
  check(info.Env(), to_engine(info[0]).pin_lane(to_uint32(info[1], "lane"), processors), "pinLane", "");
}

void yield_lane(const Napi::CallbackInfo& info) {
  check(info.Env(), to_engine(info[0]).yield_lane(to_uint32(info[1], "lane")), "yieldLane", "");
}

void resume_lane(const Napi::CallbackInfo& info) {
  check(info.Env(), to_engine(info[0]).resume_lane(to_uint32(info[1], "lane")), "resumeLane", "");
}

}  // namespace

void add_lane_functions(Napi::Object& exports) {
  define(exports, "laneRequirements", lane_requirements);
  define(exports, "synchronize", synchronize);
  define(exports, "addLane", add_lane);
  define(exports, "addRefillLane", add_refill_lane);
  define(exports, "connectServer", connect_server);
  define(exports, "disconnectServer", disconnect_server);
  define(exports, "releaseServer", release_server);
  define(exports, "failServer", fail_server);
  define(exports, "pinLane", pin_lane);
  define(exports, "yieldLane", yield_lane);
  define(exports, "resumeLane", resume_lane);
}

}  // namespace rdmakit::volume::binding
