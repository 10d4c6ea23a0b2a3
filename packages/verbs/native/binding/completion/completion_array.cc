// Polling without allocating: completions go to fixed places of one ArrayBuffer.
#include "binding/bound_function.h"
#include "binding/completion/completion_entry.h"
#include "binding/failure.h"
#include "binding/objects.h"
#include "binding/values.h"

namespace rdmakit::binding {

namespace {

class CompletionArray final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::completion_array;
  CompletionArray(CqObject& queue, uint32_t count)
      : Object(kKind, queue.provider, this), queue_(queue), owner_(&queue), entries_(count) {}
  Napi::Value buffer(Napi::Env env) { return entries_.buffer(env); }

  // Hot path: poll(max) → count, or -1 when the queue is broken.
  static napi_value poll(napi_env env, napi_callback_info info) {
    BoundCall call;
    if (!bound_call(env, info, call, 1)) return nullptr;
    auto& self = *static_cast<CompletionArray*>(call.object);
    const uint32_t max = std::min(call.arguments[0], self.entries_.size());
    return number_of(env, max == 0 ? 0 : poll_into(self.queue_, static_cast<int>(max), self.entries_.data()));
  }
  // End of hot path.

 private:
  void destroy(void*) override { owner_ = {}; }
  bool destroys_here() override { return true; }
  CqObject& queue_;
  Ref<ibv_cq> owner_;
  SharedRecords<CompletionEntry> entries_;
};

}  // namespace

// createCompletionArray(cq, count) → { handle, buffer, poll }
Napi::Value CqObject::create_array(const Napi::CallbackInfo& info) {
  auto* array = new CompletionArray(*this, count_of(info[1], "the size of a completion array", kMaxPoll));
  const Napi::Env env = info.Env();
  const Napi::Value handle = Object::wrap(env, array);
  return new_object(env, "handle", handle, "buffer", array->buffer(env), "poll",
                    bind_function(env, "poll", CompletionArray::poll, array, handle));
}

}  // namespace rdmakit::binding
