// The addon's face: the functions of a volume, and those of this package.
#include <napi.h>

#include "binding/convert.h"
#include "binding/engine_functions.h"
#include "binding/kernel_functions.h"
#include "binding/ublk_functions.h"
#include "binding/volume_object.h"

namespace rdmakit::volume::binding {

const char* const kPackage = "@rdmakit/nbd-client";
const napi_type_tag kEngineTag{0x6b1c0f7ad5e94213, 0x7264'6d61'6e62'6401};

}  // namespace rdmakit::volume::binding

namespace rdmakit::nbd::binding {

namespace {

Napi::Object initialize(Napi::Object exports) {
  volume::binding::add_volume_functions(exports);
  const auto add = [&](const char* name, auto function) { define(exports, name, function); };
  add("createEngine", create_engine);
  add("exportFlags", export_flags);
  add("bindUnix", bind_unix);
  add("bindTcp", bind_tcp);
  add("acceptClients", accept_clients);
  add("attachSocketpair", attach_socketpair);
  add("attachSocket", attach_socket);
  add("attachDevice", attach_device);
  add("lockFile", lock_file);
  add("protectProcess", protect_process);
  add("becomeIoFlusher", become_io_flusher);
  add("descriptorChannel", descriptor_channel);
  add("sendDescriptors", send_descriptors);
  add("receiveDescriptors", receive_descriptors);
  add("closeDescriptor", close_descriptor);
  add("replaceProcess", replace_process);
  add("kernelConnect", kernel_connect);
  add("kernelReconfigure", kernel_reconfigure);
  add("kernelDisconnect", kernel_disconnect);
  add("kernelStatus", kernel_status);
  add("ublkAdd", ublk_add);
  add("ublkOpen", ublk_open);
  add("ublkRecover", ublk_recover);
  add("ublkNudge", ublk_nudge);
  add("ublkUse", ublk_use);
  add("ublkStatus", ublk_status);
  add("ublkStart", ublk_start);
  add("ublkResume", ublk_resume);
  add("ublkStop", ublk_stop);
  add("ublkDelete", ublk_delete);
  return exports;
}

}  // namespace

}  // namespace rdmakit::nbd::binding

static Napi::Object initialize(Napi::Env, Napi::Object exports) {
  return rdmakit::nbd::binding::initialize(exports);
}

NODE_API_MODULE(nbd_client, initialize)
