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

namespace {

// createSrq(pd, maxReceive, maxReceiveSge)
Napi::Value create_srq(const Napi::CallbackInfo& info) {
  auto& pd = object_of<PdObject>(info[0]);
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = number(info[1]);
  attributes.attr.max_sge = number(info[2]);
  ibv_srq* srq = pd.provider.create_srq(pd.pd(), &attributes);
  if (srq == nullptr) {
    const int error = errno;
    throw failure(info.Env(), error, "ibv_create_srq",
                  error == EOPNOTSUPP ? "the device has no shared receive queues" : reason(error));
  }
  return Object::wrap(info.Env(), new SrqObject(pd, srq));
}

Napi::Value srq_info(const Napi::CallbackInfo& info) {
  auto& object = object_of<SrqObject>(info[0]);
  ibv_srq_attr attributes{};
  check(info.Env(), object.provider.query_srq(object.srq(), &attributes), "ibv_query_srq");
  Napi::Object out = Napi::Object::New(info.Env());
  out.Set("identity", Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(object.object)));
  out.Set("maxReceive", attributes.max_wr);
  out.Set("maxReceiveSge", attributes.max_sge);
  out.Set("limit", attributes.srq_limit);
  return out;
}

void set_srq_limit(const Napi::CallbackInfo& info) {
  auto& object = object_of<SrqObject>(info[0]);
  ibv_srq_attr attributes{};
  attributes.srq_limit = number(info[1]);
  check(info.Env(), object.provider.modify_srq(object.srq(), &attributes, IBV_SRQ_LIMIT), "ibv_modify_srq");
}

}  // namespace

void export_shared_receive_queues(Napi::Object exports) {
  define(exports, "createSrq", create_srq);
  define(exports, "srqInfo", srq_info);
  define(exports, "setSrqLimit", set_srq_limit);
}

}  // namespace rdmakit::binding
