#include "binding/objects.h"

namespace {

Napi::Object init(Napi::Env env, Napi::Object exports) {
  using namespace rdmakit::binding;
  export_devices(env, exports);
  export_memory(env, exports);
  export_completions(env, exports);
  export_queue_pairs(env, exports);
  export_queue_pair_states(env, exports);
  export_shared_receive_queues(env, exports);
  export_memory_windows(env, exports);
  export_datagrams(env, exports);
  export_posting(env, exports);
  export_prepared_requests(env, exports);
  export_completion_arrays(env, exports);
  export_async_events(env, exports);
  export_connections(env, exports);
  return exports;
}

}  // namespace

NODE_API_MODULE(verbs, init)
