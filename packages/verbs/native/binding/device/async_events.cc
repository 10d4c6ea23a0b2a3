// Asynchronous events of a device, brought to JavaScript.
#include <cerrno>

#include "binding/failure.h"
#include "binding/objects.h"

namespace rdmakit::binding {

void ContextObject::watch(const Napi::CallbackInfo& info) {
  if (watch_ != 0) return;
  const Napi::Env env = info.Env();
  auto doorbell =
      Napi::ThreadSafeFunction::New(env, info[1].As<Napi::Function>(), "asynchronous events", 0, 1);
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

}  // namespace rdmakit::binding
