// The functions for JavaScript: the verbs under the names of NativeVerbs (src/native.ts).
#include <type_traits>

#include "binding/objects.h"

namespace rdmakit::binding {
namespace {

// A method of an object, whose handle is the first argument.
template <typename Type, typename Result, typename... Info>
Result invoke(const Napi::CallbackInfo& info, Result (Type::*verb)(Info...)) {
  return (object_of<Type>(info[0]).*verb)(static_cast<Info>(info)...);
}

template <typename Result>
Result invoke(const Napi::CallbackInfo& info, Result (*verb)(const Napi::CallbackInfo&)) {
  return verb(info);
}

template <auto kVerb>
Napi::Value call(const Napi::CallbackInfo& info) {
  if constexpr (std::is_void_v<decltype(invoke(info, kVerb))>) {
    invoke(info, kVerb);
    return info.Env().Undefined();
  } else {
    return Napi::Value::From(info.Env(), invoke(info, kVerb));
  }
}

struct Verb {
  const char* name;
  Napi::Value (*call)(const Napi::CallbackInfo& info);
};

constexpr Verb kDevice[] = {
    {"providerAvailable", call<provider_available>},
    {"listDevices", call<list_devices>},
    {"openDevice", call<open_device>},
    {"contextInfo", call<&ContextObject::describe>},
    {"queryDevice", call<&ContextObject::query>},
    {"queryPort", call<&ContextObject::query_port>},
    {"queryGids", call<&ContextObject::query_gids>},
    {"watchAsyncEvents", call<&ContextObject::watch>},
    {"unwatchAsyncEvents", call<&ContextObject::unwatch>},
    {"allocPd", call<&ContextObject::alloc_pd>},
};

constexpr Verb kMemory[] = {
    {"allocMr", call<&PdObject::alloc_mr>},        {"regMr", call<&PdObject::reg_mr>},
    {"regMrAsync", call<&PdObject::reg_mr_async>}, {"regDmabufMr", call<&PdObject::reg_dmabuf_mr>},
    {"reregMr", call<&MrObject::reregister>},      {"mrInfo", call<&MrObject::describe>},
    {"mrBuffer", call<&MrObject::buffer>},         {"keptMemory", call<kept_memory>},
    {"allocMw", call<&PdObject::alloc_mw>},        {"mwKey", call<&MwObject::key>},
};

constexpr Verb kCompletion[] = {
    {"createChannel", call<&ContextObject::create_channel>},
    {"watchChannel", call<&ChannelObject::watch>},
    {"setChannelRef", call<&ChannelObject::set_ref>},
    {"createCq", call<&ContextObject::create_cq>},
    {"resizeCq", call<&CqObject::resize>},
    {"cqEntries", call<&CqObject::entries>},
    {"cqIdentity", call<&CqObject::identity>},
    {"pollCq", call<&CqObject::poll>},
    {"requestNotification", call<&CqObject::request_notification>},
    {"createCompletionArray", call<&CqObject::create_array>},
};

constexpr Verb kQueuePair[] = {
    {"createQp", call<create_qp>},
    {"qpInfo", call<&QpObject::describe>},
    {"qpToError", call<&QpObject::to_error>},
    {"modifyQp", call<&QpObject::modify>},
    {"queryQp", call<&QpObject::query>},
    {"createSrq", call<&PdObject::create_srq>},
    {"srqInfo", call<&SrqObject::describe>},
    {"setSrqLimit", call<&SrqObject::set_limit>},
    {"createAh", call<&PdObject::create_ah>},
    {"attachMulticast", call<&QpObject::attach_multicast>},
    {"detachMulticast", call<&QpObject::detach_multicast>},
    {"postSend", call<&QpObject::post_send>},
    {"postReceive", call<post_receive>},
    {"createSendSlots", call<&QpObject::create_send_slots>},
    {"createReceiveSlots", call<create_receive_slots>},
};

constexpr Verb kConnection[] = {
    {"createId", call<create_id>},
    {"setIdSink", call<&IdObject::set_sink>},
    {"setIdRef", call<&IdObject::set_ref>},
    {"idListen", call<&IdObject::listen>},
    {"idAddAlternative", call<&IdObject::add_alternative>},
    {"idResolve", call<&IdObject::resolve>},
    {"idContext", call<&IdObject::device>},
    {"idConnect", call<&IdObject::connect>},
    {"idAccept", call<&IdObject::accept>},
    {"idReject", call<&IdObject::reject>},
    {"idDisconnect", call<&IdObject::disconnect>},
    {"idLocalAddress", call<&IdObject::local_address>},
    {"idPeerAddress", call<&IdObject::peer_address>},
};

constexpr Verb kAnyObject[] = {
    {"close", call<close_handle>},
    {"closeAsync", call<close_handle_async>},
    {"destroyed", call<handle_destroyed>},
};

constexpr Verb kService[] = {{"notifyServiceManager", call<notify_service_manager>}};

template <size_t kCount>
void add(Napi::Object& exports, const Verb (&verbs)[kCount]) {
  for (const Verb& verb : verbs) define(exports, verb.name, verb.call);
}

}  // namespace
}  // namespace rdmakit::binding

static Napi::Object init(Napi::Env env, Napi::Object exports) {
  using namespace rdmakit::binding;
  rdmakit::require_external_buffers(env);
  add(exports, kDevice);
  add(exports, kMemory);
  add(exports, kCompletion);
  add(exports, kQueuePair);
  add(exports, kConnection);
  add(exports, kAnyObject);
  add(exports, kService);
  return exports;
}

NODE_API_MODULE(verbs, init)
