// Numbers of JavaScript as verbs take them.
#pragma once

#include <napi.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace rdmakit::binding {

inline uint64_t big(const Napi::Value& value) {
  bool lossless = false;
  return value.As<Napi::BigInt>().Uint64Value(&lossless);
}

inline uint32_t number(const Napi::Value& value) { return value.As<Napi::Number>().Uint32Value(); }

// How many records to make: a whole number from 1 to `most`, or a JavaScript TypeError.
inline uint32_t count_of(const Napi::Value& value, const char* what, uint32_t most) {
  const double given = value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : 0;
  if (given >= 1 && given <= most && std::floor(given) == given) return static_cast<uint32_t>(given);
  throw Napi::TypeError::New(value.Env(),
                             std::string(what) + " is a whole number from 1 to " + std::to_string(most));
}

// A field that may be absent; `present` tells.
inline uint32_t number_if(const Napi::Object& object, const char* name, bool& present) {
  const Napi::Value value = object.Get(name);
  present = value.IsNumber();
  return present ? number(value) : 0;
}

}  // namespace rdmakit::binding
