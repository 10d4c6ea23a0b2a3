// Devices, contexts, protection domains.
#include <cerrno>

#include "binding/failure.h"
#include "binding/objects.h"

namespace rdmakit::binding {

Provider& provider_named(const Napi::Value& value) {
  const std::string name = value.As<Napi::String>();
  if (name == "iwarp") return iwarp_provider();
  if (name == "shm") return shm_provider();
  if (name == "ibverbs") return ibverbs_provider();
  throw Napi::TypeError::New(value.Env(), "unknown provider " + name);
}

ContextObject::ContextObject(Provider& provider, ibv_context* context, bool owned)
    : Object(kKind, provider, context), owned_(owned) {
  capabilities = provider.capabilities(context);
}

void ContextObject::destroy(void* verbs_object) {
  if (owned_) provider.close_device(static_cast<ibv_context*>(verbs_object));
}

void PdObject::destroy(void* verbs_object) {
  provider.dealloc_pd(static_cast<ibv_pd*>(verbs_object));
  parent_ = {};
}

Napi::Value wrap_context(Napi::Env env, Provider& provider, ibv_context* context, bool owned) {
  return Object::wrap(env, new ContextObject(provider, context, owned));
}

Napi::Value provider_available(const Napi::CallbackInfo& info) {
  std::string why;
  if (provider_named(info[0]).available(why) == 0) return info.Env().Undefined();
  return Napi::String::New(info.Env(), why);
}

Napi::Value list_devices(const Napi::CallbackInfo& info) {
  std::vector<DeviceInfo> devices;
  check(info.Env(), provider_named(info[0]).list_devices(devices), "ibv_get_device_list");
  Napi::Array list = Napi::Array::New(info.Env(), devices.size());
  for (uint32_t i = 0; i < devices.size(); ++i) {
    Napi::Object device = Napi::Object::New(info.Env());
    char guid[20];
    snprintf(guid, sizeof guid, "%016llx", static_cast<unsigned long long>(devices[i].guid));
    device.Set("name", devices[i].name);
    device.Set("provider", devices[i].provider);
    device.Set("transport", devices[i].transport);
    device.Set("guid", guid);
    list.Set(i, device);
  }
  return list;
}

Napi::Value open_device(const Napi::CallbackInfo& info) {
  Provider& provider = provider_named(info[0]);
  std::string why;
  if (int error = provider.available(why); error != 0)
    throw failure(info.Env(), error, "ibv_open_device", why);
  ibv_context* context = provider.open_device(info[1].As<Napi::String>());
  if (context == nullptr) {
    const int error = errno;
    throw failure(info.Env(), error, "ibv_open_device", reason_of_start(error));
  }
  return wrap_context(info.Env(), provider, context, true);
}

Napi::Value ContextObject::describe(const Napi::CallbackInfo& info) {
  Napi::Object out = Napi::Object::New(info.Env());
  out.Set("provider", provider.name());
  out.Set("name", context()->device->name);
  out.Set("capabilities", capabilities);
  out.Set("identity", Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(object)));
  return out;
}

Napi::Value ContextObject::query(const Napi::CallbackInfo& info) {
  ibv_device_attr a{};
  check(info.Env(), provider.query_device(context(), &a), "ibv_query_device");
  Napi::Object out = Napi::Object::New(info.Env());
  out.Set("fw_ver", a.fw_ver);
  out.Set("max_mr_size", Napi::BigInt::New(info.Env(), a.max_mr_size));
  out.Set("page_size_cap", Napi::BigInt::New(info.Env(), a.page_size_cap));
  out.Set("vendor_id", a.vendor_id);
  out.Set("vendor_part_id", a.vendor_part_id);
  out.Set("hw_ver", a.hw_ver);
  out.Set("max_qp", a.max_qp);
  out.Set("max_qp_wr", a.max_qp_wr);
  out.Set("device_cap_flags", a.device_cap_flags);
  out.Set("max_sge", a.max_sge);
  out.Set("max_sge_rd", a.max_sge_rd);
  out.Set("max_cq", a.max_cq);
  out.Set("max_cqe", a.max_cqe);
  out.Set("max_mr", a.max_mr);
  out.Set("max_pd", a.max_pd);
  out.Set("max_qp_rd_atom", a.max_qp_rd_atom);
  out.Set("max_qp_init_rd_atom", a.max_qp_init_rd_atom);
  out.Set("atomic_cap", static_cast<int>(a.atomic_cap));
  out.Set("max_srq", a.max_srq);
  out.Set("phys_port_cnt", a.phys_port_cnt);
  return out;
}

Napi::Value ContextObject::query_port(const Napi::CallbackInfo& info) {
  ibv_port_attr a{};
  const auto port = static_cast<uint8_t>(info[1].As<Napi::Number>().Uint32Value());
  check(info.Env(), provider.query_port(context(), port, &a), "ibv_query_port");
  Napi::Object out = Napi::Object::New(info.Env());
  out.Set("state", static_cast<int>(a.state));
  out.Set("max_mtu", static_cast<int>(a.max_mtu));
  out.Set("active_mtu", static_cast<int>(a.active_mtu));
  out.Set("gid_tbl_len", a.gid_tbl_len);
  out.Set("max_msg_sz", a.max_msg_sz);
  out.Set("lid", a.lid);
  out.Set("active_width", a.active_width);
  out.Set("active_speed", a.active_speed);
  out.Set("link_layer", a.link_layer);
  return out;
}

Napi::Value ContextObject::alloc_pd(const Napi::CallbackInfo& info) {
  ibv_pd* pd = provider.alloc_pd(context());
  if (pd == nullptr) throw failure(info.Env(), errno, "ibv_alloc_pd");
  return Object::wrap(info.Env(), new PdObject(*this, pd));
}

}  // namespace rdmakit::binding
