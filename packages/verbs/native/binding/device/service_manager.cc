// For @rdmakit/swap-server, whose programs are services.
#include "provider/service_manager.h"

#include "binding/failure.h"
#include "binding/objects.h"

namespace rdmakit::binding {

// notifyServiceManager(socket, state) → a descriptor, the caller's, that ends when the manager has read it
int notify_service_manager(const Napi::CallbackInfo& info) {
  int read = -1;
  check(info.Env(),
        rdmakit::notify_service_manager(info[0].As<Napi::String>(), info[1].As<Napi::String>(), read),
        "sd_notify");
  return read;
}

}  // namespace rdmakit::binding
