// class Poller of the addon: src/native.ts says what its methods do.
#pragma once

#include <napi.h>

#include <memory>
#include <type_traits>

#include "binding/doorbell.h"
#include "binding/loop_watch.h"
#include "rdmakit/binding_call.h"
#include "ring/polling/poller.h"

namespace rdmakit::ring::binding {

class PollerObject final : public Napi::ObjectWrap<PollerObject> {
 public:
  static Napi::Function define(Napi::Env env);
  explicit PollerObject(const Napi::CallbackInfo& info);
  ~PollerObject() override { end(); }

 private:
  // Wraps `Method`; JavaScript gets an error if memory runs out in it.
  template <auto Method>
  std::invoke_result_t<decltype(Method), PollerObject, const Napi::CallbackInfo&> within(
      const Napi::CallbackInfo& info) {
    return within_memory(info.Env(), "Poller", [&] { return (this->*Method)(info); });
  }
  void open(const Napi::CallbackInfo& info);
  Napi::Value memory(const Napi::CallbackInfo& info);
  Napi::Value layout(const Napi::CallbackInfo& info);
  Napi::Value attach(const Napi::CallbackInfo& info);
  void establish(const Napi::CallbackInfo& info);
  Napi::Value drained(const Napi::CallbackInfo& info);
  Napi::Value ping(const Napi::CallbackInfo& info);
  Napi::Value read(const Napi::CallbackInfo& info);
  Napi::Value counters(const Napi::CallbackInfo& info);
  void poller_counters(const Napi::CallbackInfo& info);
  void detach(const Napi::CallbackInfo& info);
  void release(const Napi::CallbackInfo& info);
  void set_ref(const Napi::CallbackInfo& info);
  void wake(const Napi::CallbackInfo&) { poller_->wake(); }
  void stop(const Napi::CallbackInfo&) { end(); }

  void end();
  static void at_exit(void* self) { static_cast<PollerObject*>(self)->end(); }

  // Shared with the ArrayBuffer over its event ring.
  std::shared_ptr<Poller> poller_;
  // Wakes JavaScript: from the poller's thread, or, in mode `caller`, from its own event loop.
  Doorbell doorbell_;
  LoopWatch* watch_ = nullptr;
  Napi::Reference<Napi::ArrayBuffer> memory_;
  bool ended_ = true;
};

}  // namespace rdmakit::ring::binding
