// Asynchronous events of a device, brought to JavaScript.
#include <cerrno>

#include "binding/failure.h"
#include "binding/objects.h"

namespace rdmakit::binding {

void ContextObject::watch(Napi::Env env, Napi::Function sink) {
  if (watch_ != 0) return;
  auto doorbell = Napi::ThreadSafeFunction::New(env, sink, "asynchronous events", 0, 1);
  // Listening alone is no reason for a program to stay.
  doorbell.Unref(env);
  watch_ = provider.watch_async_events(context(), [doorbell](const AsyncEvent& event) {
    auto* carried = new AsyncEvent(event);
    const napi_status status =
        doorbell.NonBlockingCall(carried, [](Napi::Env to, Napi::Function call, AsyncEvent* taken) {
          const std::unique_ptr<AsyncEvent> owned(taken);
          if (to == nullptr || call.IsEmpty()) return;
          call.Call(
              {Napi::Number::New(to, static_cast<int>(owned->type)), Napi::BigInt::New(to, owned->element)});
        });
    if (status != napi_ok) delete carried;
  });
  if (watch_ == 0) {
    const int error = errno;
    doorbell.Release();
    throw failure(env, error, "ibv_get_async_event",
                  error == EOPNOTSUPP ? "the device reports no asynchronous events" : reason_of_start(error));
  }
  sink_ = doorbell;
  hook_.set(
      env, [](void* context) { static_cast<ContextObject*>(context)->unwatch(); }, this);
}

void ContextObject::unwatch() {
  if (watch_ == 0) return;
  hook_.clear();
  provider.unwatch_async_events(context(), watch_);
  watch_ = 0;
  sink_.Release();
}

namespace {

void watch_async_events(const Napi::CallbackInfo& info) {
  object_of<ContextObject>(info[0]).watch(info.Env(), info[1].As<Napi::Function>());
}

void unwatch(const Napi::CallbackInfo& info) { object_of<ContextObject>(info[0]).unwatch(); }

}  // namespace

void export_async_events(Napi::Object exports) {
  define(exports, "watchAsyncEvents", watch_async_events);
  define(exports, "unwatchAsyncEvents", unwatch);
}

}  // namespace rdmakit::binding
