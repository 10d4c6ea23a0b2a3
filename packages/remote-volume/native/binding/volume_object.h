// The engine behind a type-tagged external, and the way of its events into JavaScript.
#pragma once

#include <napi.h>

#include <functional>
#include <memory>

#include "engine/volume_engine.h"

namespace rdmakit::volume::binding {

using EngineOwner = std::unique_ptr<VolumeEngine, VolumeEngine::Closer>;

struct EngineObject {
  // Unreferenced: an engine alone does not keep Node alive. Used a few times in an engine's life, never
  // per request.
  Napi::ThreadSafeFunction events;
  EngineOwner engine;

  ~EngineObject();
  // Runs before JavaScript's environment (a worker, the process) ends: after that none of our threads may
  // call into it, and an engine without its control path is useless.
  static void end(void* object);
  void release_events();

  napi_env env = nullptr;  // while the hook for end() is set
  bool events_released = false;
};

// ---- what an addon brings ----
// Of its engines: another addon's are none of its own.
extern const napi_type_tag kEngineTag;
// Adds the front's part to statistics().
void describe_front(Napi::Object& statistics, VolumeEngine& engine);

// The engine that `open` makes, with its events going to `listener`. nullptr with `error` and `why`.
using Open = std::function<EngineOwner(VolumeEngine::Sink sink, int& error, std::string& why)>;
Napi::Value make_engine(const Napi::CallbackInfo& info, const Napi::Function& listener, const Open& open);
// Converts JavaScript's options of the volume and its lanes.
void to_volume_options(const Napi::Object& from, VolumeEngineOptions& options);

VolumeEngine& to_engine(const Napi::Value& value);

// Adds the functions below to an addon's exports, under the names that JavaScript knows.
void add_volume_functions(Napi::Object& exports);

Napi::Value lane_requirements(const Napi::CallbackInfo& info);
Napi::Value left_claimed(const Napi::CallbackInfo& info);
Napi::Value next_to_resync(const Napi::CallbackInfo& info);
Napi::Value look_up_slab(const Napi::CallbackInfo& info);
void map_slab(const Napi::CallbackInfo& info);
void replace_slab(const Napi::CallbackInfo& info);
void add_replica(const Napi::CallbackInfo& info);
void move_replica(const Napi::CallbackInfo& info);
void set_waits(const Napi::CallbackInfo& info);
void stamp_backup(const Napi::CallbackInfo& info);
Napi::Value failed_servers(const Napi::CallbackInfo& info);
void retire_replica(const Napi::CallbackInfo& info);
Napi::Value drop_replica(const Napi::CallbackInfo& info);
Napi::Value drop_retired(const Napi::CallbackInfo& info);
void refill(const Napi::CallbackInfo& info);
Napi::Value backup_warnings(const Napi::CallbackInfo& info);
Napi::Value missing_in_backup(const Napi::CallbackInfo& info);
void add_spare(const Napi::CallbackInfo& info);
Napi::Value remove_spare(const Napi::CallbackInfo& info);
Napi::Value collect_spares(const Napi::CallbackInfo& info);
void set_exhausted(const Napi::CallbackInfo& info);
Napi::Value take_cleared(const Napi::CallbackInfo& info);
Napi::Value vacate_slab(const Napi::CallbackInfo& info);
Napi::Value synchronize(const Napi::CallbackInfo& info);
Napi::Value add_lane(const Napi::CallbackInfo& info);
Napi::Value add_refill_lane(const Napi::CallbackInfo& info);
void connect_server(const Napi::CallbackInfo& info);
void disconnect_server(const Napi::CallbackInfo& info);
void release_server(const Napi::CallbackInfo& info);
void fail_server(const Napi::CallbackInfo& info);
void pin_lane(const Napi::CallbackInfo& info);
void yield_lane(const Napi::CallbackInfo& info);
void resume_lane(const Napi::CallbackInfo& info);
Napi::Value close_engine(const Napi::CallbackInfo& info);
Napi::Value statistics(const Napi::CallbackInfo& info);
void set_limits(const Napi::CallbackInfo& info);
Napi::Value usage(const Napi::CallbackInfo& info);
Napi::Value idle(const Napi::CallbackInfo& info);

}  // namespace rdmakit::volume::binding
