#include "binding/objects.h"

namespace {

Napi::Object init(Napi::Env env, Napi::Object exports) {
  using namespace rdmakit::binding;
  rdmakit::require_external_buffers(env);
  export_devices(exports);
  export_memory(exports);
  export_completions(exports);
  export_queue_pairs(exports);
  export_queue_pair_states(exports);
  export_shared_receive_queues(exports);
  export_memory_windows(exports);
  export_datagrams(exports);
  export_posting(exports);
  export_prepared_requests(exports);
  export_completion_arrays(exports);
  export_async_events(exports);
  export_connections(exports);
  export_service_manager(exports);
  return exports;
}

}  // namespace

NODE_API_MODULE(verbs, init)
