// The addon's face: the functions that src/native.ts declares.
#include <napi.h>

#include "binding/convert.h"
#include "binding/engine_object.h"
#include "binding/kernel_functions.h"
#include "binding/ublk_functions.h"
#include "rdma/arena.h"

namespace rdmakit::nbd::binding {

using namespace volume;

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

Napi::Object initialize(Napi::Object exports) {
  const auto add = [&](const char* name, auto function) { define(exports, name, function); };
  add("laneRequirements", lane_requirements);
  add("createEngine", create_engine);
  add("exportFlags", export_flags);
  add("leftClaimed", left_claimed);
  add("lookUpSlab", look_up_slab);
  add("mapSlab", map_slab);
  add("replaceSlab", replace_slab);
  add("addReplica", add_replica);
  add("moveReplica", move_replica);
  add("setWaits", set_waits);
  add("stampBackup", stamp_backup);
  add("failedServers", failed_servers);
  add("retireReplica", retire_replica);
  add("dropReplica", drop_replica);
  add("refill", refill);
  add("backupWarnings", backup_warnings);
  add("missingInBackup", missing_in_backup);
  add("addSpare", add_spare);
  add("removeSpare", remove_spare);
  add("collectSpares", collect_spares);
  add("setExhausted", set_exhausted);
  add("takeCleared", take_cleared);
  add("vacateSlab", vacate_slab);
  add("synchronize", synchronize);
  add("addLane", add_lane);
  add("addRefillLane", add_refill_lane);
  add("connectServer", connect_server);
  add("disconnectServer", disconnect_server);
  add("releaseServer", release_server);
  add("failServer", fail_server);
  add("bindUnix", bind_unix);
  add("bindTcp", bind_tcp);
  add("acceptClients", accept_clients);
  add("pinLane", pin_lane);
  add("attachSocketpair", attach_socketpair);
  add("attachSocket", attach_socket);
  add("attachDevice", attach_device);
  add("yieldLane", yield_lane);
  add("resumeLane", resume_lane);
  add("lockFile", lock_file);
  add("statistics", statistics);
  add("setLimits", set_limits);
  add("usage", usage);
  add("idle", idle);
  add("close", close_engine);
  add("protectProcess", protect_process);
  add("descriptorChannel", descriptor_channel);
  add("sendDescriptors", send_descriptors);
  add("receiveDescriptors", receive_descriptors);
  add("closeDescriptor", close_descriptor);
  add("replaceProcess", replace_process);
  add("kernelConnect", kernel_connect);
  add("kernelReconfigure", kernel_reconfigure);
  add("kernelDisconnect", kernel_disconnect);
  add("kernelStatus", kernel_status);
  add("ublkAdd", ublk_add);
  add("ublkOpen", ublk_open);
  add("ublkRecover", ublk_recover);
  add("ublkNudge", ublk_nudge);
  add("ublkUse", ublk_use);
  add("ublkStatus", ublk_status);
  add("ublkStart", ublk_start);
  add("ublkResume", ublk_resume);
  add("ublkStop", ublk_stop);
  add("ublkDelete", ublk_delete);
  return exports;
}

}  // namespace

}  // namespace rdmakit::nbd::binding

static Napi::Object initialize(Napi::Env, Napi::Object exports) {
  return rdmakit::nbd::binding::initialize(exports);
}

NODE_API_MODULE(nbd_client, initialize)
