#include "binding/doorbell.h"

namespace rdmakit::ring::binding {

Doorbell::Doorbell(Napi::Env env, const Napi::Function& call) {
  const napi_value name = Napi::String::New(env, "ring poller");
  if (napi_create_threadsafe_function(env, call, nullptr, name, 0, 1, nullptr, nullptr, nullptr, call_js,
                                      &function_) != napi_ok)
    throw Napi::Error::New(env);
  napi_unref_threadsafe_function(env, function_);
}

// Not through node-addon-api: while an environment is torn down its loop still turns, a call fails, and
// there an exception would end the process.
void Doorbell::call_js(napi_env env, napi_value call, void*, void*) {
  if (env == nullptr || call == nullptr) return;
  napi_value nothing = nullptr;
  napi_get_undefined(env, &nothing);
  if (napi_call_function(env, nothing, call, 0, nullptr, nullptr) != napi_pending_exception) return;
  napi_value error = nullptr;
  if (napi_get_and_clear_last_exception(env, &error) == napi_ok) napi_fatal_exception(env, error);
}

void Doorbell::set_ref(Napi::Env env, bool on) const {
  if (on) {
    napi_ref_threadsafe_function(env, function_);
  } else {
    napi_unref_threadsafe_function(env, function_);
  }
}

void Doorbell::end() {
  if (function_ != nullptr) napi_release_threadsafe_function(function_, napi_tsfn_abort);
  function_ = nullptr;
}

}  // namespace rdmakit::ring::binding
