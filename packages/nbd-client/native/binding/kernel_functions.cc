#include "binding/kernel_functions.h"

#include <unistd.h>

#include "binding/convert.h"
#include "kernel/descriptor_passing.h"
#include "kernel/lock_file.h"
#include "kernel/netlink.h"
#include "kernel/replace_process.h"
#include "system/swap_safety.h"

namespace rdmakit::nbd::binding {

using namespace volume;
using namespace volume::binding;

namespace {

std::vector<int> to_descriptors(const Napi::Value& value, const std::string& what) {
  if (!value.IsArray()) throw Napi::TypeError::New(value.Env(), what + " must be an array");
  const auto list = value.As<Napi::Array>();
  std::vector<int> descriptors;
  for (uint32_t i = 0; i < list.Length(); i++)
    descriptors.push_back(static_cast<int>(to_uint32(list.Get(i), "descriptor")));
  return descriptors;
}

Napi::Array to_array(Napi::Env env, const std::vector<int>& descriptors) {
  Napi::Array array = Napi::Array::New(env, descriptors.size());
  for (uint32_t i = 0; i < descriptors.size(); i++) array.Set(i, descriptors[i]);
  return array;
}

KernelDevice to_device(const Napi::Value& value) {
  if (!value.IsObject()) throw Napi::TypeError::New(value.Env(), "expected options");
  const auto from = value.As<Napi::Object>();
  KernelDevice device;
  const Napi::Value index = from.Get("index");
  const bool any = index.IsNumber() && index.As<Napi::Number>().Int32Value() == -1;
  device.index = any ? -1 : static_cast<int>(to_uint32(index, "index"));
  device.size = to_uint64(from.Get("size"), "size");
  device.block_size = to_uint32(from.Get("blockSize"), "blockSize");
  device.timeout = to_uint32(from.Get("timeout"), "timeout");
  device.dead_connection_timeout = to_uint32(from.Get("deadConnectionTimeout"), "deadConnectionTimeout");
  device.server_flags = to_uint32(from.Get("serverFlags"), "serverFlags");
  device.client_flags = to_uint32(from.Get("clientFlags"), "clientFlags");
  device.identifier = to_string(from.Get("identifier"), "identifier");
  device.sockets = to_descriptors(from.Get("sockets"), "sockets");
  return device;
}

}  // namespace

Napi::Value protect_process(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  Napi::Array result = Napi::Array::New(env);
  for (const Safety& safety : volume::protect_process()) {
    Napi::Object each = Napi::Object::New(env);
    each.Set("name", safety.name);
    each.Set("granted", safety.granted);
    each.Set("reason", safety.reason);
    result.Set(result.Length(), each);
  }
  return result;
}

Napi::Value become_io_flusher(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), volume::become_io_flusher());
}

Napi::Value lock_file(const Napi::CallbackInfo& info) {
  int descriptor = -1;
  check(info.Env(), nbd::lock_file(to_string(info[0], "path"), descriptor), "lockFile", "");
  return Napi::Number::New(info.Env(), descriptor);
}

Napi::Value descriptor_channel(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  int ends[2];
  check(env, nbd::descriptor_channel(ends), "socketpair", "");
  return to_array(env, {ends[0], ends[1]});
}

void send_descriptors(const Napi::CallbackInfo& info) {
  const int channel = static_cast<int>(to_uint32(info[0], "channel"));
  const std::vector<int> descriptors = to_descriptors(info[1], "descriptors");
  check(info.Env(), nbd::send_descriptors(channel, descriptors), "sendmsg", "");
}

Napi::Value receive_descriptors(const Napi::CallbackInfo& info) {
  std::vector<int> descriptors;
  const int channel = static_cast<int>(to_uint32(info[0], "channel"));
  check(info.Env(), nbd::receive_descriptors(channel, descriptors), "recvmsg", "");
  return to_array(info.Env(), descriptors);
}

void close_descriptor(const Napi::CallbackInfo& info) {
  close(static_cast<int>(to_uint32(info[0], "descriptor")));
}

void replace_process(const Napi::CallbackInfo& info) {
  if (!info[1].IsArray()) throw Napi::TypeError::New(info.Env(), "arguments must be an array");
  const auto list = info[1].As<Napi::Array>();
  std::vector<std::string> arguments;
  for (uint32_t i = 0; i < list.Length(); i++) arguments.push_back(to_string(list.Get(i), "argument"));
  check(info.Env(),
        nbd::replace_process(to_string(info[0], "program"), arguments, to_descriptors(info[2], "kept")),
        "execve", "");
}

Napi::Value kernel_connect(const Napi::CallbackInfo& info) {
  uint32_t index = 0;
  std::string why;
  check(info.Env(), nbd::kernel_connect(to_device(info[0]), index, why), "nbd connect", why);
  return Napi::Number::New(info.Env(), index);
}

void kernel_reconfigure(const Napi::CallbackInfo& info) {
  std::string why;
  check(info.Env(), nbd::kernel_reconfigure(to_device(info[0]), why), "nbd reconfigure", why);
}

void kernel_disconnect(const Napi::CallbackInfo& info) {
  std::string why;
  check(info.Env(), nbd::kernel_disconnect(to_uint32(info[0], "index"), why), "nbd disconnect", why);
}

Napi::Value kernel_status(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  std::vector<KernelDeviceStatus> devices;
  std::string why;
  check(env, nbd::kernel_status(devices, why), "nbd status", why);
  Napi::Array result = Napi::Array::New(env);
  for (const auto& [index, connected] : devices) {
    Napi::Object each = Napi::Object::New(env);
    each.Set("index", index);
    each.Set("connected", connected);
    result.Set(result.Length(), each);
  }
  return result;
}

}  // namespace rdmakit::nbd::binding
