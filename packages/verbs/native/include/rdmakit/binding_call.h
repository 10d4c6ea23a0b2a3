// A function as JavaScript calls it. What C++ throws must not reach Node-API, which ends the process: memory
// that cannot be had is an error of the call, as of any verb.
#pragma once

#include <napi.h>

#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace rdmakit {

// With the code of errno; `verb` and `detail` for @rdmakit/verbs, `syscall` for @rdmakit/nbd-client.
inline Napi::Error out_of_memory(Napi::Env env, const char* name) {
  constexpr char kDetail[] = "there is not that much memory";
  Napi::Error error = Napi::Error::New(env, std::string(name) + ": " + kDetail + " (ENOMEM)");
  error.Set("code", "ENOMEM");
  error.Set("verb", name);
  error.Set("syscall", name);
  error.Set("detail", kDetail);
  return error;
}

// An embedder may keep JavaScript's memory to itself (V8's sandbox, as in Electron): no ArrayBuffer over
// memory that a device knows can be had there, and a copy of it would be nothing. To be asked when an addon
// is loaded.
inline void require_external_buffers(Napi::Env env) {
  // A new address each time: V8 does not accept two ArrayBuffers over one address.
  auto probe = std::make_unique<uint64_t>(0);
  const auto done = [](napi_env, void* data, void*) {
    std::unique_ptr<uint64_t>(static_cast<uint64_t*>(data)).reset();
  };
  napi_value made = nullptr;
  if (napi_create_external_arraybuffer(env, probe.get(), sizeof *probe, done, nullptr, &made) == napi_ok) {
    static_cast<void>(probe.release());
    return;
  }
  Napi::Error error = Napi::Error::New(
      env,
      "JavaScript may have no memory outside of V8's own heap here (napi_no_external_buffers_allowed), as in"
      " Electron; run this in a process of Node.js itself, and talk to that");
  error.Set("code", "EOPNOTSUPP");
  throw error;
}

// Returns the result of `work`, or throws out_of_memory.
template <typename Work>
auto within_memory(Napi::Env env, const char* name, Work work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw out_of_memory(env, name);
  } catch (const std::length_error&) {  // more than a container may ever have
    throw out_of_memory(env, name);
  }
}

// A JavaScript object of these names, each followed by its value.
template <typename... Fields>
Napi::Object new_object(Napi::Env env, const Fields&... fields) {
  Napi::Object object = Napi::Object::New(env);
  const auto set = [&object](const auto& each, const char* name, const auto& value, const auto&... rest) {
    object.Set(name, value);
    if constexpr (sizeof...(rest) > 0) each(each, rest...);
  };
  set(set, fields...);
  return object;
}

// For plain Node-API functions, of hot loops.
inline napi_value number_of(napi_env env, int32_t value) {
  napi_value out = nullptr;
  napi_create_int32(env, value, &out);
  return out;
}

// A property of `exports` that is called. `function` takes a Napi::CallbackInfo.
template <typename Function>
void define(Napi::Object exports, const char* name, Function function) {
  const auto call = [name, function](const Napi::CallbackInfo& info) {
    return within_memory(info.Env(), name, [&] { return function(info); });
  };
  exports.Set(name, Napi::Function::New(exports.Env(), call, name));
}

// Work off JavaScript's thread, whose promise is settled also when memory runs out in Execute().
class PromiseWorker : public Napi::AsyncWorker {
 public:
  PromiseWorker(Napi::Env env, const char* name)
      : Napi::AsyncWorker(env), deferred_(Napi::Promise::Deferred::New(env)), name_(name) {}
  Napi::Promise promise() const { return deferred_.Promise(); }

 protected:
  void OnError(const Napi::Error&) override { deferred_.Reject(out_of_memory(Env(), name_).Value()); }

  const Napi::Promise::Deferred deferred_;
  const char* const name_;
};

// Starts the work of a PromiseWorker, which deletes itself when it is done, as every Napi::AsyncWorker.
template <typename Worker, typename... Arguments>
Napi::Value start(Arguments&&... arguments) {
  auto worker = std::make_unique<Worker>(std::forward<Arguments>(arguments)...);
  const Napi::Promise promise = worker->promise();
  worker.release()->Queue();
  return promise;
}

}  // namespace rdmakit
