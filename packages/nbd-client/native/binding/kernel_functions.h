// The kernel's device and the protections of a process that serves swap. See src/engine/native.ts.
#pragma once

#include <napi.h>

namespace rdmakit::nbd::binding {

Napi::Value protect_process(const Napi::CallbackInfo& info);
Napi::Value become_io_flusher(const Napi::CallbackInfo& info);
Napi::Value lock_file(const Napi::CallbackInfo& info);
Napi::Value descriptor_channel(const Napi::CallbackInfo& info);
void send_descriptors(const Napi::CallbackInfo& info);
Napi::Value receive_descriptors(const Napi::CallbackInfo& info);
void close_descriptor(const Napi::CallbackInfo& info);
void replace_process(const Napi::CallbackInfo& info);
Napi::Value kernel_connect(const Napi::CallbackInfo& info);
void kernel_reconfigure(const Napi::CallbackInfo& info);
void kernel_disconnect(const Napi::CallbackInfo& info);
Napi::Value kernel_status(const Napi::CallbackInfo& info);

}  // namespace rdmakit::nbd::binding
