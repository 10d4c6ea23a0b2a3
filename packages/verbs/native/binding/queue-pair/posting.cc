// Posting in the convenient form: work requests as JavaScript objects.
#include <arpa/inet.h>

#include <vector>

#include "binding/failure.h"
#include "binding/objects.h"
#include "binding/values.h"
#include "rdmakit/post_error.h"

namespace rdmakit::binding {

namespace {

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
    case EOPNOTSUPP:
      return "the device does not have this operation; see the context's capabilities";
    default:
      return strerror(error);
  }
}

void fill_bind(ibv_send_wr& request, const Napi::Object& bind, const QpObject& qp) {
  request.bind_mw.mw = object_of<MwObject>(bind.Get("window"), qp).mw();
  request.bind_mw.rkey = number(bind.Get("key"));
  ibv_mw_bind_info& range = request.bind_mw.bind_info;
  range.mr = object_of<MrObject>(bind.Get("region"), qp).mr();
  range.addr = big(bind.Get("address"));
  range.length = static_cast<uint64_t>(bind.Get("length").As<Napi::Number>().Int64Value());
  range.mw_access_flags = number(bind.Get("access"));
}

ibv_send_wr send_request(const Napi::Object& from, const QpObject& qp) {
  const ibv_qp_type type = qp.qp()->qp_type;
  ibv_send_wr request{};
  request.wr_id = big(from.Get("workRequestId"));
  request.opcode = static_cast<ibv_wr_opcode>(number(from.Get("opcode")));
  request.send_flags = number(from.Get("flags"));
  // On such a queue pair drivers follow the pointer to the address handle, whatever the operation.
  if (type == IBV_QPT_UD && request.opcode != IBV_WR_SEND && request.opcode != IBV_WR_SEND_WITH_IMM)
    throw failure(from.Env(), EINVAL, "ibv_post_send", "a datagram queue pair only sends");
  switch (request.opcode) {
    case IBV_WR_SEND_WITH_INV:
    case IBV_WR_LOCAL_INV:
      request.invalidate_rkey = number(from.Get("invalidateKey"));
      break;
    default:
      request.imm_data = htonl(number(from.Get("immediate")));
  }
  switch (request.opcode) {
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      request.wr.atomic.remote_addr = big(from.Get("remoteAddress"));
      request.wr.atomic.rkey = number(from.Get("remoteKey"));
      request.wr.atomic.compare_add = big(from.Get("compareAdd"));
      request.wr.atomic.swap = big(from.Get("swap"));
      break;
    case IBV_WR_BIND_MW:
      fill_bind(request, from.Get("bind").As<Napi::Object>(), qp);
      break;
    default: {
      const Napi::Value to = from.Get("datagram");
      // The two share their place in the request, and a datagram's holds a pointer.
      if (to.IsObject() != (type == IBV_QPT_UD))
        throw failure(from.Env(), EINVAL, "ibv_post_send",
                      type == IBV_QPT_UD ? "a datagram needs its destination"
                                         : "a connected queue pair takes no destination");
      if (to.IsObject()) {
        Napi::Object datagram = to.As<Napi::Object>();
        request.wr.ud.ah = object_of<AhObject>(datagram.Get("addressHandle"), qp).ah();
        request.wr.ud.remote_qpn = number(datagram.Get("queuePairNumber"));
        request.wr.ud.remote_qkey = number(datagram.Get("queueKey"));
      } else {
        request.wr.rdma.remote_addr = big(from.Get("remoteAddress"));
        request.wr.rdma.rkey = number(from.Get("remoteKey"));
      }
    }
  }
  return request;
}

}  // namespace

// The requests as one chain, so that the doorbell rings once.
void QpObject::post_send(const Napi::CallbackInfo& info) {
  Napi::Array list = info[1].As<Napi::Array>();
  const uint32_t count = list.Length();
  if (count == 0) return;
  std::vector<ibv_send_wr> requests(count);
  std::vector<std::vector<ibv_sge>> sges(count);
  for (uint32_t i = 0; i < count; ++i) {
    Napi::Object one = list.Get(i).As<Napi::Object>();
    sges[i] = sges_of(one.Get("sges"));
    requests[i] = send_request(one, *this);
    requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
    requests[i].sg_list = sges[i].data();
    requests[i].num_sge = static_cast<int>(sges[i].size());
  }
  ibv_send_wr* refused = nullptr;
  const int result = ibv_post_send(qp(), requests.data(), &refused);
  const int error = post_error(result, refused);
  // libibverbs leaves it to the application to note a window's new key, and drivers look at it next time.
  // A driver that fails without naming the request has taken them all.
  for (uint32_t i = 0; i < count && &requests[i] != refused; ++i) {
    if (requests[i].opcode != IBV_WR_BIND_MW) continue;
    requests[i].bind_mw.mw->rkey = requests[i].bind_mw.rkey;
    Napi::Object bind = list.Get(i).As<Napi::Object>().Get("bind").As<Napi::Object>();
    object_of<MwObject>(bind.Get("window")).bound_to(object_of<MrObject>(bind.Get("region")));
  }
  if (error != 0) throw failure(info.Env(), error, "ibv_post_send", explain_post(error));
}

// postReceive(qp | srq, requests)
void post_receive(const Napi::CallbackInfo& info) {
  Napi::Array list = info[1].As<Napi::Array>();
  const uint32_t count = list.Length();
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
  if (count == 0) return;
  ibv_recv_wr* refused = nullptr;
  const bool shared = info[2].As<Napi::Boolean>();
  const int result = shared
                         ? ibv_post_srq_recv(object_of<SrqObject>(info[0]).srq(), requests.data(), &refused)
                         : ibv_post_recv(object_of<QpObject>(info[0]).qp(), requests.data(), &refused);
  const int error = post_error(result, refused);
  if (error != 0)
    throw failure(info.Env(), error, shared ? "ibv_post_srq_recv" : "ibv_post_recv", explain_post(error));
}

}  // namespace rdmakit::binding
