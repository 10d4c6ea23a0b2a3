// Devices of the ublk driver.
#include <string>

#include "binding/convert.h"
#include "binding/functions.h"
#include "kernel/ublk.h"
#include "volume/limits.h"

namespace rdmakit::nbd::binding {

using namespace volume;
using namespace volume::binding;

namespace {

// One command of the driver, off the JavaScript thread: it waits for lanes, which do not need JavaScript.
class CommandWorker final : public ErrnoWorker {
 public:
  using Command = int (*)(uint32_t index, std::string& why);

  CommandWorker(Napi::Env env, Command command, const char* name, uint32_t index)
      : ErrnoWorker(env, name), command_(command), index_(index) {}

  void Execute() override { error_ = command_(index_, why_); }

 private:
  const Command command_;
  const uint32_t index_;
};

Napi::Value ublk_add(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!info[0].IsObject()) throw Napi::TypeError::New(env, "expected options");
  const auto from = info[0].As<Napi::Object>();
  UblkDevice device;
  device.index = to_device_index(from.Get("index"));
  device.size = to_uint64(from.Get("size"), "size");
  const uint32_t queues = to_uint32(from.Get("queues"), "queues");
  if (queues == 0 || queues > kMaxLanes)
    throw Napi::TypeError::New(env, "queues must be an integer of 1 … 64");
  device.queues = static_cast<uint16_t>(queues);
  device.identifier = to_uint64(from.Get("identifier"), "identifier");
  device.kept = from.Get("kept").ToBoolean();
  uint32_t made = 0;
  uint16_t granted = 0;
  std::string why;
  check(env, nbd::ublk_add(device, made, granted, why), "ublk add", why);
  return new_object(env, "index", made, "queues", granted);
}

Napi::Value ublk_open(const Napi::CallbackInfo& info) {
  int descriptor = -1;
  std::string why;
  check(info.Env(), nbd::ublk_open(to_uint32(info[0], "index"), descriptor, why), "ublk open", why);
  return Napi::Number::New(info.Env(), descriptor);
}

void ublk_nudge(const Napi::CallbackInfo& info) {
  std::string why;
  const int error =
      nbd::ublk_nudge(static_cast<int>(to_uint32(info[0], "disk")), to_uint64(info[1], "offset"), why);
  check(info.Env(), error, "ublk nudge", why);
}

Napi::Value ublk_use(const Napi::CallbackInfo& info) {
  bool used = false;
  std::string why;
  check(info.Env(), nbd::ublk_use(to_uint32(info[0], "index"), used, why), "ublk use", why);
  return Napi::Boolean::New(info.Env(), used);
}

Napi::Value ublk_status(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  UblkStatus status{};
  std::string why;
  check(env, nbd::ublk_status(to_uint32(info[0], "index"), status, why), "ublk status", why);
  Napi::Object object = Napi::Object::New(env);
  object.Set("index", status.index);
  object.Set("identifier", Napi::BigInt::New(env, status.identifier));
  object.Set("queues", static_cast<uint32_t>(status.queues));
  object.Set("server", status.server);
  object.Set("kept", status.kept);
  static constexpr const char* kStates[] = {"dead", "live", "quiesced", "other"};
  object.Set("state", kStates[static_cast<size_t>(status.state)]);
  return object;
}

}  // namespace

void add_ublk_functions(Napi::Object& exports) {
  define(exports, "ublkAdd", ublk_add);
  define(exports, "ublkOpen", ublk_open);
  define(exports, "ublkNudge", ublk_nudge);
  define(exports, "ublkUse", ublk_use);
  define(exports, "ublkStatus", ublk_status);
  const auto command = [&exports](const char* property, CommandWorker::Command run, const char* name) {
    define(exports, property, [run, name](const Napi::CallbackInfo& info) {
      return start<CommandWorker>(info.Env(), run, name, to_uint32(info[0], "index"));
    });
  };
  command("ublkRecover", nbd::ublk_recover, "ublk recover");
  command("ublkStart", nbd::ublk_start, "ublk start");
  command("ublkResume", nbd::ublk_resume, "ublk resume");
  command("ublkStop", nbd::ublk_stop, "ublk stop");
  command("ublkDelete", nbd::ublk_delete, "ublk delete");
}

}  // namespace rdmakit::nbd::binding
