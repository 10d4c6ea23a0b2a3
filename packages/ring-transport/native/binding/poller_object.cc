#include "binding/poller_object.h"

#include "binding/bound_function.h"
#include "binding/handles.h"

namespace rdmakit::ring::binding {
namespace {

uint32_t number(const Napi::Value& value) { return value.As<Napi::Number>().Uint32Value(); }

Napi::Value result(Napi::Env env, SendResult result) {
  return Napi::Number::New(env, static_cast<int32_t>(result));
}

// The memory of a Float64Array with room for `count` numbers.
double* numbers(const Napi::Value& value, size_t count) {
  void* data = nullptr;
  size_t length = 0;
  napi_typedarray_type type;
  if (napi_get_typedarray_info(value.Env(), value, &type, &length, &data, nullptr, nullptr) != napi_ok ||
      type != napi_float64_array || length < count)
    throw Napi::TypeError::New(value.Env(), "expected a Float64Array that holds every counter");
  return static_cast<double*>(data);
}

// --- hot path: calls of each batch, or of each lap of a ring ---------------------------------------
napi_value reserve(napi_env env, napi_callback_info info) {
  const BoundCall<3> call(env, info);
  if (!call.good()) return nullptr;
  return number_of(env, static_cast<int32_t>(call.object<Poller>().reserve(call[0], call[1], call[2])));
}

napi_value flush(napi_env env, napi_callback_info info) {
  const BoundCall<3> call(env, info);
  if (!call.good()) return nullptr;
  return number_of(env, static_cast<int32_t>(call.object<Poller>().flush(call[0], call[1], call[2] != 0)));
}

napi_value flush_lent(napi_env env, napi_callback_info info) {
  const BoundCall<4> call(env, info);
  if (!call.good()) return nullptr;
  size_t count = 5;
  napi_value values[5];
  napi_typedarray_type type;
  size_t length = 0;
  void* data = nullptr;
  if (napi_get_cb_info(env, info, &count, values, nullptr, nullptr) != napi_ok ||
      napi_get_typedarray_info(env, values[4], &type, &length, &data, nullptr, nullptr) != napi_ok ||
      type != napi_uint8_array || length > UINT32_MAX) {
    napi_throw_type_error(env, "EINVAL", "expected a Uint8Array");
    return nullptr;
  }
  const SendResult result = call.object<Poller>().flush_lent(
      call[0], call[1], call[2] != 0, call[3], static_cast<uint8_t*>(data), static_cast<uint32_t>(length));
  return number_of(env, static_cast<int32_t>(result));
}

napi_value return_credit(napi_env env, napi_callback_info info) {
  const BoundCall<1> call(env, info);
  if (call.good()) call.object<Poller>().return_credit(call[0]);
  return nullptr;
}

napi_value turn(napi_env env, napi_callback_info info) {
  const BoundCall<0> call(env, info);
  return number_of(env, static_cast<int32_t>(call.object<Poller>().turn()));
}
// --- end of the hot path -------------------------------------------------------------------------

}  // namespace

Napi::Function PollerObject::define(Napi::Env env) {
  return DefineClass(
      env, "Poller",
      {
          InstanceAccessor<&PollerObject::within<&PollerObject::memory>>("memory"),
          InstanceAccessor<&PollerObject::within<&PollerObject::layout>>("layout"),
          InstanceMethod<&PollerObject::within<&PollerObject::attach>>("attach"),
          InstanceMethod<&PollerObject::within<&PollerObject::establish>>("establish"),
          InstanceMethod<&PollerObject::within<&PollerObject::drained>>("drained"),
          InstanceMethod<&PollerObject::within<&PollerObject::ping>>("ping"),
          InstanceMethod<&PollerObject::within<&PollerObject::read>>("read"),
          InstanceMethod<&PollerObject::within<&PollerObject::counters>>("counters"),
          InstanceMethod<&PollerObject::within<&PollerObject::poller_counters>>("pollerCounters"),
          InstanceMethod<&PollerObject::within<&PollerObject::detach>>("detach"),
          InstanceMethod<&PollerObject::within<&PollerObject::release>>("release"),
          InstanceMethod<&PollerObject::within<&PollerObject::set_ref>>("setRef"),
          InstanceMethod<&PollerObject::within<&PollerObject::wake>>("wake"),
          InstanceMethod<&PollerObject::within<&PollerObject::stop>>("stop"),
      });
}

PollerObject::PollerObject(const Napi::CallbackInfo& info) : Napi::ObjectWrap<PollerObject>(info) {
  within_memory(info.Env(), "Poller", [&] { open(info); });
}

void PollerObject::open(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  auto cq = reference<CqRef>(info[0], HandleKind::completion_queue, "completion queue");
  auto channel = reference<ChannelRef>(info[1], HandleKind::completion_channel, "completion channel");
  PollerOptions options;
  options.mode = static_cast<Mode>(number(info[2]));
  options.cpu = info[3].As<Napi::Number>().Int32Value();
  options.spin_ns = uint64_t{number(info[4])} * 1000;
  options.max_connections = number(info[5]);
  options.descriptor_count = number(info[6]);
  if (options.max_connections > kMaxConnections) throw failure(env, EINVAL, "Poller", "too many connections");
  // Connections keep the event loop alive (setRef), a poller without any does not.
  const bool turns = turned_by_application(options.mode);
  if (turns) {
    // By this thread, and by the guardian: it is ended before `end` takes the watch away.
    poller_ = std::make_shared<Poller>(std::move(cq), std::move(channel), options, [this] {
      if (watch_ != nullptr) watch_->wake();
    });
    int error = 0;
    watch_ = LoopWatch::open(env, poller_, info[7], error);
    check(env, error, "uv_poll_start");
  } else {
    doorbell_ = Doorbell(env, info[7].As<Napi::Function>());
    poller_ = std::make_shared<Poller>(std::move(cq), std::move(channel), options,
                                       [doorbell = doorbell_] { doorbell.ring(); });
  }
  ended_ = false;
  // A process that exits with connections open: the thread ends before anything it uses.
  napi_add_env_cleanup_hook(env, at_exit, this);
  if (int error = poller_->start(); error != 0) {
    end();
    throw failure(env, error, "pthread_create", why_no_thread(error));
  }
  const Napi::Object self = info.This().As<Napi::Object>();
  define_bound(self, "reserve", reserve, poller_.get());
  define_bound(self, "flush", flush, poller_.get());
  define_bound(self, "flushLent", flush_lent, poller_.get());
  define_bound(self, "returnCredit", return_credit, poller_.get());
  if (turns) define_bound(self, "turn", turn, poller_.get());
}

void PollerObject::end() {
  if (ended_) return;
  ended_ = true;
  napi_remove_env_cleanup_hook(Env(), at_exit, this);
  if (watch_ != nullptr) watch_->close();
  watch_ = nullptr;
  poller_->stop();
  doorbell_.end();
}

Napi::Value PollerObject::memory(const Napi::CallbackInfo& info) {
  // Always the same: V8 does not take two ArrayBuffers over one address.
  if (memory_.IsEmpty()) {
    auto* keep = new std::shared_ptr<Poller>(poller_);
    EventRing& events = poller_->event_ring();
    Napi::ArrayBuffer made = Napi::ArrayBuffer::New(
        info.Env(), events.memory(), events.bytes(),
        [](Napi::Env, void*, std::shared_ptr<Poller>* kept) { delete kept; }, keep);
    memory_ = Napi::Persistent(made);
  }
  return memory_.Value();
}

Napi::Value PollerObject::layout(const Napi::CallbackInfo& info) {
  const EventRing& events = poller_->event_ring();
  Napi::Object out = Napi::Object::New(info.Env());
  out.Set("head", EventRing::kHead);
  out.Set("tail", EventRing::kTail);
  out.Set("idle", EventRing::kIdle);
  out.Set("full", EventRing::kFull);
  out.Set("hurry", EventRing::kHurry);
  out.Set("slots", EventRing::kSlots);
  out.Set("slotStride", EventRing::kSlotStride);
  out.Set("released", EventRing::kReleased);
  out.Set("reported", EventRing::kReported);
  out.Set("staging", EventRing::kStaging);
  out.Set("descriptors", events.descriptors_at());
  out.Set("descriptorStride", static_cast<uint32_t>(sizeof(Descriptor) / 4));
  out.Set("descriptorCount", events.descriptor_count());
  return out;
}

Napi::Value PollerObject::attach(const Napi::CallbackInfo& info) {
  ConnectionOptions options;
  options.qp = reference<QpRef>(info[0], HandleKind::queue_pair, "queue pair");
  options.ring = reference<MrRef>(info[1], HandleKind::memory_region, "memory region");
  options.windows.log2_capacity = number(info[2]);
  options.receive_depth = number(info[3]);
  options.send.depth = number(info[4]);
  options.send.signal_every = number(info[5]);
  options.version = static_cast<Version>(number(info[6]));
  options.windows.count = number(info[7]);
  uint32_t made = 0;
  check(info.Env(), poller_->attach(options, made), "ibv_post_recv");
  return Napi::Number::New(info.Env(), made);
}

void PollerObject::establish(const Napi::CallbackInfo& info) {
  auto staging = reference<MrRef>(info[1], HandleKind::memory_region, "memory region");
  PeerRing peer;
  bool lossless = false;
  peer.address = info[2].As<Napi::BigInt>().Uint64Value(&lossless);
  peer.key = number(info[3]);
  peer.windows.log2_capacity = number(info[4]);
  peer.receive_depth = number(info[5]);
  peer.write_with_immediate = info[6].As<Napi::Boolean>();
  peer.windows.count = number(info[7]);
  check(info.Env(), poller_->establish(number(info[0]), staging, peer), "establish");
}

Napi::Value PollerObject::ping(const Napi::CallbackInfo& info) {
  return result(info.Env(), poller_->ping(number(info[0])));
}

Napi::Value PollerObject::read(const Napi::CallbackInfo& info) {
  const auto region = reference<MrRef>(info[1], HandleKind::memory_region, "memory region");
  // An invalid offset is outside of any region.
  const auto offset = static_cast<uint64_t>(info[2].As<Napi::Number>().Int64Value());
  bool lossless = false;
  const uint64_t address = info[3].As<Napi::BigInt>().Uint64Value(&lossless);
  return result(info.Env(), poller_->read(number(info[0]), region, offset, address, number(info[4]),
                                          number(info[5]), number(info[6])));
}

Napi::Value PollerObject::counters(const Napi::CallbackInfo& info) {
  double* out = numbers(info[1], std::size(kConnectionCounters));
  return Napi::Boolean::New(info.Env(), poller_->counters(number(info[0]), out));
}

void PollerObject::poller_counters(const Napi::CallbackInfo& info) {
  poller_->counters(numbers(info[0], std::size(kPollerCounters)));
}

Napi::Value PollerObject::drained(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), poller_->drained(number(info[0])));
}

void PollerObject::detach(const Napi::CallbackInfo& info) { poller_->detach(number(info[0])); }

void PollerObject::release(const Napi::CallbackInfo& info) { poller_->release(number(info[0])); }

void PollerObject::set_ref(const Napi::CallbackInfo& info) {
  if (ended_) return;
  const bool on = info[0].As<Napi::Boolean>();
  watch_ != nullptr ? watch_->set_ref(on) : doorbell_.set_ref(info.Env(), on);
}

}  // namespace rdmakit::ring::binding
