// Life of an engine: events, close.
#include "binding/volume_object.h"

#include "base/clock.h"
#include "binding/convert.h"

namespace rdmakit::volume::binding {

namespace {

EngineObject& to_object(const Napi::Value& value) {
  bool tagged = false;
  if (value.IsExternal()) napi_check_object_type_tag(value.Env(), value, &kEngineTag, &tagged);
  if (!tagged) throw Napi::TypeError::New(value.Env(), "expected an engine");
  return *value.As<Napi::External<EngineObject>>().Data();
}

Napi::Object describe(Napi::Env env, const Event& event) {
  Napi::Object object = Napi::Object::New(env);
  switch (event.type) {
    case Event::Type::server_failed:
      object.Set("type", "serverFailed");
      object.Set("server", event.server);
      // The lane that noticed; -1 when JavaScript itself said so.
      object.Set("lane", event.lane == kMaxLanes ? -1 : static_cast<int>(event.lane));
      object.Set("reason", event.reason.data());
      break;
    case Event::Type::connection_opened:
      object.Set("type", "connectionOpened");
      object.Set("lane", event.lane);
      break;
    case Event::Type::connection_closed:
      object.Set("type", "connectionClosed");
      object.Set("lane", event.lane);
      object.Set("reason", event.reason.data());
      break;
    case Event::Type::lane_idle:
      object.Set("type", "laneIdle");
      object.Set("lane", event.lane);
      break;
    case Event::Type::handshake_refused:
      object.Set("type", "handshakeRefused");
      object.Set("peer", event.subject.data());
      object.Set("reason", event.reason.data());
      break;
    case Event::Type::listener_failed:
      object.Set("type", "listenerFailed");
      object.Set("address", event.subject.data());
      object.Set("reason", event.reason.data());
      break;
    case Event::Type::slab_refilled:
      object.Set("type", "slabRefilled");
      object.Set("slab", event.slab);
      object.Set("server", event.server);
      break;
    case Event::Type::refill_failed:
      object.Set("type", "refillFailed");
      object.Set("slab", event.slab);
      object.Set("server", event.server);
      object.Set("reason", event.reason.data());
      break;
    case Event::Type::slabs_changed:
      object.Set("type", "slabsChanged");
      break;
    case Event::Type::synchronized:
      object.Set("type", "synchronized");
      object.Set("epoch", static_cast<double>(event.epoch));
      break;
    case Event::Type::page_repaired:
    case Event::Type::page_lost:
      object.Set("type", event.type == Event::Type::page_repaired ? "pageRepaired" : "pageLost");
      object.Set("slab", event.slab);
      object.Set("server", event.server == kBackupServer ? env.Null() : Napi::Number::New(env, event.server));
      object.Set("page", static_cast<double>(event.page));
      break;
    case Event::Type::lane_yielded:
      object.Set("type", "laneYielded");
      object.Set("lane", event.lane);
      object.Set("descriptor", event.descriptor);
      break;
    case Event::Type::backup_failed:
      object.Set("type", "backupFailed");
      object.Set("reason", event.reason.data());
      break;
  }
  return object;
}

// Joins the lanes off the JavaScript thread. The reference keeps the engine from the collector.
class CloseWorker final : public PromiseWorker {
 public:
  CloseWorker(const Napi::Value& external, EngineObject& object, uint64_t timeout_ns)
      : PromiseWorker(external.Env(), "close"),
        external_(Napi::Reference<Napi::Value>::New(external, 1)),
        object_(object),
        timeout_ns_(timeout_ns) {}

  void Execute() override { error_ = object_.engine->close(timeout_ns_); }
  void OnOK() override {
    object_.release_events();
    try {
      check(Env(), error_, "close", "a lane's device gave its work requests back neither done nor flushed");
      deferred_.Resolve(Env().Undefined());
    } catch (const Napi::Error& failure) {
      deferred_.Reject(failure.Value());
    }
  }

 private:
  Napi::Reference<Napi::Value> external_;
  EngineObject& object_;
  const uint64_t timeout_ns_;
  int error_ = 0;
};

}  // namespace

EngineObject::~EngineObject() {
  if (env != nullptr) napi_remove_env_cleanup_hook(env, end, this);
  engine.reset();
  release_events();
}

void EngineObject::end(void* object) {
  auto* self = static_cast<EngineObject*>(object);
  self->env = nullptr;
  self->engine->close(0);
  self->release_events();
}

void EngineObject::release_events() {
  if (!events_released) events.Release();
  events_released = true;
}

VolumeEngine& to_engine(const Napi::Value& value) { return *to_object(value).engine; }

Napi::Value make_engine(const Napi::CallbackInfo& info, const Napi::Function& listener, const Open& open) {
  const Napi::Env env = info.Env();
  auto object = std::make_unique<EngineObject>();
  object->events = Napi::ThreadSafeFunction::New(env, listener, "volume engine", 0, 1);
  object->events.Unref(env);
  const auto sink = [events = object->events](const Event& event) {
    auto copy = std::make_unique<Event>(event);
    const napi_status status =
        events.BlockingCall(copy.get(), [](Napi::Env env, Napi::Function listener, Event* given) {
          const std::unique_ptr<Event> owned(given);
          listener.Call({describe(env, *owned)});
        });
    if (status == napi_ok) static_cast<void>(copy.release());
  };
  int error = 0;
  std::string why;
  object->engine = open(sink, error, why);
  if (object->engine == nullptr) check(env, error, "open", why);
  if (napi_add_env_cleanup_hook(env, EngineObject::end, object.get()) == napi_ok) object->env = env;
  auto external = Napi::External<EngineObject>::New(env, object.get(), [](Napi::Env, EngineObject* data) {
    const std::unique_ptr<EngineObject> owned(data);
  });
  static_cast<void>(object.release());
  napi_type_tag_object(env, external, &kEngineTag);
  return external;
}

Napi::Value close_engine(const Napi::CallbackInfo& info) {
  EngineObject& object = to_object(info[0]);
  const uint64_t timeout = to_uint32(info[1], "timeout") * kMillisecond;
  // Deletes itself when it is done, as every Napi::AsyncWorker.
  auto worker = std::make_unique<CloseWorker>(info[0], object, timeout);
  const Napi::Promise promise = worker->promise();
  worker.release()->Queue();
  return promise;
}

}  // namespace rdmakit::volume::binding
