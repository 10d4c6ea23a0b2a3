#include "binding/poller_object.h"

namespace {

Napi::Object init(Napi::Env env, Napi::Object exports) {
  exports.Set("Poller", rdmakit::ring::binding::PollerObject::define(env));
  return exports;
}

}  // namespace

NODE_API_MODULE(ring_transport, init)
