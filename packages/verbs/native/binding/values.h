// Numbers of JavaScript as verbs take them.
#pragma once

#include <napi.h>

#include <cstdint>

namespace rdmakit::binding {

inline uint64_t big(const Napi::Value& value) {
  bool lossless = false;
  return value.As<Napi::BigInt>().Uint64Value(&lossless);
}

inline uint32_t number(const Napi::Value& value) { return value.As<Napi::Number>().Uint32Value(); }

// A field that may be absent; `present` tells.
inline uint32_t number_if(const Napi::Object& object, const char* name, bool& present) {
  const Napi::Value value = object.Get(name);
  present = value.IsNumber();
  return present ? number(value) : 0;
}

}  // namespace rdmakit::binding
