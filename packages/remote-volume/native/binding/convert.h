// Between JavaScript values and ours: every argument is checked before it is used.
#pragma once

#include <napi.h>

#include <string>

#include "rdmakit/binding_call.h"
#include "rdmakit/handle.h"

namespace rdmakit::volume::binding {

// The package of the addon that this is compiled into: the addon says so.
extern const char* const kPackage;

// Throws an Error with `code` (errno name) and `syscall`.
void check(Napi::Env env, int error, const char* syscall, const std::string& why);

uint64_t to_uint64(const Napi::Value& value, const char* what);
uint32_t to_uint32(const Napi::Value& value, const char* what);
std::string to_string(const Napi::Value& value, const char* what);

// The handle in an external of @rdmakit/verbs: its type tag, ABI version, kind and life are checked.
Handle* to_handle(const Napi::Value& value, HandleKind kind, const char* what);

template <typename Reference>
Reference to_reference(const Napi::Value& value, HandleKind kind, const char* what) {
  return Reference(to_handle(value, kind, what));
}
// undefined and null give an empty reference.
template <typename Reference>
Reference to_optional(const Napi::Value& value, HandleKind kind, const char* what) {
  if (value.IsUndefined() || value.IsNull()) return Reference();
  return Reference(to_handle(value, kind, what));
}

}  // namespace rdmakit::volume::binding
