// Verbs objects as @rdmakit/verbs hands them over (rdmakit/handle.h).
#pragma once

#include <cerrno>

#include "rdmakit/failure.h"

namespace rdmakit::ring::binding {

// The handle in an argument, or a JavaScript error.
template <typename Reference>
Reference reference(const Napi::Value& value, HandleKind kind, const char* expected) {
  const Napi::Env env = value.Env();
  Handle* const handle = handle_in(value);
  if (handle == nullptr || handle->kind != kind)
    throw Napi::TypeError::New(env, std::string("expected the handle of a ") + expected);
  if (handle->abi != kHandleAbi)
    throw failure(env, EPROTO, expected,
                  "@rdmakit/verbs and @rdmakit/ring-transport are of different versions");
  if (handle->object == nullptr) throw failure(env, EINVAL, expected, "it is closed");
  return Reference(handle);
}

}  // namespace rdmakit::ring::binding
