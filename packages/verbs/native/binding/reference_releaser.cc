#include "binding/reference_releaser.h"

#include <chrono>

namespace rdmakit::binding {
namespace {

// More than any provider takes; only a hang is ended by it.
constexpr std::chrono::seconds kEndPatience{60};

// A thread runs one environment.
thread_local std::shared_ptr<ReferenceReleaser> own;

}  // namespace

std::shared_ptr<ReferenceReleaser> ReferenceReleaser::of(Napi::Env env) {
  if (own != nullptr) return own;
  auto made = std::make_shared<ReferenceReleaser>();
  made->doorbell_ = Napi::ThreadSafeFunction::New(
      env, Napi::Function::New(env, [](const Napi::CallbackInfo&) {}), "memory regions", 0, 1);
  made->doorbell_.Unref(env);
  // Made after the doorbell, so that it runs before the doorbell's own end.
  if (napi_add_env_cleanup_hook(env, end, made.get()) != napi_ok) throw Napi::Error::New(env);
  own = made;
  return own;
}

void ReferenceReleaser::end(void* releaser) {
  auto* self = static_cast<ReferenceReleaser*>(releaser);
  {
    std::unique_lock lock(self->mutex_);
    self->open_ = false;
    self->doorbell_.Release();
    self->none_awaited_.wait_for(lock, kEndPatience, [self] { return self->awaited_ == 0; });
  }
  own.reset();
}

bool ReferenceReleaser::await_release() {
  const std::lock_guard lock(mutex_);
  if (open_) awaited_++;
  return open_;
}

// Under mutex_.
void ReferenceReleaser::came_back() {
  if (awaited_ > 0 && --awaited_ == 0) none_awaited_.notify_all();
}

void ReferenceReleaser::keep(Reference&& reference) {
  reference.SuppressDestruct();
  const std::lock_guard lock(mutex_);
  came_back();
}

void ReferenceReleaser::release(Reference&& reference) {
  auto* taken = new Reference(std::move(reference));
  const std::lock_guard lock(mutex_);
  const napi_status status =
      open_
          ? doorbell_.NonBlockingCall(taken, [](Napi::Env, Napi::Function, Reference* gone) { delete gone; })
          : napi_closing;
  if (status != napi_ok) taken->SuppressDestruct();
  came_back();
}

}  // namespace rdmakit::binding
