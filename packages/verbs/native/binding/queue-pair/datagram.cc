// Functions for datagrams: address handles, multicast groups, the GID table.
#include <algorithm>
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

Napi::Value PdObject::create_ah(const Napi::CallbackInfo& info) {
  ibv_ah_attr attributes = address_vector_of(info[1].As<Napi::Object>());
  ibv_ah* ah = provider.create_ah(pd(), &attributes);
  if (ah == nullptr) throw device_failure(info.Env(), errno, "ibv_create_ah", "the device has no datagrams");
  return Object::wrap(info.Env(), new AhObject(*this, ah));
}

void QpObject::attach_multicast(const Napi::CallbackInfo& info) {
  const Group group{gid_of(info[1]), static_cast<uint16_t>(number(info[2]))};
  check(info.Env(), provider.attach_mcast(qp(), &group.gid, group.lid), "ibv_attach_mcast");
  groups_.push_back(group);
}

void QpObject::detach_multicast(const Napi::CallbackInfo& info) {
  const Group group{gid_of(info[1]), static_cast<uint16_t>(number(info[2]))};
  check(info.Env(), provider.detach_mcast(qp(), &group.gid, group.lid), "ibv_detach_mcast");
  const auto left = std::find_if(groups_.begin(), groups_.end(), [&](const Group& one) {
    return one.lid == group.lid && std::memcmp(&one.gid, &group.gid, sizeof group.gid) == 0;
  });
  if (left != groups_.end()) groups_.erase(left);
}

Napi::Value ContextObject::query_gids(const Napi::CallbackInfo& info) {
  std::vector<GidEntry> entries;
  const auto port = static_cast<uint8_t>(number(info[1]));
  check(info.Env(), provider.query_gids(context(), port, entries), "ibv_query_gid");
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

}  // namespace rdmakit::binding
