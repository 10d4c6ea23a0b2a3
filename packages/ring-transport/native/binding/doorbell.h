// Calls a JavaScript function from the polling thread: a napi_threadsafe_function that carries nothing.
#pragma once

#include <napi.h>

namespace rdmakit::ring::binding {

class Doorbell {
 public:
  Doorbell() = default;
  // Keeps the event loop alive only after set_ref(true).
  Doorbell(Napi::Env env, const Napi::Function& call);

  // On any thread, until end().
  void ring() const { napi_call_threadsafe_function(function_, nullptr, napi_tsfn_nonblocking); }
  void set_ref(Napi::Env env, bool on) const;
  // No more rings; a ring that was not heard yet is dropped.
  void end();

 private:
  static void call_js(napi_env env, napi_value call, void* context, void* data);

  napi_threadsafe_function function_ = nullptr;
};

}  // namespace rdmakit::ring::binding
