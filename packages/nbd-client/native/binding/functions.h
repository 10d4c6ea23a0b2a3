// The functions of this package, beside those of a volume: NativeBinding in src/engine/native.ts.
#pragma once

#include <napi.h>

namespace rdmakit::nbd::binding {

void add_engine_functions(Napi::Object& exports);
void add_kernel_functions(Napi::Object& exports);
void add_ublk_functions(Napi::Object& exports);

}  // namespace rdmakit::nbd::binding
