// Errors as JavaScript gets them from @rdmakit/verbs and @rdmakit/ring-transport, in the shape that
// src/base/errors.ts of verbs expects: code (errno name), verb, detail. And the handle in an argument.
#pragma once

#include <napi.h>

#include <cctype>
#include <cstdlib>
#include <cstring>
#include <string>

#include "rdmakit/errno_name.h"
#include "rdmakit/handle.h"

namespace rdmakit {

// Verbs return errno values, but some drivers of libibverbs (siw's, as a post's result) negative ones.
inline const char* code_of(int error) {
  const char* name = errno_name(std::abs(error));
  return name == nullptr ? "EIO" : name;
}

inline Napi::Error failure(Napi::Env env, int error, const char* verb, const std::string& detail) {
  Napi::Error made = Napi::Error::New(env, std::string(verb) + ": " + detail + " (" + code_of(error) + ")");
  made.Set("code", code_of(error));
  made.Set("verb", verb);
  made.Set("detail", detail);
  return made;
}

// The system's text for `error`, in lower case like our other messages.
inline std::string reason(int error) {
  std::string text = strerror(std::abs(error));
  if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return text;
}

inline Napi::Error failure(Napi::Env env, int error, const char* verb) {
  return failure(env, error, verb, reason(error));
}

// Throws when a verb returned an errno value.
inline void check(Napi::Env env, int error, const char* verb) {
  if (error != 0) throw failure(env, error, verb);
}

inline constexpr napi_type_tag kHandleTag{kHandleTagLower, kHandleTagUpper};

// A handle of any kind, also a closed one; nullptr for any other value: a foreign object is never cast.
inline Handle* handle_in(const Napi::Value& value) {
  bool tagged = false;
  if (value.IsExternal()) napi_check_object_type_tag(value.Env(), value, &kHandleTag, &tagged);
  void* data = nullptr;
  if (tagged) napi_get_value_external(value.Env(), value, &data);
  return static_cast<Handle*>(data);
}

}  // namespace rdmakit
