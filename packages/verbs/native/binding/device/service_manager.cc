// For @rdmakit/swap-server, whose programs are services.
#include "provider/service_manager.h"

#include "binding/failure.h"
#include "binding/objects.h"

namespace rdmakit::binding {

namespace {

// notifyServiceManager(socket, state) → a descriptor, the caller's, that ends when the manager has read it
Napi::Value notify(const Napi::CallbackInfo& info) {
  int read = -1;
  check(info.Env(), notify_service_manager(info[0].As<Napi::String>(), info[1].As<Napi::String>(), read),
        "sd_notify");
  return Napi::Number::New(info.Env(), read);
}

}  // namespace

void export_service_manager(Napi::Object exports) { define(exports, "notifyServiceManager", notify); }

}  // namespace rdmakit::binding
