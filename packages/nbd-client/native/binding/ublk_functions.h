// Devices of the ublk driver. See src/engine/native.ts.
#pragma once

#include <napi.h>

namespace rdmakit::nbd::binding {

Napi::Value ublk_add(const Napi::CallbackInfo& info);
Napi::Value ublk_open(const Napi::CallbackInfo& info);
void ublk_nudge(const Napi::CallbackInfo& info);
Napi::Value ublk_use(const Napi::CallbackInfo& info);
Napi::Value ublk_status(const Napi::CallbackInfo& info);
// These block, and give a promise.
Napi::Value ublk_recover(const Napi::CallbackInfo& info);
Napi::Value ublk_start(const Napi::CallbackInfo& info);
Napi::Value ublk_resume(const Napi::CallbackInfo& info);
Napi::Value ublk_stop(const Napi::CallbackInfo& info);
Napi::Value ublk_delete(const Napi::CallbackInfo& info);

}  // namespace rdmakit::nbd::binding
