// The functions of a volume by the names that JavaScript knows (VolumeAddon in TypeScript).
#include "binding/volume_object.h"
#include "rdmakit/binding_call.h"

namespace rdmakit::volume::binding {

void add_volume_functions(Napi::Object& exports) {
  const auto add = [&](const char* name, auto function) { define(exports, name, function); };
  add("laneRequirements", lane_requirements);
  add("leftClaimed", left_claimed);
  add("nextToResync", next_to_resync);
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
  add("dropRetired", drop_retired);
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
  add("pinLane", pin_lane);
  add("yieldLane", yield_lane);
  add("resumeLane", resume_lane);
  add("statistics", statistics);
  add("setLimits", set_limits);
  add("usage", usage);
  add("idle", idle);
  add("close", close_engine);
}

}  // namespace rdmakit::volume::binding
