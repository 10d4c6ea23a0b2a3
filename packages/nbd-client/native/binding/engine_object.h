// The engine behind a type-tagged external, and the way of its events into JavaScript.
#pragma once

#include <napi.h>

#include <memory>

#include "export/engine.h"

namespace rdmakit::nbd::binding {

struct EngineObject {
  // Unreferenced: an engine alone does not keep Node alive. Used a few times in an engine's life, never
  // per request.
  Napi::ThreadSafeFunction events;
  Engine::Owner engine;

  ~EngineObject();
  // Before JavaScript's environment (a worker, the process) ends: none of our threads may call into it
  // any more, and an engine without its control path serves nobody.
  static void end(void* object);
  void release_events();

  napi_env env = nullptr;  // while the hook for end() is set
  bool events_released = false;
};

Engine& to_engine(const Napi::Value& value);

// The functions of src/native.ts.
Napi::Value create_engine(const Napi::CallbackInfo& info);
Napi::Value export_flags(const Napi::CallbackInfo& info);
Napi::Value left_claimed(const Napi::CallbackInfo& info);
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
void bind_unix(const Napi::CallbackInfo& info);
Napi::Value bind_tcp(const Napi::CallbackInfo& info);
void accept_clients(const Napi::CallbackInfo& info);
void pin_lane(const Napi::CallbackInfo& info);
Napi::Value attach_socketpair(const Napi::CallbackInfo& info);
void attach_device(const Napi::CallbackInfo& info);
void attach_socket(const Napi::CallbackInfo& info);
void yield_lane(const Napi::CallbackInfo& info);
void resume_lane(const Napi::CallbackInfo& info);
Napi::Value close_engine(const Napi::CallbackInfo& info);
Napi::Value statistics(const Napi::CallbackInfo& info);
void set_limits(const Napi::CallbackInfo& info);
Napi::Value usage(const Napi::CallbackInfo& info);
Napi::Value idle(const Napi::CallbackInfo& info);

}  // namespace rdmakit::nbd::binding
