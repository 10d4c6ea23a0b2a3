// State transitions of queue pairs that no connection id drives (ibv_modify_qp(3), ibv_query_qp(3)).
#include <type_traits>

#include "binding/failure.h"
#include "binding/objects.h"
#include "binding/queue-pair/address_vector.h"
#include "binding/values.h"

namespace rdmakit::binding {

namespace {

struct Field {
  const char* name;
  int mask;
  void (*set)(ibv_qp_attr& attributes, uint32_t value);
  uint32_t (*get)(const ibv_qp_attr& attributes);
};

template <auto Member>
constexpr Field field(const char* name, int mask) {
  return {name, mask,
          [](ibv_qp_attr& to, uint32_t value) {
            to.*Member = static_cast<std::remove_reference_t<decltype(to.*Member)>>(value);
          },
          [](const ibv_qp_attr& from) { return static_cast<uint32_t>(from.*Member); }};
}

// The attributes that are numbers, under the names of src/queue-pair-state.ts.
constexpr Field kFields[] = {
    field<&ibv_qp_attr::qp_state>("state", IBV_QP_STATE),
    field<&ibv_qp_attr::qp_access_flags>("access", IBV_QP_ACCESS_FLAGS),
    field<&ibv_qp_attr::pkey_index>("partitionKeyIndex", IBV_QP_PKEY_INDEX),
    field<&ibv_qp_attr::port_num>("portNumber", IBV_QP_PORT),
    field<&ibv_qp_attr::qkey>("queueKey", IBV_QP_QKEY),
    field<&ibv_qp_attr::path_mtu>("pathMtu", IBV_QP_PATH_MTU),
    field<&ibv_qp_attr::timeout>("timeout", IBV_QP_TIMEOUT),
    field<&ibv_qp_attr::retry_cnt>("retryCount", IBV_QP_RETRY_CNT),
    field<&ibv_qp_attr::rnr_retry>("receiverNotReadyRetryCount", IBV_QP_RNR_RETRY),
    field<&ibv_qp_attr::rq_psn>("receivePacketSequence", IBV_QP_RQ_PSN),
    field<&ibv_qp_attr::max_rd_atomic>("initiatorDepth", IBV_QP_MAX_QP_RD_ATOMIC),
    field<&ibv_qp_attr::min_rnr_timer>("minReceiverNotReadyTimer", IBV_QP_MIN_RNR_TIMER),
    field<&ibv_qp_attr::sq_psn>("sendPacketSequence", IBV_QP_SQ_PSN),
    field<&ibv_qp_attr::max_dest_rd_atomic>("responderResources", IBV_QP_MAX_DEST_RD_ATOMIC),
    field<&ibv_qp_attr::dest_qp_num>("destinationQueuePairNumber", IBV_QP_DEST_QPN),
};

}  // namespace

void QpObject::modify(const Napi::CallbackInfo& info) {
  Napi::Object wished = info[1].As<Napi::Object>();
  ibv_qp_attr attributes{};
  int mask = 0;
  for (const Field& field : kFields) {
    bool present = false;
    const uint32_t value = number_if(wished, field.name, present);
    if (!present) continue;
    field.set(attributes, value);
    mask |= field.mask;
  }
  if (const Napi::Value vector = wished.Get("addressVector"); vector.IsObject()) {
    attributes.ah_attr = address_vector_of(vector.As<Napi::Object>());
    mask |= IBV_QP_AV;
  }
  const int error = provider.modify_qp(qp(), &attributes, mask);
  if (error != 0)
    throw device_failure(info.Env(), error, "ibv_modify_qp",
                         "queue pairs of this device are connected through a connection id");
}

Napi::Value QpObject::query(const Napi::CallbackInfo& info) {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  int mask = IBV_QP_CAP;
  for (const Field& field : kFields) mask |= field.mask;
  check(info.Env(), provider.query_qp(qp(), &attributes, mask, &init), "ibv_query_qp");
  Napi::Object out = Napi::Object::New(info.Env());
  for (const Field& field : kFields) out.Set(field.name, field.get(attributes));
  return out;
}

}  // namespace rdmakit::binding
