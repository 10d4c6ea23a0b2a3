#include "binding/freed_memory.h"
#include "binding/poller_object.h"
#include "ring/counters.h"

namespace {

template <size_t Count>
Napi::Value names(Napi::Env env, const char* const (&list)[Count]) {
  Napi::Array out = Napi::Array::New(env, Count);
  for (uint32_t i = 0; i < Count; ++i) out.Set(i, list[i]);
  return out;
}

Napi::Object init(Napi::Env env, Napi::Object exports) {
  rdmakit::require_external_buffers(env);
  exports.Set("Poller", rdmakit::ring::binding::PollerObject::define(env));
  exports.Set("keepFreedMemory", Napi::Function::New(env, rdmakit::ring::binding::keep_freed_memory));
  exports.Set("connectionCounters", names(env, rdmakit::ring::kConnectionCounters));
  exports.Set("pollerCounters", names(env, rdmakit::ring::kPollerCounters));
  return exports;
}

}  // namespace

NODE_API_MODULE(ring_transport, init)
