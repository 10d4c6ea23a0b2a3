// JavaScript's calls about an engine's clients.
#include "base/clock.h"
#include "binding/convert.h"
#include "binding/functions.h"
#include "binding/volume_object.h"
#include "export/engine.h"
#include "export/whole_export.h"

namespace rdmakit::volume::binding {

void describe_front(Napi::Object& statistics, VolumeEngine& engine) {
  const nbd::Acceptor& acceptor = static_cast<nbd::Engine&>(engine).acceptor();
  statistics.Set("handshakes", static_cast<double>(acceptor.handshakes()));
  statistics.Set("handshakesRefused", static_cast<double>(acceptor.refused()));
}

}  // namespace rdmakit::volume::binding

namespace rdmakit::nbd::binding {

using namespace volume::binding;

namespace {

// Whatever has the tag of this addon is one of these.
Engine& to_nbd_engine(const Napi::Value& value) { return static_cast<Engine&>(to_engine(value)); }

ExportOptions to_export(const Napi::Value& value) {
  const auto from = value.As<Napi::Object>();
  return {to_string(from.Get("name"), "name"), to_string(from.Get("description"), "description"),
          to_uint64(from.Get("offset"), "offset"), to_uint64(from.Get("size"), "size"),
          from.Get("readOnly").ToBoolean()};
}

TlsOptions to_tls(const Napi::Object& from) {
  TlsOptions options;
  options.mode =
      to_choice<TlsMode>(from.Get("mode"), "tls.mode",
                         {{"off", TlsMode::off}, {"on", TlsMode::on}, {"required", TlsMode::required}});
  options.certificates = to_string(from.Get("certificates"), "tls.certificates");
  options.shared_keys = to_string(from.Get("sharedKeys"), "tls.sharedKeys");
  options.verify_peer = from.Get("verifyPeer").ToBoolean();
  return options;
}

EngineOptions to_options(const Napi::Object& from) {
  EngineOptions options;
  to_volume_options(from, options);
  options.exports = to_vector(from.Get("exports"), "exports", to_export);
  options.tls = to_tls(from.Get("tls").As<Napi::Object>());
  options.minimum_block = to_uint32(from.Get("minimumBlockSize"), "minimumBlockSize");
  options.acceptor.handshake_timeout_ns =
      to_uint32(from.Get("handshakeTimeout"), "handshakeTimeout") * kMillisecond;
  options.acceptor.stall_timeout_ns = to_uint32(from.Get("stallTimeout"), "stallTimeout") * kMillisecond;
  options.acceptor.max_handshakes = to_uint32(from.Get("maxHandshakes"), "maxHandshakes");
  options.acceptor.lane_wait_ns = to_uint32(from.Get("laneWait"), "laneWait") * kMillisecond;
  return options;
}

Napi::Value create_engine(const Napi::CallbackInfo& info) {
  if (!info[0].IsObject() || !info[1].IsFunction())
    throw Napi::TypeError::New(info.Env(), "expected options and a function");
  const EngineOptions options = to_options(info[0].As<Napi::Object>());
  return make_engine(info, info[1].As<Napi::Function>(),
                     [&options](VolumeEngine::Sink sink, int& error, std::string& why) {
                       return EngineOwner(Engine::open(options, std::move(sink), error, why));
                     });
}

Napi::Value export_flags(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), whole_export(to_nbd_engine(info[0]).volume()).flags);
}

void bind_unix(const Napi::CallbackInfo& info) {
  std::string why;
  const int error = to_nbd_engine(info[0]).bind_unix(to_string(info[1], "path"), why);
  check(info.Env(), error, "listen", why);
}

Napi::Value bind_tcp(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const uint32_t port = to_uint32(info[2], "port");
  if (port > UINT16_MAX) throw Napi::TypeError::New(env, "port must be an integer of 0 … 65535");
  std::string bound_host;
  uint16_t bound_port = 0;
  std::string why;
  const int error = to_nbd_engine(info[0]).bind_tcp(to_string(info[1], "host"), static_cast<uint16_t>(port),
                                                    bound_host, bound_port, why);
  check(env, error, "listen", why);
  return new_object(env, "host", bound_host, "port", bound_port);
}

void accept_clients(const Napi::CallbackInfo& info) { to_nbd_engine(info[0]).accept_clients(); }

void attach_socket(const Napi::CallbackInfo& info) {
  std::string why;
  const int error = to_nbd_engine(info[0]).attach_socket(
      to_uint32(info[1], "lane"), static_cast<int>(to_uint32(info[2], "descriptor")), why);
  check(info.Env(), error, "attachSocket", why);
}

void attach_device(const Napi::CallbackInfo& info) {
  const std::vector<uint32_t> lanes =
      to_vector(info[1], "lanes", [](const Napi::Value& each) { return to_uint32(each, "lane"); });
  std::string why;
  const int error =
      to_nbd_engine(info[0]).attach_device(lanes, static_cast<int>(to_uint32(info[2], "descriptor")), why);
  check(info.Env(), error, "attachDevice", why);
}

Napi::Value attach_socketpair(const Napi::CallbackInfo& info) {
  int descriptor = -1;
  const int error = to_nbd_engine(info[0]).attach_socketpair(to_uint32(info[1], "lane"), descriptor);
  check(info.Env(), error, "attachSocketpair", error == EBUSY ? "the lane serves another connection" : "");
  return Napi::Number::New(info.Env(), descriptor);
}

}  // namespace

void add_engine_functions(Napi::Object& exports) {
  define(exports, "createEngine", create_engine);
  define(exports, "exportFlags", export_flags);
  define(exports, "bindUnix", bind_unix);
  define(exports, "bindTcp", bind_tcp);
  define(exports, "acceptClients", accept_clients);
  define(exports, "attachSocketpair", attach_socketpair);
  define(exports, "attachSocket", attach_socket);
  define(exports, "attachDevice", attach_device);
}

}  // namespace rdmakit::nbd::binding
