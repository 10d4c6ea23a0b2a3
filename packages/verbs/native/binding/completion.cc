// Completion channels and completion queues.
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>

#include "binding/channel_watcher.h"
#include "binding/failure.h"
#include "binding/objects.h"

namespace rdmakit::binding {

void ChannelObject::watch(Napi::Env env, Napi::Function wake) {
  if (watch_ != 0) return;
  auto doorbell = Napi::ThreadSafeFunction::New(env, wake, "completion channel", 0, 1);
  watch_ = watch_channel(channel(), verbs, doorbell);
  if (watch_ == 0) {
    const int error = errno;
    doorbell.Release();
    throw failure(env, error, "ibv_get_cq_event");
  }
  hook_.set(
      env, [](void* channel) { static_cast<ChannelObject*>(channel)->end_in_javascript(); }, this);
}

void ChannelObject::end_in_javascript() {
  if (watch_ == 0) return;
  hook_.clear();
  unwatch_channel(watch_);
  watch_ = 0;
}

void ChannelObject::destroy() {
  provider.destroy_comp_channel(channel());
  parent_ = {};
}

void CqObject::destroy() {
  provider.destroy_cq(cq());
  channel_ = {};
  parent_ = {};
}

namespace {

Napi::Value create_channel(const Napi::CallbackInfo& info) {
  auto& context = object_of<ContextObject>(info[0]);
  ibv_comp_channel* channel = context.provider.create_comp_channel(context.context());
  if (channel == nullptr) throw failure(info.Env(), errno, "ibv_create_comp_channel");
  return Object::wrap(info.Env(), new ChannelObject(context, channel));
}

void watch(const Napi::CallbackInfo& info) {
  object_of<ChannelObject>(info[0]).watch(info.Env(), info[1].As<Napi::Function>());
}

Napi::Value create_cq(const Napi::CallbackInfo& info) {
  auto& context = object_of<ContextObject>(info[0]);
  Ref<ibv_comp_channel> channel;
  if (!info[2].IsUndefined()) channel = Ref<ibv_comp_channel>(&object_of<ChannelObject>(info[2]));
  const auto progress = info[3].As<Napi::Boolean>() ? Progress::manual : Progress::automatic;
  ibv_cq* cq = context.provider.create_cq(context.context(), info[1].As<Napi::Number>().Int32Value(), nullptr,
                                          channel.get(), progress);
  if (cq == nullptr) throw failure(info.Env(), errno, "ibv_create_cq");
  return Object::wrap(info.Env(), new CqObject(context, std::move(channel), cq));
}

Napi::Value cq_identity(const Napi::CallbackInfo& info) {
  return Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(object_of<CqObject>(info[0]).object));
}

Napi::Value poll_cq(const Napi::CallbackInfo& info) {
  ibv_cq* cq = object_of<CqObject>(info[0]).cq();
  ibv_wc completions[64];
  const int wanted = std::clamp(info[1].As<Napi::Number>().Int32Value(), 1, 64);
  const int count = ibv_poll_cq(cq, wanted, completions);
  if (count < 0) throw failure(info.Env(), EIO, "ibv_poll_cq", "the queue is broken, most likely overrun");
  Napi::Array out = Napi::Array::New(info.Env(), static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const ibv_wc& wc = completions[i];
    Napi::Object one = Napi::Object::New(info.Env());
    one.Set("workRequestId", Napi::BigInt::New(info.Env(), wc.wr_id));
    one.Set("status", static_cast<int>(wc.status));
    one.Set("opcode", static_cast<int>(wc.opcode));
    one.Set("byteLength", wc.byte_len);
    const bool immediate = wc.status == IBV_WC_SUCCESS && (wc.wc_flags & IBV_WC_WITH_IMM) != 0;
    one.Set("immediate", immediate ? Napi::Number::New(info.Env(), ntohl(wc.imm_data)).As<Napi::Value>()
                                   : info.Env().Undefined());
    one.Set("queuePairNumber", wc.qp_num);
    one.Set("vendorError", wc.vendor_err);
    out.Set(static_cast<uint32_t>(i), one);
  }
  return out;
}

void request_notification(const Napi::CallbackInfo& info) {
  ibv_cq* cq = object_of<CqObject>(info[0]).cq();
  check(info.Env(), ibv_req_notify_cq(cq, info[1].As<Napi::Boolean>() ? 1 : 0), "ibv_req_notify_cq");
}

}  // namespace

void export_completions(Napi::Env env, Napi::Object exports) {
  exports.Set("createChannel", Napi::Function::New(env, create_channel));
  exports.Set("watchChannel", Napi::Function::New(env, watch));
  exports.Set("createCq", Napi::Function::New(env, create_cq));
  exports.Set("cqIdentity", Napi::Function::New(env, cq_identity));
  exports.Set("pollCq", Napi::Function::New(env, poll_cq));
  exports.Set("requestNotification", Napi::Function::New(env, request_notification));
}

}  // namespace rdmakit::binding
