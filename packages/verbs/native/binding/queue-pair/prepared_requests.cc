// Work requests in an ArrayBuffer (src/work-request-slots.ts): filled once, edited in place, posted many at a
// time by one call.
//
// A slot names memory by the index of a region and an offset in it, not by address: whatever JavaScript
// writes there, an inline send (whose bytes the device copies without looking at a key) reads only inside
// of the regions that the slots were made with.
#include <arpa/inet.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "binding/bound_function.h"
#include "binding/failure.h"
#include "binding/objects.h"
#include "binding/values.h"
#include "rdmakit/post_error.h"

namespace rdmakit::binding {

namespace {

struct SendSlot {
  uint64_t work_request_id;  // 0
  uint64_t offset;           // 8, in the region
  uint32_t length;           // 16
  uint32_t region;           // 20, index
  uint64_t remote_address;   // 24
  uint32_t remote_key;       // 32
  uint32_t immediate;        // 36, host byte order; or the key to invalidate
  uint32_t opcode;           // 40
  uint32_t flags;            // 44
  uint64_t compare_add;      // 48
  uint64_t swap;             // 56
};
static_assert(sizeof(SendSlot) == 64);

struct ReceiveSlot {
  uint64_t work_request_id;  // 0
  uint64_t offset;           // 8
  uint32_t length;           // 16
  uint32_t region;           // 20
  uint64_t reserved;
};
static_assert(sizeof(ReceiveSlot) == 32);

// The regions that slots may name, kept for as long as the slots are.
class Regions {
 public:
  explicit Regions(const Napi::Array& list) {
    for (uint32_t i = 0; i < list.Length(); i++) {
      auto& region = object_of<MrObject>(list.Get(i));
      regions_.push_back({MrRef(&region), region.mapped()});
    }
  }
  // Hot path. False: outside of a region, or inline from memory that is not the process's.
  bool element(uint32_t region, uint64_t offset, uint32_t length, bool inlined, ibv_sge& out) const {
    if (region >= regions_.size() || (inlined && !regions_[region].mapped)) return false;
    const ibv_mr* mr = regions_[region].mr.get();
    if (offset > mr->length || length > mr->length - offset) return false;
    out = {reinterpret_cast<uint64_t>(mr->addr) + offset, length, mr->lkey};
    return true;
  }
  // End of hot path.
  void clear() { regions_.clear(); }

 private:
  struct Region {
    MrRef mr;
    bool mapped;
  };
  std::vector<Region> regions_;
};

constexpr uint32_t kChain = 32;

// `posted`: how many slots were posted before the one that was refused.
napi_value refused(napi_env env, int error, const char* verb, const char* detail, uint32_t posted = 0) {
  try {
    failure(env, error, verb, std::string(detail) + "; " + std::to_string(posted) + " were posted")
        .ThrowAsJavaScriptException();
  } catch (const Napi::Error&) {
    // The environment is ending, so the error cannot be reported.
  }
  return nullptr;
}

// The common part of post() of both kinds: chains of up to kChain requests, each one call of the verb.
// `prepare(slot, request, sge)` is false for a slot that cannot be posted; `post(first, &bad)` posts.
template <typename Request, typename Slot, typename Prepare, typename Post>
napi_value post_slots(napi_env env, const BoundCall& call, Slot* slots, uint32_t size, const char* verb,
                      Prepare prepare, Post post) {
  const auto [first, count] = call.arguments;
  if (first > size || count > size - first)
    return refused(env, EINVAL, verb, "there are not that many slots");
  Request requests[kChain];
  ibv_sge elements[kChain];
  uint32_t posted = 0;
  while (posted < count) {
    const uint32_t chain = std::min(count - posted, kChain);
    for (uint32_t i = 0; i < chain; i++) {
      requests[i] = Request{};
      if (!prepare(slots[first + posted + i], requests[i], elements[i]))
        return refused(env, EINVAL, verb,
                       "a slot names memory outside of its regions, an unknown opcode, or too much inline",
                       posted);
      requests[i].next = i + 1 < chain ? &requests[i + 1] : nullptr;
    }
    Request* bad = nullptr;
    const int result = post(requests, &bad);
    const int error = post_error(result, bad);
    if (error == 0) {
      posted += chain;
      continue;
    }
    // A driver that fails without naming the request has taken them all.
    posted += bad == nullptr ? chain : static_cast<uint32_t>(bad - requests);
    // A full queue is back-pressure, told by the count.
    if (error == ENOMEM && bad != nullptr) break;
    return refused(env, error, verb, "the queue pair's state or the device does not allow this request",
                   posted);
  }
  return number_of(env, static_cast<int32_t>(posted));
}

class SendSlots final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::send_slots;
  SendSlots(QpObject& qp, Regions regions, uint32_t count)
      : Object(kKind, qp.provider, this),
        qp_(&qp),
        max_inline_(qp.caps().max_inline_data),
        regions_(std::move(regions)),
        slots_(count) {}
  Napi::Value buffer(Napi::Env env) { return slots_.buffer(env); }

  // Hot path: post(first, count) → how many were posted.
  static napi_value post(napi_env env, napi_callback_info info) {
    BoundCall call;
    if (!bound_call(env, info, call)) return nullptr;
    auto& self = *static_cast<SendSlots*>(call.object);
    return post_slots<ibv_send_wr>(
        env, call, self.slots_.data(), self.slots_.size(), "ibv_post_send",
        [&self](const SendSlot& slot, ibv_send_wr& request, ibv_sge& element) {
          return self.prepare(slot, request, element);
        },
        [&self](ibv_send_wr* first, ibv_send_wr** bad) { return ibv_post_send(self.qp_.get(), first, bad); });
  }

 private:
  bool prepare(const SendSlot& slot, ibv_send_wr& request, ibv_sge& element) const {
    request.wr_id = slot.work_request_id;
    request.opcode = static_cast<ibv_wr_opcode>(slot.opcode);
    request.send_flags = slot.flags;
    if (slot.length > 0) {
      const bool inlined = slot.flags & IBV_SEND_INLINE;
      // Some drivers would call it ENOMEM, which is a full queue here.
      if (inlined && slot.length > max_inline_) return false;
      if (!regions_.element(slot.region, slot.offset, slot.length, inlined, element)) return false;
      request.sg_list = &element;
      request.num_sge = 1;
    }
    switch (request.opcode) {
      case IBV_WR_SEND_WITH_INV:
      case IBV_WR_LOCAL_INV:
        request.invalidate_rkey = slot.immediate;
        return true;
      case IBV_WR_SEND:
      case IBV_WR_SEND_WITH_IMM:
      case IBV_WR_RDMA_WRITE:
      case IBV_WR_RDMA_WRITE_WITH_IMM:
      case IBV_WR_RDMA_READ:
        request.imm_data = htonl(slot.immediate);
        request.wr.rdma.remote_addr = slot.remote_address;
        request.wr.rdma.rkey = slot.remote_key;
        return true;
      case IBV_WR_ATOMIC_CMP_AND_SWP:
      case IBV_WR_ATOMIC_FETCH_AND_ADD:
        request.wr.atomic.remote_addr = slot.remote_address;
        request.wr.atomic.rkey = slot.remote_key;
        request.wr.atomic.compare_add = slot.compare_add;
        request.wr.atomic.swap = slot.swap;
        return true;
      default:
        return false;
    }
  }
  // End of hot path.

  bool destroys_here() override { return true; }
  void destroy(void*) override {
    qp_ = {};
    regions_.clear();
  }
  QpRef qp_;
  const uint32_t max_inline_;
  Regions regions_;
  SharedRecords<SendSlot> slots_;
};

class ReceiveSlots final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::receive_slots;
  // One of `qp` and `srq` is null.
  ReceiveSlots(QpObject* qp, SrqObject* srq, Regions regions, uint32_t count)
      : Object(kKind, qp != nullptr ? qp->provider : srq->provider, this),
        qp_(qp),
        srq_(srq),
        regions_(std::move(regions)),
        slots_(count) {}
  Napi::Value buffer(Napi::Env env) { return slots_.buffer(env); }

  // Hot path: post(first, count) → how many were posted.
  static napi_value post(napi_env env, napi_callback_info info) {
    BoundCall call;
    if (!bound_call(env, info, call)) return nullptr;
    auto& self = *static_cast<ReceiveSlots*>(call.object);
    return post_slots<ibv_recv_wr>(
        env, call, self.slots_.data(), self.slots_.size(), self.srq_ ? "ibv_post_srq_recv" : "ibv_post_recv",
        [&self](const ReceiveSlot& slot, ibv_recv_wr& request, ibv_sge& element) {
          request.wr_id = slot.work_request_id;
          if (slot.length == 0) return true;
          request.sg_list = &element;
          request.num_sge = 1;
          return self.regions_.element(slot.region, slot.offset, slot.length, false, element);
        },
        [&self](ibv_recv_wr* first, ibv_recv_wr** bad) {
          return self.srq_ ? ibv_post_srq_recv(self.srq_.get(), first, bad)
                           : ibv_post_recv(self.qp_.get(), first, bad);
        });
  }
  // End of hot path.

 private:
  bool destroys_here() override { return true; }
  void destroy(void*) override {
    qp_ = {};
    srq_ = {};
    regions_.clear();
  }
  QpRef qp_;
  SrqRef srq_;
  Regions regions_;
  SharedRecords<ReceiveSlot> slots_;
};

Regions regions_of(const Napi::Value& value) {
  if (!value.IsArray()) throw Napi::TypeError::New(value.Env(), "expected an array of memory regions");
  return Regions(value.As<Napi::Array>());
}

constexpr uint32_t kMostSlots = 65'536;

uint32_t slots_of(const Napi::Value& value) { return count_of(value, "the number of slots", kMostSlots); }

template <typename Slots>
Napi::Value result(Napi::Env env, Slots* slots) {
  const Napi::Value handle = Object::wrap(env, slots);
  return new_object(env, "handle", handle, "buffer", slots->buffer(env), "post",
                    bind_function(env, "post", Slots::post, slots, handle));
}

}  // namespace

// createSendSlots(qp, regions, count) → { handle, buffer, post }
Napi::Value QpObject::create_send_slots(const Napi::CallbackInfo& info) {
  // A datagram's request carries a pointer, which is nothing that JavaScript may write.
  if (qp()->qp_type == IBV_QPT_UD)
    throw failure(info.Env(), EINVAL, "ibv_post_send", "send slots are for connected queue pairs");
  return result(info.Env(), new SendSlots(*this, regions_of(info[1]), slots_of(info[2])));
}

// createReceiveSlots(qp | srq, regions, count, shared) → { handle, buffer, post }
Napi::Value create_receive_slots(const Napi::CallbackInfo& info) {
  const bool shared = info[3].As<Napi::Boolean>();
  QpObject* qp = shared ? nullptr : &object_of<QpObject>(info[0]);
  SrqObject* srq = shared ? &object_of<SrqObject>(info[0]) : nullptr;
  return result(info.Env(), new ReceiveSlots(qp, srq, regions_of(info[1]), slots_of(info[2])));
}

}  // namespace rdmakit::binding
