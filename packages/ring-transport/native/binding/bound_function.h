// Functions of a poller for JavaScript's hot loops: plain Node-API functions that find the poller through
// themselves, so that a call unwraps no object and allocates nothing. About 30 ns.
#pragma once

#include <napi.h>

#include <cstdint>

#include "rdmakit/binding_call.h"

namespace rdmakit::ring::binding {

// A function bound to `object`, which JavaScript's `owner` keeps; the function keeps that.
inline void define_bound(const Napi::Object& owner, const char* name, napi_callback call, void* object) {
  const Napi::Env env = owner.Env();
  napi_value function = nullptr;
  if (napi_create_function(env, name, NAPI_AUTO_LENGTH, call, object, &function) != napi_ok ||
      napi_set_named_property(env, function, "of", owner) != napi_ok ||
      napi_set_named_property(env, owner, name, function) != napi_ok)
    throw Napi::Error::New(env);
}

// The `Count` whole numbers of a call (modulo 2^32, as JavaScript's positions are), and what it is bound to.
template <size_t Count>
class BoundCall {
 public:
  BoundCall(napi_env env, napi_callback_info info) {
    size_t count = Count;
    napi_value values[Count + 1];
    napi_get_cb_info(env, info, &count, values, nullptr, &object_);
    // A missing argument is undefined, which is not a number.
    for (size_t i = 0; i < Count && good_; ++i)
      good_ = napi_get_value_uint32(env, values[i], &numbers_[i]) == napi_ok;
    if (!good_) napi_throw_type_error(env, "EINVAL", "expected a number");
  }
  // False with a JavaScript exception pending.
  bool good() const { return good_; }
  uint32_t operator[](size_t i) const { return numbers_[i]; }
  template <typename Object>
  Object& object() const {
    return *static_cast<Object*>(object_);
  }

 private:
  void* object_ = nullptr;
  bool good_ = true;
  uint32_t numbers_[Count + 1] = {};
};

}  // namespace rdmakit::ring::binding
