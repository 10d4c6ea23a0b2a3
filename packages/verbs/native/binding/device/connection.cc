// Connection ids and listeners. A host that starts with "/" is the path of a Unix socket.
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cerrno>
#include <cmath>
#include <cstddef>

#include "binding/failure.h"
#include "binding/objects.h"

namespace rdmakit::binding {

namespace {

const char* type_name(CmEvent::Type type) {
  switch (type) {
    case CmEvent::Type::route_resolved:
      return "route_resolved";
    case CmEvent::Type::resolve_failed:
      return "resolve_failed";
    case CmEvent::Type::connect_request:
      return "connect_request";
    case CmEvent::Type::accept_stalled:
      return "accept_stalled";
    case CmEvent::Type::established:
      return "established";
    case CmEvent::Type::rejected:
      return "rejected";
    case CmEvent::Type::connect_failed:
      return "connect_failed";
    case CmEvent::Type::disconnected:
      return "disconnected";
  }
  return "unknown";
}

void call_sink(Napi::Env env, Napi::Function sink, Provider& provider, std::unique_ptr<CmEvent> event) {
  // The environment is going away: the event goes with it.
  if (env == nullptr || sink.IsEmpty()) return;
  Napi::Object out = Napi::Object::New(env);
  out.Set("type", type_name(event->type));
  out.Set("status", event->status);
  Napi::Uint8Array bytes = Napi::Uint8Array::New(env, event->private_data.size());
  if (!event->private_data.empty()) {
    memcpy(bytes.Data(), event->private_data.data(), event->private_data.size());
  }
  out.Set("privateData", bytes);
  out.Set("request", event->request == nullptr
                         ? env.Undefined()
                         : Object::wrap(env, new IdObject(provider, std::move(event->request))));
  sink.Call({out});
}

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

// The interface that a scoped address names behind a %, by its name or index (RFC 4007, section 11); 0 for
// none.
uint32_t zone_of(Napi::Env env, const std::string& address) {
  const size_t at = address.find('%');
  if (at == std::string::npos) return 0;
  const std::string zone = address.substr(at + 1);
  uint32_t index = if_nametoindex(zone.c_str());
  char* end = nullptr;
  if (index == 0 && !zone.empty()) {
    const unsigned long number = strtoul(zone.c_str(), &end, 10);
    if (*end == '\0' && number <= UINT32_MAX) index = static_cast<uint32_t>(number);
  }
  if (index == 0)
    throw failure(env, ENODEV, "if_nametoindex", "there is no network interface \"" + zone + "\"");
  return index;
}

Address address_of(const Napi::Value& host, const Napi::Value& port) {
  Address out;
  const std::string text = host.As<Napi::String>();
  if (text.starts_with('/')) {
    auto* local = reinterpret_cast<sockaddr_un*>(&out.storage);
    if (text.size() >= sizeof local->sun_path)
      throw failure(host.Env(), ENAMETOOLONG, "bind", "the path is longer than 107 bytes");
    local->sun_family = AF_UNIX;
    memcpy(local->sun_path, text.c_str(), text.size() + 1);
    out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size() + 1);
    return out;
  }
  const auto number = htons(static_cast<uint16_t>(port.As<Napi::Number>().Uint32Value()));
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = number;
    out.length = sizeof *v4;
  } else if (inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = number;
    v6->sin6_scope_id = zone_of(host.Env(), text);
    out.length = sizeof *v6;
  } else {
    throw failure(host.Env(), EINVAL, "inet_pton", "\"" + text + "\" is not an IP address");
  }
  return out;
}

Napi::Value address_object(Napi::Env env, const sockaddr_storage& address) {
  char text[sizeof(sockaddr_un::sun_path) + 1] = "";
  char zone[IF_NAMESIZE] = "";
  uint16_t port = 0;
  if (address.ss_family == AF_UNIX) {
    memcpy(text, reinterpret_cast<const sockaddr_un&>(address).sun_path, sizeof(sockaddr_un::sun_path));
  } else if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    port = ntohs(v4.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    port = ntohs(v6.sin6_port);
    // Without its interface the address leads nowhere.
    if (IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr) && v6.sin6_scope_id != 0) if_indextoname(v6.sin6_scope_id, zone);
  }
  const std::string host = zone[0] == '\0' ? text : std::string(text) + '%' + zone;
  return new_object(env, "host", host, "port", port);
}

// READs at a time, 0 for the device's limit.
uint8_t depth_of(const Napi::Value& value, const char* verb, const char* name) {
  const double given = value.As<Napi::Number>().DoubleValue();
  if (given >= 0 && given <= UINT8_MAX && std::floor(given) == given) return static_cast<uint8_t>(given);
  throw failure(value.Env(), EINVAL, verb, std::string(name) + " is a whole number from 0 to 255");
}

ConnectParameters parameters_of(const Napi::CallbackInfo& info, const Object& id, const char* verb) {
  ConnectParameters out;
  out.qp = object_of<QpObject>(info[1], id).qp();
  auto bytes = info[2].As<Napi::Uint8Array>();
  out.private_data.assign(bytes.Data(), bytes.Data() + bytes.ByteLength());
  out.responder_resources = depth_of(info[3], verb, "responderResources");
  out.initiator_depth = depth_of(info[4], verb, "initiatorDepth");
  return out;
}

const char* explain_connect(int error) {
  return error == EINVAL ? "the private data is too long, or the connection is in another state"
                         : strerror(error);
}

}  // namespace

void IdObject::set_sink(const Napi::CallbackInfo& info) {
  if (has_sink_) return;
  const Napi::Env env = info.Env();
  sink_ = Napi::ThreadSafeFunction::New(env, info[1].As<Napi::Function>(), "connection events", 0, 1);
  sink_.Unref(env);
  has_sink_ = true;
  id_->set_sink([doorbell = sink_, &owner = provider](CmEvent&& event) {
    auto* carried = new CmEvent(std::move(event));
    const napi_status status =
        doorbell.NonBlockingCall(carried, [&owner](Napi::Env to, Napi::Function call, CmEvent* taken) {
          call_sink(to, call, owner, std::unique_ptr<CmEvent>(taken));
        });
    if (status != napi_ok) delete carried;
  });
  hook_.set(
      env, [](void* id) { static_cast<IdObject*>(id)->end_in_javascript(); }, this);
}

void IdObject::set_ref(const Napi::CallbackInfo& info) {
  if (!has_sink_) return;
  info[1].As<Napi::Boolean>() ? sink_.Ref(info.Env()) : sink_.Unref(info.Env());
}

void IdObject::end_in_javascript() {
  if (!has_sink_) return;
  has_sink_ = false;
  hook_.clear();
  id_->set_sink([](CmEvent&&) {});
  sink_.Release();
}

void IdObject::destroy(void*) {
  id_->close();
  if (id_->settled()) id_.reset();
}

Napi::Value create_id(const Napi::CallbackInfo& info) {
  Provider& provider = provider_named(info[0]);
  std::string why;
  if (int error = provider.available(why); error != 0)
    throw failure(info.Env(), error, error == EOPNOTSUPP ? "rdma_create_id" : "dlopen", why);
  std::shared_ptr<ConnectionId> id = provider.create_id();
  if (id == nullptr) {
    const int error = errno;
    throw failure(info.Env(), error, "rdma_create_id",
                  error == ENODEV || error == ENOENT
                      ? "this machine has no RDMA device; list devices with \"rdma link\", or use iwarp://"
                      : reason_of_start(error));
  }
  return Object::wrap(info.Env(), new IdObject(provider, std::move(id)));
}

void IdObject::listen(const Napi::CallbackInfo& info) {
  const Address address = address_of(info[1], info[2]);
  check(info.Env(),
        id_->listen(reinterpret_cast<const sockaddr*>(&address.storage), address.length,
                    info[3].As<Napi::Number>().Int32Value()),
        "rdma_listen");
}

void IdObject::add_alternative(const Napi::CallbackInfo& info) {
  const Address address = address_of(info[1], info[2]);
  id_->add_alternative(reinterpret_cast<const sockaddr*>(&address.storage), address.length);
}

void IdObject::resolve(const Napi::CallbackInfo& info) {
  const Address address = address_of(info[1], info[2]);
  check(info.Env(),
        id_->resolve(reinterpret_cast<const sockaddr*>(&address.storage), address.length,
                     info[3].As<Napi::Number>().Int32Value()),
        "rdma_resolve_addr");
}

Napi::Value IdObject::device(const Napi::CallbackInfo& info) {
  ibv_context* context = id_->context();
  if (context == nullptr) throw failure(info.Env(), ENODEV, "rdma_resolve_addr");
  return wrap_context(info.Env(), provider, context, false);
}

void IdObject::connect(const Napi::CallbackInfo& info) {
  const int error = id_->connect(parameters_of(info, *this, "rdma_connect"));
  if (error != 0) throw failure(info.Env(), error, "rdma_connect", explain_connect(error));
}

void IdObject::accept(const Napi::CallbackInfo& info) {
  const int error = id_->accept(parameters_of(info, *this, "rdma_accept"));
  if (error != 0) throw failure(info.Env(), error, "rdma_accept", explain_connect(error));
}

void IdObject::reject(const Napi::CallbackInfo& info) {
  auto bytes = info[1].As<Napi::Uint8Array>();
  check(info.Env(), id_->reject({bytes.Data(), bytes.Data() + bytes.ByteLength()}), "rdma_reject");
}

void IdObject::disconnect(const Napi::CallbackInfo& info) {
  check(info.Env(), id_->disconnect(), "rdma_disconnect");
}

Napi::Value IdObject::local_address(const Napi::CallbackInfo& info) {
  return address_object(info.Env(), id_->local_address());
}

Napi::Value IdObject::peer_address(const Napi::CallbackInfo& info) {
  return address_object(info.Env(), id_->peer_address());
}

}  // namespace rdmakit::binding
