// The addon's face: the functions of a volume, and those of this package.
#include <napi.h>

#include "binding/convert.h"
#include "binding/functions.h"
#include "binding/volume_object.h"

namespace rdmakit::volume::binding {

const char* const kPackage = "@rdmakit/nbd-client";
const napi_type_tag kEngineTag{0x6b1c0f7ad5e94213, 0x7264'6d61'6e62'6401};

}  // namespace rdmakit::volume::binding

static Napi::Object initialize(Napi::Env, Napi::Object exports) {
  rdmakit::volume::binding::add_volume_functions(exports);
  rdmakit::nbd::binding::add_engine_functions(exports);
  rdmakit::nbd::binding::add_kernel_functions(exports);
  rdmakit::nbd::binding::add_ublk_functions(exports);
  return exports;
}

NODE_API_MODULE(nbd_client, initialize)
