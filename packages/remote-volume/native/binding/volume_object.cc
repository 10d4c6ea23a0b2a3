// Life of an engine: events, close.
#include "binding/volume_object.h"

#include "base/clock.h"
#include "binding/convert.h"

namespace rdmakit::volume::binding {

namespace {

EngineObject& to_object(const Napi::Value& value) {
  return to_external<EngineObject>(value, kEngineTag, "an engine");
}

// As NativeEvent in TypeScript, and NativeFrontEvent of @rdmakit/nbd-client.
Napi::Object describe(Napi::Env env, const Event& event) {
  using Fields = std::initializer_list<std::pair<const char*, Napi::Value>>;
  const auto object = [env](const char* type, const Fields& fields) {
    Napi::Object made = Napi::Object::New(env);
    made.Set("type", type);
    for (const auto& [name, value] : fields) made.Set(name, value);
    return made;
  };
  const auto number = [env](double value) { return Napi::Number::New(env, value); };
  const Napi::Value lane = number(event.lane);
  const Napi::Value slab = number(event.slab);
  const Napi::Value server = number(event.server);
  const Napi::Value reason = Napi::String::New(env, event.reason.data());
  const Napi::Value subject = Napi::String::New(env, event.subject.data());
  switch (event.type) {
    case Event::Type::server_failed:
      // The lane that noticed; -1 when JavaScript itself said so.
      return object(
          "serverFailed",
          {{"server", server}, {"lane", event.lane == kMaxLanes ? number(-1) : lane}, {"reason", reason}});
    case Event::Type::connection_opened:
      return object("connectionOpened", {{"lane", lane}});
    case Event::Type::connection_closed:
      return object("connectionClosed", {{"lane", lane}, {"reason", reason}});
    case Event::Type::lane_idle:
      return object("laneIdle", {{"lane", lane}});
    case Event::Type::handshake_refused:
      return object("handshakeRefused", {{"peer", subject}, {"reason", reason}});
    case Event::Type::listener_failed:
      return object("listenerFailed", {{"address", subject}, {"reason", reason}});
    case Event::Type::slab_refilled:
      return object("slabRefilled", {{"slab", slab}, {"server", server}});
    case Event::Type::refill_failed:
      return object("refillFailed", {{"slab", slab}, {"server", server}, {"reason", reason}});
    case Event::Type::slabs_changed:
      return object("slabsChanged", {});
    case Event::Type::synchronized:
      return object("synchronized", {{"epoch", number(static_cast<double>(event.epoch))}});
    case Event::Type::page_repaired:
    case Event::Type::page_lost:
      return object(event.type == Event::Type::page_repaired ? "pageRepaired" : "pageLost",
                    {{"slab", slab},
                     {"server", event.server == kBackupServer ? env.Null() : server},
                     {"page", number(static_cast<double>(event.page))}});
    case Event::Type::lane_yielded:
      return object("laneYielded", {{"lane", lane}, {"descriptor", number(event.descriptor)}});
    case Event::Type::backup_failed:
      return object("backupFailed", {{"reason", reason}});
  }
  return Napi::Object::New(env);
}

// Joins the lanes off the JavaScript thread. The reference keeps the engine from the collector.
class CloseWorker final : public ErrnoWorker {
 public:
  CloseWorker(const Napi::Value& external, EngineObject& object, uint64_t timeout_ns)
      : ErrnoWorker(external.Env(), "close"),
        external_(Napi::Reference<Napi::Value>::New(external, 1)),
        object_(object),
        timeout_ns_(timeout_ns) {
    why_ = "a lane's device gave its work requests back neither done nor flushed";
  }

  void Execute() override { error_ = object_.engine->close(timeout_ns_); }
  void OnOK() override {
    object_.release_events();
    ErrnoWorker::OnOK();
  }

 private:
  Napi::Reference<Napi::Value> external_;
  EngineObject& object_;
  const uint64_t timeout_ns_;
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

static Napi::Value close_engine(const Napi::CallbackInfo& info) {
  const uint64_t timeout = to_uint32(info[1], "timeout") * kMillisecond;
  return start<CloseWorker>(info[0], to_object(info[0]), timeout);
}

void add_volume_functions(Napi::Object& exports) {
  add_slab_functions(exports);
  add_lane_functions(exports);
  add_use_functions(exports);
  add_statistics_functions(exports);
  define(exports, "close", close_engine);
}

}  // namespace rdmakit::volume::binding
