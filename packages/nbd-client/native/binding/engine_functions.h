// The functions of an engine that has NBD clients.
#pragma once

#include <napi.h>

namespace rdmakit::nbd::binding {

Napi::Value create_engine(const Napi::CallbackInfo& info);
Napi::Value export_flags(const Napi::CallbackInfo& info);
void bind_unix(const Napi::CallbackInfo& info);
Napi::Value bind_tcp(const Napi::CallbackInfo& info);
void accept_clients(const Napi::CallbackInfo& info);
Napi::Value attach_socketpair(const Napi::CallbackInfo& info);
void attach_device(const Napi::CallbackInfo& info);
void attach_socket(const Napi::CallbackInfo& info);

}  // namespace rdmakit::nbd::binding
