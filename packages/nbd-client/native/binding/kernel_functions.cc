// The kernel's device and the protections of a process that serves swap.
#include <unistd.h>

#include "binding/convert.h"
#include "binding/functions.h"
#include "kernel/descriptor_passing.h"
#include "kernel/lock_file.h"
#include "kernel/netlink.h"
#include "kernel/replace_process.h"
#include "system/swap_safety.h"

namespace rdmakit::nbd::binding {

using namespace volume;
using namespace volume::binding;

int to_device_index(const Napi::Value& value) {
  const bool any = value.IsNumber() && value.As<Napi::Number>().Int32Value() == -1;
  return any ? -1 : static_cast<int>(to_uint32(value, "index"));
}

namespace {

int to_descriptor(const Napi::Value& value) { return static_cast<int>(to_uint32(value, "descriptor")); }

KernelDevice to_device(const Napi::Value& value) {
  if (!value.IsObject()) throw Napi::TypeError::New(value.Env(), "expected options");
  const auto from = value.As<Napi::Object>();
  KernelDevice device;
  device.index = to_device_index(from.Get("index"));
  device.size = to_uint64(from.Get("size"), "size");
  device.block_size = to_uint32(from.Get("blockSize"), "blockSize");
  device.timeout = to_uint32(from.Get("timeout"), "timeout");
  device.dead_connection_timeout = to_uint32(from.Get("deadConnectionTimeout"), "deadConnectionTimeout");
  device.server_flags = to_uint32(from.Get("serverFlags"), "serverFlags");
  device.client_flags = to_uint32(from.Get("clientFlags"), "clientFlags");
  device.identifier = to_string(from.Get("identifier"), "identifier");
  device.sockets = to_vector(from.Get("sockets"), "sockets", to_descriptor);
  return device;
}

Napi::Value protect_process(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return to_array(env, volume::protect_process(), [env](const Safety& safety) {
    return new_object(env, "name", safety.name, "granted", safety.granted, "reason", safety.reason);
  });
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
  return to_array(env, std::vector{ends[0], ends[1]});
}

void send_descriptors(const Napi::CallbackInfo& info) {
  const int channel = static_cast<int>(to_uint32(info[0], "channel"));
  const std::vector<int> descriptors = to_vector(info[1], "descriptors", to_descriptor);
  check(info.Env(), nbd::send_descriptors(channel, descriptors), "sendmsg", "");
}

Napi::Value receive_descriptors(const Napi::CallbackInfo& info) {
  std::vector<int> descriptors;
  const int channel = static_cast<int>(to_uint32(info[0], "channel"));
  check(info.Env(), nbd::receive_descriptors(channel, descriptors), "recvmsg", "");
  return to_array(info.Env(), descriptors);
}

void close_descriptor(const Napi::CallbackInfo& info) { close(to_descriptor(info[0])); }

void replace_process(const Napi::CallbackInfo& info) {
  const std::vector<std::string> arguments =
      to_vector(info[1], "arguments", [](const Napi::Value& each) { return to_string(each, "argument"); });
  check(info.Env(),
        nbd::replace_process(to_string(info[0], "program"), arguments,
                             to_vector(info[2], "kept", to_descriptor)),
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
  return to_array(env, devices, [env](const KernelDeviceStatus& device) {
    return new_object(env, "index", device.index, "connected", device.connected);
  });
}

}  // namespace

void add_kernel_functions(Napi::Object& exports) {
  define(exports, "lockFile", lock_file);
  define(exports, "protectProcess", protect_process);
  define(exports, "becomeIoFlusher", become_io_flusher);
  define(exports, "descriptorChannel", descriptor_channel);
  define(exports, "sendDescriptors", send_descriptors);
  define(exports, "receiveDescriptors", receive_descriptors);
  define(exports, "closeDescriptor", close_descriptor);
  define(exports, "replaceProcess", replace_process);
  define(exports, "kernelConnect", kernel_connect);
  define(exports, "kernelReconfigure", kernel_reconfigure);
  define(exports, "kernelDisconnect", kernel_disconnect);
  define(exports, "kernelStatus", kernel_status);
}

}  // namespace rdmakit::nbd::binding
