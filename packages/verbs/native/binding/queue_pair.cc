// Queue pairs: create, query, post.
#include <arpa/inet.h>

#include <cerrno>
#include <vector>

#include "binding/failure.h"
#include "binding/objects.h"

namespace rdmakit::binding {

void QpObject::destroy() {
  provider.destroy_qp(qp());
  send_ = {};
  receive_ = {};
  pd_ = {};
  id_ = {};
}

namespace {

uint64_t big(const Napi::Value& value) {
  bool lossless = false;
  return value.As<Napi::BigInt>().Uint64Value(&lossless);
}

uint32_t number(const Napi::Value& value) { return value.As<Napi::Number>().Uint32Value(); }

Napi::Value create_qp(const Napi::CallbackInfo& info) {
  auto& id = object_of<IdObject>(info[0]);
  auto& pd = object_of<PdObject>(info[1]);
  auto& send = object_of<CqObject>(info[2]);
  auto& receive = object_of<CqObject>(info[3]);
  Napi::Object wished = info[4].As<Napi::Object>();
  ibv_qp_init_attr attributes{};
  attributes.send_cq = send.cq();
  attributes.recv_cq = receive.cq();
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = wished.Get("signalAll").As<Napi::Boolean>() ? 1 : 0;
  attributes.cap.max_send_wr = number(wished.Get("maxSend"));
  attributes.cap.max_recv_wr = number(wished.Get("maxReceive"));
  attributes.cap.max_send_sge = number(wished.Get("maxSendSge"));
  attributes.cap.max_recv_sge = number(wished.Get("maxReceiveSge"));
  attributes.cap.max_inline_data = number(wished.Get("maxInline"));
  ibv_qp* qp = id.id().create_qp(pd.pd(), &attributes);
  // Some devices refuse an inline limit above their own instead of lowering it: halve until it fits.
  while (qp == nullptr && errno == EINVAL && attributes.cap.max_inline_data > 0) {
    attributes.cap.max_inline_data /= 2;
    qp = id.id().create_qp(pd.pd(), &attributes);
  }
  if (qp == nullptr) throw failure(info.Env(), errno, "rdma_create_qp");
  return Object::wrap(info.Env(), new QpObject(id, pd, send, receive, qp, attributes.cap));
}

Napi::Value qp_info(const Napi::CallbackInfo& info) {
  auto& object = object_of<QpObject>(info[0]);
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  check(info.Env(), object.provider.query_qp(object.qp(), &attributes, IBV_QP_STATE, &init), "ibv_query_qp");
  Napi::Object out = Napi::Object::New(info.Env());
  out.Set("number", object.qp()->qp_num);
  out.Set("state", static_cast<int>(attributes.qp_state));
  out.Set("maxInline", object.caps().max_inline_data);
  out.Set("maxSend", object.caps().max_send_wr);
  out.Set("maxReceive", object.caps().max_recv_wr);
  return out;
}

void qp_to_error(const Napi::CallbackInfo& info) {
  auto& object = object_of<QpObject>(info[0]);
  check(info.Env(), object.verbs->move_to_error(object.qp()), "ibv_modify_qp");
}

std::vector<ibv_sge> sges_of(const Napi::Value& value) {
  Napi::Array list = value.As<Napi::Array>();
  std::vector<ibv_sge> sges(list.Length());
  for (uint32_t i = 0; i < list.Length(); ++i) {
    Napi::Object one = list.Get(i).As<Napi::Object>();
    const uint64_t length = static_cast<uint64_t>(one.Get("length").As<Napi::Number>().Int64Value());
    if (length > UINT32_MAX)
      throw failure(value.Env(), EMSGSIZE, "ibv_post_send", "a scatter/gather element is below 4 GiB");
    sges[i] = {big(one.Get("address")), static_cast<uint32_t>(length), number(one.Get("localKey"))};
  }
  return sges;
}

const char* explain_post(int error) {
  switch (error) {
    case ENOMEM:
      return "the queue is full, or a request has more scatter/gather elements than the queue pair";
    case EINVAL:
      return "the queue pair's state or the device does not allow this request";
    default:
      return strerror(error);
  }
}

// The requests as one chain, so that the doorbell rings once.
void post_send(const Napi::CallbackInfo& info) {
  auto& object = object_of<QpObject>(info[0]);
  Napi::Array list = info[1].As<Napi::Array>();
  const uint32_t count = list.Length();
  if (count == 0) return;
  std::vector<ibv_send_wr> requests(count);
  std::vector<std::vector<ibv_sge>> sges(count);
  for (uint32_t i = 0; i < count; ++i) {
    Napi::Object one = list.Get(i).As<Napi::Object>();
    sges[i] = sges_of(one.Get("sges"));
    ibv_send_wr& request = requests[i];
    request = {};
    request.wr_id = big(one.Get("workRequestId"));
    request.next = i + 1 < count ? &requests[i + 1] : nullptr;
    request.sg_list = sges[i].data();
    request.num_sge = static_cast<int>(sges[i].size());
    request.opcode = static_cast<ibv_wr_opcode>(number(one.Get("opcode")));
    request.send_flags = number(one.Get("flags"));
    request.imm_data = htonl(number(one.Get("immediate")));
    request.wr.rdma.remote_addr = big(one.Get("remoteAddress"));
    request.wr.rdma.rkey = number(one.Get("remoteKey"));
  }
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(object.qp(), requests.data(), &refused);
  if (error != 0) throw failure(info.Env(), error, "ibv_post_send", explain_post(error));
}

void post_receive(const Napi::CallbackInfo& info) {
  auto& object = object_of<QpObject>(info[0]);
  Napi::Array list = info[1].As<Napi::Array>();
  const uint32_t count = list.Length();
  if (count == 0) return;
  std::vector<ibv_recv_wr> requests(count);
  std::vector<std::vector<ibv_sge>> sges(count);
  for (uint32_t i = 0; i < count; ++i) {
    Napi::Object one = list.Get(i).As<Napi::Object>();
    sges[i] = sges_of(one.Get("sges"));
    requests[i] = {};
    requests[i].wr_id = big(one.Get("workRequestId"));
    requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
    requests[i].sg_list = sges[i].data();
    requests[i].num_sge = static_cast<int>(sges[i].size());
  }
  ibv_recv_wr* refused = nullptr;
  const int error = ibv_post_recv(object.qp(), requests.data(), &refused);
  if (error != 0) throw failure(info.Env(), error, "ibv_post_recv", explain_post(error));
}

}  // namespace

void export_queue_pairs(Napi::Env env, Napi::Object exports) {
  exports.Set("createQp", Napi::Function::New(env, create_qp));
  exports.Set("qpInfo", Napi::Function::New(env, qp_info));
  exports.Set("qpToError", Napi::Function::New(env, qp_to_error));
  exports.Set("postSend", Napi::Function::New(env, post_send));
  exports.Set("postReceive", Napi::Function::New(env, post_receive));
}

}  // namespace rdmakit::binding
