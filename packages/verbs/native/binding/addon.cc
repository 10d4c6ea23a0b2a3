#include "binding/objects.h"

namespace {

Napi::Object init(Napi::Env env, Napi::Object exports) {
  using namespace rdmakit::binding;
  export_devices(env, exports);
  export_memory(env, exports);
  export_completions(env, exports);
  export_queue_pairs(env, exports);
  export_connections(env, exports);
  return exports;
}

}  // namespace

NODE_API_MODULE(verbs, init)
