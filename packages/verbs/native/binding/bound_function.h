// Functions of an object for JavaScript's hot loops: the object is found through the function itself, so a
// call unwraps no handle and allocates nothing.
#pragma once

#include <napi.h>

#include "binding/object.h"
#include "rdmakit/binding_call.h"

namespace rdmakit::binding {

// A function bound to `object`, whose external it keeps.
inline Napi::Value bind_function(Napi::Env env, const char* name, napi_callback call, Object* object,
                                 const Napi::Value& external) {
  napi_value function = nullptr;
  if (napi_create_function(env, name, NAPI_AUTO_LENGTH, call, object, &function) != napi_ok ||
      napi_set_named_property(env, function, "of", external) != napi_ok) {
    throw Napi::Error::New(env);
  }
  return {env, function};
}

struct BoundCall {
  Object* object = nullptr;
  uint32_t arguments[2] = {};
};

// The object and the `wanted` whole numbers of a call. False with a JavaScript exception pending.
inline bool bound_call(napi_env env, napi_callback_info info, BoundCall& call, size_t wanted = 2) {
  size_t count = 2;
  napi_value arguments[2];
  void* data = nullptr;
  napi_get_cb_info(env, info, &count, arguments, nullptr, &data);
  call.object = static_cast<Object*>(data);
  for (size_t i = 0; i < wanted; i++) {
    double value = -1;
    // A missing argument is undefined, which is not a number.
    if (napi_get_value_double(env, arguments[i], &value) != napi_ok || !(value >= 0 && value <= UINT32_MAX) ||
        value != static_cast<uint32_t>(value)) {
      napi_throw_type_error(env, "EINVAL", "expected a whole number from 0");
      return false;
    }
    call.arguments[i] = static_cast<uint32_t>(value);
  }
  if (call.object->object == nullptr) {
    napi_throw_error(env, "EINVAL", "it is closed");
    return false;
  }
  return true;
}

// Zeroed records that JavaScript sees as one ArrayBuffer. It lives as long as either side needs it.
template <typename Record>
class SharedRecords {
 public:
  explicit SharedRecords(size_t count) : records_(std::make_shared<std::vector<Record>>(count)) {}
  Record* data() { return records_->data(); }
  uint32_t size() const { return static_cast<uint32_t>(records_->size()); }
  Napi::Value buffer(Napi::Env env) {
    auto* keep = new std::shared_ptr<std::vector<Record>>(records_);
    return Napi::ArrayBuffer::New(
        env, records_->data(), records_->size() * sizeof(Record),
        [](Napi::Env, void*, std::shared_ptr<std::vector<Record>>* kept) { delete kept; }, keep);
  }

 private:
  std::shared_ptr<std::vector<Record>> records_;
};

}  // namespace rdmakit::binding
