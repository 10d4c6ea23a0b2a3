// Life of an engine: create, events, close.
#include "binding/engine_object.h"

#include "base/clock.h"
#include "binding/convert.h"

namespace rdmakit::nbd::binding {

namespace {

constexpr napi_type_tag kEngineTag{0x6b1c0f7ad5e94213, 0x7264'6d61'6e62'6401};

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

std::vector<ExportOptions> to_exports(const Napi::Value& value) {
  if (!value.IsArray()) throw Napi::TypeError::New(value.Env(), "exports must be an array");
  const auto list = value.As<Napi::Array>();
  std::vector<ExportOptions> exports;
  for (uint32_t i = 0; i < list.Length(); i++) {
    const auto from = list.Get(i).As<Napi::Object>();
    exports.push_back({to_string(from.Get("name"), "name"), to_string(from.Get("description"), "description"),
                       to_uint64(from.Get("offset"), "offset"), to_uint64(from.Get("size"), "size"),
                       from.Get("readOnly").ToBoolean()});
  }
  return exports;
}

TlsOptions to_tls(const Napi::Object& from) {
  TlsOptions options;
  const std::string mode = to_string(from.Get("mode"), "tls.mode");
  if (mode == "on") {
    options.mode = TlsMode::on;
  } else if (mode == "required") {
    options.mode = TlsMode::required;
  } else if (mode != "off") {
    throw Napi::TypeError::New(from.Env(), "tls.mode must be off, on or required");
  }
  options.certificates = to_string(from.Get("certificates"), "tls.certificates");
  options.shared_keys = to_string(from.Get("sharedKeys"), "tls.sharedKeys");
  options.verify_peer = from.Get("verifyPeer").ToBoolean();
  return options;
}

Acknowledge to_acknowledge(const Napi::Value& value) {
  const std::string when = to_string(value, "acknowledge");
  if (when == "one") return Acknowledge::one;
  if (when == "backup") return Acknowledge::backup;
  if (when != "all") throw Napi::TypeError::New(value.Env(), "acknowledge must be all, one or backup");
  return Acknowledge::all;
}

Compression to_compression(const Napi::Value& value) {
  const std::string how = to_string(value, "compress");
  if (how == "lz4") return Compression::measured;
  if (how == "lz4-always") return Compression::always;
  if (how != "none") throw Napi::TypeError::New(value.Env(), "compress must be none, lz4 or lz4-always");
  return Compression::off;
}

BackupOptions to_backup(const Napi::Object& from) {
  BackupOptions options;
  options.path = to_string(from.Get("file"), "backup.file");
  options.map_file = to_string(from.Get("map"), "backup.map");
  options.buffers = to_uint32(from.Get("pages"), "backup.pages");
  options.sparse = from.Get("sparse").ToBoolean();
  return options;
}

EngineOptions to_options(const Napi::Object& from) {
  EngineOptions options;
  options.volume.size = to_uint64(from.Get("size"), "size");
  options.volume.slab_size = to_uint64(from.Get("slabSize"), "slabSize");
  options.volume.read_only = from.Get("readOnly").ToBoolean();
  options.acknowledge = to_acknowledge(from.Get("acknowledge"));
  options.refill_rate = to_uint64(from.Get("refillRate"), "refillRate");
  options.read_ahead = to_uint32(from.Get("readAhead"), "readAhead");
  options.volume.thin = from.Get("thin").ToBoolean();
  options.volume.checksums = from.Get("checksums").ToBoolean();
  options.volume.checksum_file = to_string(from.Get("pageChecksums"), "pageChecksums");
  options.volume.compression = to_compression(from.Get("compress"));
  options.volume.length_file = to_string(from.Get("pageLengths"), "pageLengths");
  options.volume.page_map_file = to_string(from.Get("pageMap"), "pageMap");
  options.volume.slab_map_file = to_string(from.Get("slabMap"), "slabMap");
  options.volume.prefault = from.Get("prefault").ToBoolean();
  options.exports = to_exports(from.Get("exports"));
  options.tls = to_tls(from.Get("tls").As<Napi::Object>());
  options.minimum_block = to_uint32(from.Get("minimumBlockSize"), "minimumBlockSize");
  options.operation_timeout_ns =
      std::max(to_uint32(from.Get("operationTimeout"), "operationTimeout"), 1u) * kMillisecond;
  options.max_spin_ns = to_uint32(from.Get("maxSpin"), "maxSpin") * uint64_t{1000};
  options.swap_safe = from.Get("ioFlusher").ToBoolean();
  options.backup = to_backup(from.Get("backup").As<Napi::Object>());
  options.backup.swap_safe = options.swap_safe;
  options.backup.prefault = options.volume.prefault;
  options.acceptor.handshake_timeout_ns =
      to_uint32(from.Get("handshakeTimeout"), "handshakeTimeout") * kMillisecond;
  options.acceptor.stall_timeout_ns = to_uint32(from.Get("stallTimeout"), "stallTimeout") * kMillisecond;
  options.acceptor.max_handshakes = to_uint32(from.Get("maxHandshakes"), "maxHandshakes");
  options.acceptor.lane_wait_ns = to_uint32(from.Get("laneWait"), "laneWait") * kMillisecond;
  const std::string mode = to_string(from.Get("waitMode"), "waitMode");
  if (mode == "poll") {
    options.wait_mode = WaitMode::poll;
  } else if (mode == "event") {
    options.wait_mode = WaitMode::event;
  } else if (mode == "adaptive") {
    options.wait_mode = WaitMode::adaptive;
  } else {
    throw Napi::TypeError::New(from.Env(), "waitMode must be poll, event or adaptive");
  }
  return options;
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

Engine& to_engine(const Napi::Value& value) { return *to_object(value).engine; }

Napi::Value create_engine(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!info[0].IsObject() || !info[1].IsFunction())
    throw Napi::TypeError::New(env, "expected options and a function");
  const EngineOptions options = to_options(info[0].As<Napi::Object>());
  auto object = std::make_unique<EngineObject>();
  object->events = Napi::ThreadSafeFunction::New(env, info[1].As<Napi::Function>(), "nbd engine", 0, 1);
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
  object->engine = Engine::open(options, sink, error, why);
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

}  // namespace rdmakit::nbd::binding
