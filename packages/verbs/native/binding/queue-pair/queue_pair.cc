// Queue pairs: create, query.
#include <cerrno>

#include "binding/failure.h"
#include "binding/objects.h"
#include "binding/values.h"

namespace rdmakit::binding {

void QpObject::destroy(void* verbs_object) {
  auto* const qp = static_cast<ibv_qp*>(verbs_object);
  // Or the kernel refuses to destroy it (EBUSY).
  for (const Group& group : groups_) provider.detach_mcast(qp, &group.gid, group.lid);
  provider.destroy_qp(qp);
  if (connection_ != nullptr && connection_->settled()) connection_.reset();
  srq_ = {};
  send_ = {};
  receive_ = {};
  pd_ = {};
  id_ = {};
}

// createQp(id | undefined, pd, sendCq, receiveCq, srq | undefined, attributes)
Napi::Value create_qp(const Napi::CallbackInfo& info) {
  auto& pd = object_of<PdObject>(info[1]);
  IdObject* id = info[0].IsUndefined() ? nullptr : &object_of<IdObject>(info[0], pd);
  auto& send = object_of<CqObject>(info[2], pd);
  auto& receive = object_of<CqObject>(info[3], pd);
  SrqObject* srq = info[4].IsUndefined() ? nullptr : &object_of<SrqObject>(info[4], pd);
  Napi::Object wished = info[5].As<Napi::Object>();
  ibv_qp_init_attr attributes{};
  attributes.send_cq = send.cq();
  attributes.recv_cq = receive.cq();
  attributes.srq = srq == nullptr ? nullptr : srq->srq();
  attributes.qp_type = static_cast<ibv_qp_type>(number(wished.Get("type")));
  attributes.sq_sig_all = wished.Get("signalAll").As<Napi::Boolean>() ? 1 : 0;
  attributes.cap.max_send_wr = number(wished.Get("maxSend"));
  attributes.cap.max_recv_wr = number(wished.Get("maxReceive"));
  attributes.cap.max_send_sge = number(wished.Get("maxSendSge"));
  attributes.cap.max_recv_sge = number(wished.Get("maxReceiveSge"));
  attributes.cap.max_inline_data = number(wished.Get("maxInline"));
  const auto create = [&] {
    return id == nullptr ? pd.provider.create_qp(pd.pd(), &attributes)
                         : id->id().create_qp(pd.pd(), &attributes);
  };
  const ibv_qp_cap wanted = attributes.cap;
  ibv_qp* qp = create();
  // Some devices refuse an inline limit above their own instead of lowering it: halve it until it fits. Start
  // with the requested limit, not with the current one: a device that has granted more, and then fails for
  // another reason (the peer of the connection has left), would be asked for ever.
  for (uint32_t most = wanted.max_inline_data; qp == nullptr && errno == EINVAL && most > 0;) {
    most /= 2;
    attributes.cap = wanted;
    attributes.cap.max_inline_data = most;
    qp = create();
  }
  if (qp == nullptr)
    throw device_failure(info.Env(), errno, id == nullptr ? "ibv_create_qp" : "rdma_create_qp",
                         "the device has no queue pairs of this kind");
  return Object::wrap(info.Env(), new QpObject(id, pd, send, receive, srq, qp, attributes.cap));
}

Napi::Value QpObject::describe(const Napi::CallbackInfo& info) {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  check(info.Env(), provider.query_qp(qp(), &attributes, IBV_QP_STATE, &init), "ibv_query_qp");
  Napi::Object out = Napi::Object::New(info.Env());
  out.Set("number", qp()->qp_num);
  out.Set("identity", Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(object)));
  out.Set("state", static_cast<int>(attributes.qp_state));
  out.Set("maxInline", caps().max_inline_data);
  out.Set("maxSend", caps().max_send_wr);
  out.Set("maxReceive", caps().max_recv_wr);
  return out;
}

void QpObject::to_error(const Napi::CallbackInfo& info) {
  check(info.Env(), verbs->move_to_error(qp()), "ibv_modify_qp");
}

}  // namespace rdmakit::binding
