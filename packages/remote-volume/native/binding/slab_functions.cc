// The slab table: where slabs are, as JavaScript decides it.
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
  if (!value.IsArray()) throw Napi::TypeError::New(value.Env(), "expected an array of replicas");
  const auto list = value.As<Napi::Array>();
  std::vector<Replica> replicas;
  for (uint32_t i = 0; i < list.Length(); i++) replicas.push_back(to_replica(list.Get(i)));
  return replicas;
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

}  // namespace

void map_slab(const Napi::CallbackInfo& info) {
  const int error = to_engine(info[0]).volume().map_slab(to_uint32(info[1], "slab"), to_replicas(info[2]));
  check(info.Env(), error, "mapSlab", explain(error));
}

Napi::Value left_claimed(const Napi::CallbackInfo& info) {
  const std::vector<uint64_t>& pages = to_engine(info[0]).volume().left_claimed();
  Napi::Array result = Napi::Array::New(info.Env(), pages.size());
  for (uint32_t i = 0; i < pages.size(); i++) result.Set(i, static_cast<double>(pages[i]));
  return result;
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
  Napi::Array replicas = Napi::Array::New(env, place.count);
  for (uint32_t i = 0; i < place.count; i++) {
    const Replica& replica = place.replicas[i];
    Napi::Object each = Napi::Object::New(env);
    each.Set("server", static_cast<uint32_t>(replica.server));
    each.Set("remoteKey", replica.remote_key);
    each.Set("address", Napi::BigInt::New(env, replica.address));
    each.Set("live", replica.live);
    each.Set("leaving", replica.leaving);
    replicas.Set(i, each);
  }
  return replicas;
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

static Napi::Value from_dropped(Napi::Env env, const Volume::Dropped& dropped) {
  Napi::Object result = Napi::Object::New(env);
  result.Set("wasLive", dropped.was_live);
  result.Set("liveLeft", dropped.live_left);
  return result;
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
  Napi::Array result = Napi::Array::New(info.Env(), used.size());
  for (uint32_t i = 0; i < used.size(); i++) {
    Napi::Object each = Napi::Object::New(info.Env());
    each.Set("id", used[i].id);
    each.Set("slab", used[i].slab);
    result.Set(i, each);
  }
  return result;
}

void set_exhausted(const Napi::CallbackInfo& info) { to_engine(info[0]).set_exhausted(); }

Napi::Value take_cleared(const Napi::CallbackInfo& info) {
  std::vector<uint32_t> slabs;
  to_engine(info[0]).volume().take_cleared(slabs);
  Napi::Array result = Napi::Array::New(info.Env(), slabs.size());
  for (uint32_t i = 0; i < slabs.size(); i++) result.Set(i, slabs[i]);
  return result;
}

// False: it is not empty, or has no place.
Napi::Value vacate_slab(const Napi::CallbackInfo& info) {
  const int error = to_engine(info[0]).volume().vacate(to_uint32(info[1], "slab"));
  if (error == EINVAL) check(info.Env(), error, "vacateSlab", explain(error));
  return Napi::Boolean::New(info.Env(), error == 0);
}

}  // namespace rdmakit::volume::binding
