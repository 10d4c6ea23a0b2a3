// Verbs objects as @rdmakit/verbs hands them over (rdmakit/handle.h), and errors in its shape.
#pragma once

#include <napi.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <string>

#include "rdmakit/errno_name.h"
#include "rdmakit/handle.h"

namespace rdmakit::ring::binding {

inline constexpr napi_type_tag kHandleTag{kHandleTagLower, kHandleTagUpper};

inline Napi::Error failure(Napi::Env env, int error, const char* verb, const std::string& detail) {
  const char* name = errno_name(error);
  const std::string code = name == nullptr ? "EIO" : name;
  Napi::Error made = Napi::Error::New(env, std::string(verb) + ": " + detail + " (" + code + ")");
  made.Set("code", code);
  made.Set("verb", verb);
  made.Set("detail", detail);
  return made;
}

inline void check(Napi::Env env, int error, const char* verb) {
  if (error == 0) return;
  std::string text = strerror(error);
  text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  throw failure(env, error, verb, text);
}

// The handle in an argument, or a JavaScript error: a foreign object is never cast.
template <typename Reference>
Reference reference(const Napi::Value& value, HandleKind kind, const char* expected) {
  const Napi::Env env = value.Env();
  bool tagged = false;
  if (value.IsExternal()) napi_check_object_type_tag(env, value, &kHandleTag, &tagged);
  void* data = nullptr;
  if (tagged) napi_get_value_external(env, value, &data);
  auto* handle = static_cast<Handle*>(data);
  if (handle == nullptr || handle->kind != kind)
    throw Napi::TypeError::New(env, std::string("expected the handle of a ") + expected);
  if (handle->abi != kHandleAbi)
    throw failure(env, EPROTO, expected,
                  "@rdmakit/verbs and @rdmakit/ring-transport are of different versions");
  if (handle->object == nullptr) throw failure(env, EINVAL, expected, "it is closed");
  return Reference(handle);
}

}  // namespace rdmakit::ring::binding
