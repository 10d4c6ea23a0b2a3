// The functions of this package, beside those of a volume: NativeBinding in src/engine/native.ts.
#pragma once

#include <napi.h>

namespace rdmakit::nbd::binding {

void add_engine_functions(Napi::Object& exports);
void add_kernel_functions(Napi::Object& exports);
void add_ublk_functions(Napi::Object& exports);

// -1, for the first free device, or an index.
int to_device_index(const Napi::Value& value);

}  // namespace rdmakit::nbd::binding
