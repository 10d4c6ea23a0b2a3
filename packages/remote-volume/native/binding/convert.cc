#include "binding/convert.h"

#include <cmath>
#include <cstring>

#include "rdmakit/failure.h"

namespace rdmakit::volume::binding {

Napi::Error failure(Napi::Env env, int error, const char* syscall, const std::string& why) {
  const std::string code = code_of(error);
  const std::string& detail = why.empty() ? std::string(strerror(error)) : why;
  Napi::Error made = Napi::Error::New(env, std::string(syscall) + ": " + detail + " (" + code + ")");
  made.Set("code", code);
  made.Set("syscall", syscall);
  return made;
}

void check(Napi::Env env, int error, const char* syscall, const std::string& why) {
  if (error != 0) throw failure(env, error, syscall, why);
}

uint64_t to_uint64(const Napi::Value& value, const char* what) {
  if (value.IsBigInt()) {
    bool lossless = false;
    const uint64_t number = value.As<Napi::BigInt>().Uint64Value(&lossless);
    if (lossless) return number;
  }
  throw Napi::TypeError::New(value.Env(), std::string(what) + " must be a bigint of 0 … 2^64-1");
}

uint32_t to_uint32(const Napi::Value& value, const char* what) {
  if (value.IsNumber()) {
    const double number = value.As<Napi::Number>().DoubleValue();
    if (number >= 0 && number <= UINT32_MAX && std::floor(number) == number)
      return static_cast<uint32_t>(number);
  }
  throw Napi::TypeError::New(value.Env(), std::string(what) + " must be an integer of 0 … 2^32-1");
}

std::string to_string(const Napi::Value& value, const char* what) {
  if (!value.IsString()) throw Napi::TypeError::New(value.Env(), std::string(what) + " must be a string");
  return value.As<Napi::String>().Utf8Value();
}

Handle* to_handle(const Napi::Value& value, HandleKind kind, const char* what) {
  const Napi::Env env = value.Env();
  Handle* const handle = handle_in(value);
  if (handle == nullptr)
    throw Napi::TypeError::New(env, std::string(what) + " is no handle of @rdmakit/verbs");
  // Before anything else of it is read: another ABI may have another layout.
  if (handle->abi != kHandleAbi)
    check(env, EPROTO, what, std::string("@rdmakit/verbs and ") + kPackage + " are of different versions");
  if (handle->kind != kind)
    throw Napi::TypeError::New(env, std::string(what) + " is a handle of another kind");
  if (handle->object == nullptr) check(env, EINVAL, what, "it is closed");
  return handle;
}

}  // namespace rdmakit::volume::binding
