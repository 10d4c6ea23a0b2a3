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

// Adds the functions of a volume to an addon's exports, by the names that JavaScript knows (VolumeAddon in
// TypeScript).
void add_volume_functions(Napi::Object& exports);
// The parts of that.
void add_slab_functions(Napi::Object& exports);
void add_lane_functions(Napi::Object& exports);
void add_use_functions(Napi::Object& exports);
void add_statistics_functions(Napi::Object& exports);

}  // namespace rdmakit::volume::binding
