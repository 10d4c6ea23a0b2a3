// Completion channels and completion queues.
#include <cerrno>

#include "binding/completion/completion_entry.h"
#include "binding/failure.h"
#include "binding/objects.h"
#include "provider/channel_watcher.h"

namespace rdmakit::binding {

void ChannelObject::watch(const Napi::CallbackInfo& info) {
  if (watch_ != 0) return;
  const Napi::Env env = info.Env();
  doorbell_ = Napi::ThreadSafeFunction::New(env, info[1].As<Napi::Function>(), "completion channel", 0, 1);
  doorbell_.Unref(env);
  watch_ = watch_channel(channel(), verbs, [doorbell = doorbell_](ibv_cq* cq, int error) {
    doorbell.NonBlockingCall([cq, error](Napi::Env environment, Napi::Function function) {
      if (error == 0) {
        function.Call({Napi::BigInt::New(environment, reinterpret_cast<uint64_t>(cq))});
      } else {
        function.Call({environment.Undefined(), failure(environment, ENODEV, "ibv_get_cq_event",
                                                        "its device is gone: " + reason(error))
                                                    .Value()});
      }
    });
  });
  if (watch_ == 0) {
    const int error = errno;
    doorbell_.Release();
    throw failure(env, error, "ibv_get_cq_event", reason_of_start(error));
  }
  hook_.set(
      env, [](void* channel) { static_cast<ChannelObject*>(channel)->end_in_javascript(); }, this);
}

void ChannelObject::set_ref(const Napi::CallbackInfo& info) {
  if (watch_ == 0) return;
  info[1].As<Napi::Boolean>() ? doorbell_.Ref(info.Env()) : doorbell_.Unref(info.Env());
}

void ChannelObject::end_in_javascript() {
  if (watch_ == 0) return;
  hook_.clear();
  unwatch_channel(watch_);
  doorbell_.Release();
  watch_ = 0;
}

void ChannelObject::destroy(void* verbs_object) {
  provider.destroy_comp_channel(static_cast<ibv_comp_channel*>(verbs_object));
  parent_ = {};
}

void CqObject::destroy(void* verbs_object) {
  provider.destroy_cq(static_cast<ibv_cq*>(verbs_object));
  channel_ = {};
  parent_ = {};
}

Napi::Value ContextObject::create_channel(const Napi::CallbackInfo& info) {
  ibv_comp_channel* channel = provider.create_comp_channel(context());
  if (channel == nullptr) throw failure(info.Env(), errno, "ibv_create_comp_channel");
  return Object::wrap(info.Env(), new ChannelObject(*this, channel));
}

namespace {

// The standard fields and a timestamp.
ibv_cq* create_stamped_cq(ContextObject& context, int entries, ibv_comp_channel* channel, Progress progress,
                          Timestamps timestamps) {
  ibv_cq_init_attr_ex attributes{};
  attributes.cqe = static_cast<uint32_t>(entries);
  attributes.channel = channel;
  const unsigned stamp = timestamps == Timestamps::device ? IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
                                                          : IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  attributes.wc_flags = static_cast<unsigned>(IBV_WC_STANDARD_FLAGS) | stamp;
  ibv_cq_ex* cq = context.provider.create_cq_ex(context.context(), &attributes, progress);
  return cq == nullptr ? nullptr : ibv_cq_ex_to_cq(cq);
}

}  // namespace

// createCq(context, entries, channel | undefined, manual, timestamps: 0 none, 1 device, 2 wallclock)
Napi::Value ContextObject::create_cq(const Napi::CallbackInfo& info) {
  const int entries = info[1].As<Napi::Number>().Int32Value();
  Ref<ibv_comp_channel> channel;
  if (!info[2].IsUndefined()) channel = Ref<ibv_comp_channel>(&object_of<ChannelObject>(info[2], *this));
  const auto progress = info[3].As<Napi::Boolean>() ? Progress::manual : Progress::automatic;
  const auto timestamps = static_cast<Timestamps>(info[4].As<Napi::Number>().Int32Value());
  ibv_cq* cq = timestamps == Timestamps::none
                   ? provider.create_cq(context(), entries, nullptr, channel.get(), progress)
                   : create_stamped_cq(*this, entries, channel.get(), progress, timestamps);
  if (cq == nullptr)
    throw device_failure(info.Env(), errno,
                         timestamps == Timestamps::none ? "ibv_create_cq" : "ibv_create_cq_ex",
                         "the device has no completion timestamps");
  return Object::wrap(info.Env(), new CqObject(*this, std::move(channel), cq, timestamps));
}

void CqObject::resize(const Napi::CallbackInfo& info) {
  const int error = provider.resize_cq(cq(), info[1].As<Napi::Number>().Int32Value());
  if (error != 0)
    throw device_failure(info.Env(), error, "ibv_resize_cq", "the device cannot resize completion queues");
}

Napi::Value CqObject::identity(const Napi::CallbackInfo& info) {
  return Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(object));
}

Napi::Value CqObject::poll(const Napi::CallbackInfo& info) {
  CompletionEntry completions[kMaxPoll];
  const int count = poll_into(*this, info[1].As<Napi::Number>().Int32Value(), completions);
  if (count < 0) throw failure(info.Env(), EIO, "ibv_poll_cq", "the queue is broken, most likely overrun");
  Napi::Array out = Napi::Array::New(info.Env(), static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const CompletionEntry& from = completions[i];
    Napi::Object one = Napi::Object::New(info.Env());
    const unsigned flags = from.status == IBV_WC_SUCCESS ? from.flags : 0;
    const auto only_if = [&](bool present, auto value) -> Napi::Value {
      return present ? Napi::Value::From(info.Env(), value) : info.Env().Undefined();
    };
    one.Set("workRequestId", Napi::BigInt::New(info.Env(), from.work_request_id));
    one.Set("status", from.status);
    one.Set("opcode", from.opcode);
    one.Set("byteLength", from.byte_length);
    one.Set("immediate", only_if(flags & IBV_WC_WITH_IMM, from.immediate));
    one.Set("invalidatedKey", only_if(flags & IBV_WC_WITH_INV, from.immediate));
    one.Set("globalRoutingHeader", (flags & IBV_WC_GRH) != 0);
    one.Set("sourceQueuePairNumber", from.source);
    one.Set("queuePairNumber", from.queue_pair);
    one.Set("vendorError", from.vendor_error);
    one.Set("timestamp", timestamps() == Timestamps::none
                             ? info.Env().Undefined()
                             : Napi::BigInt::New(info.Env(), from.timestamp).As<Napi::Value>());
    out.Set(static_cast<uint32_t>(i), one);
  }
  return out;
}

void CqObject::request_notification(const Napi::CallbackInfo& info) {
  check(info.Env(), ibv_req_notify_cq(cq(), info[1].As<Napi::Boolean>() ? 1 : 0), "ibv_req_notify_cq");
}

}  // namespace rdmakit::binding
