// What datagrams need: address handles, multicast groups, the GID table.
#include <cerrno>
#include <cstring>

#include "binding/failure.h"
#include "binding/objects.h"
#include "binding/queue-pair/address_vector.h"
#include "binding/values.h"

namespace rdmakit::binding {

void AhObject::destroy(void* verbs_object) {
  provider.destroy_ah(static_cast<ibv_ah*>(verbs_object));
  parent_ = {};
}

namespace {

Napi::Value create_ah(const Napi::CallbackInfo& info) {
  auto& pd = object_of<PdObject>(info[0]);
  ibv_ah_attr attributes = address_vector_of(info[1].As<Napi::Object>());
  ibv_ah* ah = pd.provider.create_ah(pd.pd(), &attributes);
  if (ah == nullptr) {
    const int error = errno;
    throw failure(info.Env(), error, "ibv_create_ah",
                  error == EOPNOTSUPP ? "the device has no datagrams" : reason(error));
  }
  return Object::wrap(info.Env(), new AhObject(pd, ah));
}

void change_multicast(const Napi::CallbackInfo& info, bool join) {
  auto& qp = object_of<QpObject>(info[0]);
  const ibv_gid gid = gid_of(info[1]);
  const auto lid = static_cast<uint16_t>(number(info[2]));
  check(info.Env(),
        join ? qp.provider.attach_mcast(qp.qp(), &gid, lid) : qp.provider.detach_mcast(qp.qp(), &gid, lid),
        join ? "ibv_attach_mcast" : "ibv_detach_mcast");
}

void attach_multicast(const Napi::CallbackInfo& info) { change_multicast(info, true); }
void detach_multicast(const Napi::CallbackInfo& info) { change_multicast(info, false); }

Napi::Value query_gids(const Napi::CallbackInfo& info) {
  auto& context = object_of<ContextObject>(info[0]);
  std::vector<GidEntry> entries;
  const auto port = static_cast<uint8_t>(number(info[1]));
  check(info.Env(), context.provider.query_gids(context.context(), port, entries), "ibv_query_gid");
  Napi::Array list = Napi::Array::New(info.Env(), entries.size());
  for (uint32_t i = 0; i < entries.size(); ++i) {
    Napi::Object entry = Napi::Object::New(info.Env());
    entry.Set("index", entries[i].index);
    entry.Set("gid", Napi::Buffer<uint8_t>::Copy(info.Env(), entries[i].gid.raw, sizeof entries[i].gid.raw));
    entry.Set("type", entries[i].type);
    entry.Set("interfaceIndex", entries[i].interface_index);
    list.Set(i, entry);
  }
  return list;
}

}  // namespace

void export_datagrams(Napi::Object exports) {
  define(exports, "createAh", create_ah);
  define(exports, "attachMulticast", attach_multicast);
  define(exports, "detachMulticast", detach_multicast);
  define(exports, "queryGids", query_gids);
}

}  // namespace rdmakit::binding
