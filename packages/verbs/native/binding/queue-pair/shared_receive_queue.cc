// Shared receive queues.
#include <cerrno>

#include "binding/failure.h"
#include "binding/objects.h"
#include "binding/values.h"

namespace rdmakit::binding {

void SrqObject::destroy(void* verbs_object) {
  provider.destroy_srq(static_cast<ibv_srq*>(verbs_object));
  parent_ = {};
}

// createSrq(pd, maxReceive, maxReceiveSge)
Napi::Value PdObject::create_srq(const Napi::CallbackInfo& info) {
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = number(info[1]);
  attributes.attr.max_sge = number(info[2]);
  ibv_srq* srq = provider.create_srq(pd(), &attributes);
  if (srq == nullptr)
    throw device_failure(info.Env(), errno, "ibv_create_srq", "the device has no shared receive queues");
  return Object::wrap(info.Env(), new SrqObject(*this, srq));
}

Napi::Value SrqObject::describe(const Napi::CallbackInfo& info) {
  ibv_srq_attr attributes{};
  check(info.Env(), provider.query_srq(srq(), &attributes), "ibv_query_srq");
  Napi::Object out = Napi::Object::New(info.Env());
  out.Set("identity", Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(object)));
  out.Set("maxReceive", attributes.max_wr);
  out.Set("maxReceiveSge", attributes.max_sge);
  out.Set("limit", attributes.srq_limit);
  return out;
}

void SrqObject::set_limit(const Napi::CallbackInfo& info) {
  ibv_srq_attr attributes{};
  attributes.srq_limit = number(info[1]);
  check(info.Env(), provider.modify_srq(srq(), &attributes, IBV_SRQ_LIMIT), "ibv_modify_srq");
}

}  // namespace rdmakit::binding
