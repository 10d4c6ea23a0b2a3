// The slab table: where slabs are, as JavaScript decides it.
#include <span>
#include <vector>

#include "binding/convert.h"
#include "binding/volume_object.h"

namespace rdmakit::volume::binding {

namespace {

uint16_t to_server(const Napi::Value& value) {
  const uint32_t server = to_uint32(value, "server");
  if (server >= kMaxServers) check(value.Env(), EINVAL, "slab", "slab or server out of range");
  return static_cast<uint16_t>(server);
}

Replica to_replica(const Napi::Value& value) {
  if (!value.IsObject()) throw Napi::TypeError::New(value.Env(), "expected where a slab is");
  const auto from = value.As<Napi::Object>();
  Replica replica;
  replica.server = to_server(from.Get("server"));
  replica.remote_key = to_uint32(from.Get("remoteKey"), "remoteKey");
  replica.address = to_uint64(from.Get("address"), "address");
  return replica;
}

std::vector<Replica> to_replicas(const Napi::Value& value) {
  return to_vector(value, "replicas", to_replica);
}

const char* explain(int error) {
  switch (error) {
    case EEXIST:
      return "it is there already";
    case ENOENT:
      return "the slab has no replica there";
    case ENOSPC:
      return "the slab has as many replicas as there may be";
    case EHOSTDOWN:
      return "that server index has failed";
    case ENODATA:
      return "neither a live replica nor a backup is left to fill it from";
    case ESTALE:
      return "another replica has what this one missed";
    case EBUSY:
      return "first writes to the old place are still ending; the slab stays unmapped, call again";
    default:
      return "slab or server out of range, or two replicas on one server";
  }
}

void map_slab(const Napi::CallbackInfo& info) {
  const int error = to_engine(info[0]).volume().map_slab(to_uint32(info[1], "slab"), to_replicas(info[2]));
  check(info.Env(), error, "mapSlab", explain(error));
}

Napi::Value left_claimed(const Napi::CallbackInfo& info) {
  return to_array(info.Env(), to_engine(info[0]).volume().left_claimed(),
                  [](uint64_t page) { return static_cast<double>(page); });
}

Napi::Value next_to_resync(const Napi::CallbackInfo& info) {
  const std::optional<uint64_t> page = to_engine(info[0]).volume().next_to_resync();
  if (!page.has_value()) return info.Env().Null();
  return Napi::Number::New(info.Env(), static_cast<double>(*page));
}

Napi::Value look_up_slab(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  SlabPlace place;
  bool ever = false;
  const int error = to_engine(info[0]).volume().look_up(to_uint32(info[1], "slab"), place, ever);
  check(env, error, "lookUpSlab", explain(error));
  if (!ever) return env.Null();
  return to_array(env, std::span(place.replicas).first(place.count), [env](const Replica& replica) {
    Napi::Object each = Napi::Object::New(env);
    each.Set("server", static_cast<uint32_t>(replica.server));
    each.Set("remoteKey", replica.remote_key);
    each.Set("address", Napi::BigInt::New(env, replica.address));
    each.Set("live", replica.live);
    each.Set("leaving", replica.leaving);
    return each;
  });
}

void replace_slab(const Napi::CallbackInfo& info) {
  const Replica place = to_replica(info[2]);
  const int error = to_engine(info[0]).volume().replace_slab(
      to_uint32(info[1], "slab"), place.server, place.remote_key, place.address, info[3].ToBoolean());
  check(info.Env(), error, "replaceSlab", explain(error));
}

void add_replica(const Napi::CallbackInfo& info) {
  const int error = to_engine(info[0]).volume().add_replica(to_uint32(info[1], "slab"), to_replica(info[2]));
  check(info.Env(), error, "addReplica", explain(error));
}

void move_replica(const Napi::CallbackInfo& info) {
  const int error = to_engine(info[0]).volume().move_replica(to_uint32(info[1], "slab"), to_server(info[2]),
                                                             to_replica(info[3]));
  check(info.Env(), error, "moveReplica", explain(error));
}

void set_waits(const Napi::CallbackInfo& info) { to_engine(info[0]).volume().set_waits(); }

void stamp_backup(const Napi::CallbackInfo& info) { to_engine(info[0]).stamp_backup(); }

void retire_replica(const Napi::CallbackInfo& info) {
  const int error =
      to_engine(info[0]).volume().retire_replica(to_uint32(info[1], "slab"), to_server(info[2]));
  check(info.Env(), error, "retireReplica",
        error == EBUSY ? "no other usable replica is left" : explain(error));
}

Napi::Value from_dropped(Napi::Env env, const Volume::Dropped& dropped) {
  return new_object(env, "wasLive", dropped.was_live, "liveLeft", dropped.live_left);
}

Napi::Value drop_replica(const Napi::CallbackInfo& info) {
  Volume::Dropped dropped;
  const int error = to_engine(info[0]).volume().drop_replica(to_uint32(info[1], "slab"), to_server(info[2]),
                                                             info[3].ToBoolean(), dropped);
  check(info.Env(), error, "dropReplica",
        error == EBUSY ? "it was not retired, or it is the last usable one" : explain(error));
  return from_dropped(info.Env(), dropped);
}

Napi::Value drop_retired(const Napi::CallbackInfo& info) {
  Volume::Dropped dropped;
  const int error =
      to_engine(info[0]).volume().drop_retired(to_uint32(info[1], "slab"), to_server(info[2]), dropped);
  check(info.Env(), error, "dropRetired", error == EBUSY ? "it is the last usable one" : explain(error));
  return from_dropped(info.Env(), dropped);
}

void refill(const Napi::CallbackInfo& info) {
  std::string why;
  const int error = to_engine(info[0]).refill(to_uint32(info[1], "slab"), to_server(info[2]), why);
  check(info.Env(), error, "refill", why);
}

void add_spare(const Napi::CallbackInfo& info) {
  const int error = to_engine(info[0]).add_spare(to_uint32(info[1], "id"), to_replicas(info[2]));
  check(info.Env(), error, "addSpare", error == ENOSPC ? "there are 64 spare places" : explain(error));
}

Napi::Value remove_spare(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), to_engine(info[0]).volume().remove_spare(to_uint32(info[1], "id")));
}

Napi::Value collect_spares(const Napi::CallbackInfo& info) {
  std::vector<PlacePool::Used> used;
  to_engine(info[0]).volume().collect_spares(used);
  return to_array(info.Env(), used, [&info](const PlacePool::Used& place) {
    return new_object(info.Env(), "id", place.id, "slab", place.slab);
  });
}

void set_exhausted(const Napi::CallbackInfo& info) { to_engine(info[0]).set_exhausted(); }

Napi::Value take_cleared(const Napi::CallbackInfo& info) {
  std::vector<uint32_t> slabs;
  to_engine(info[0]).volume().take_cleared(slabs);
  return to_array(info.Env(), slabs);
}

// False: it is not empty, or has no place.
Napi::Value vacate_slab(const Napi::CallbackInfo& info) {
  const int error = to_engine(info[0]).volume().vacate(to_uint32(info[1], "slab"));
  if (error == EINVAL) check(info.Env(), error, "vacateSlab", explain(error));
  return Napi::Boolean::New(info.Env(), error == 0);
}

}  // namespace

void add_slab_functions(Napi::Object& exports) {
  define(exports, "leftClaimed", left_claimed);
  define(exports, "nextToResync", next_to_resync);
  define(exports, "lookUpSlab", look_up_slab);
  define(exports, "mapSlab", map_slab);
  define(exports, "replaceSlab", replace_slab);
  define(exports, "addReplica", add_replica);
  define(exports, "moveReplica", move_replica);
  define(exports, "setWaits", set_waits);
  define(exports, "stampBackup", stamp_backup);
  define(exports, "retireReplica", retire_replica);
  define(exports, "dropReplica", drop_replica);
  define(exports, "dropRetired", drop_retired);
  define(exports, "refill", refill);
  define(exports, "addSpare", add_spare);
  define(exports, "removeSpare", remove_spare);
  define(exports, "collectSpares", collect_spares);
  define(exports, "setExhausted", set_exhausted);
  define(exports, "takeCleared", take_cleared);
  define(exports, "vacateSlab", vacate_slab);
}

}  // namespace rdmakit::volume::binding
