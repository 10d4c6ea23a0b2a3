// The part of libuv that a poller without a thread needs, declared by hand.
//
// Node exports libuv, and napi_get_uv_event_loop gives its loop, but the headers of Node-API have no uv.h.
// What is declared here has been stable since libuv 1.19 and is promised to be within libuv 1 (Node has had
// no other): functions of opaque handles, whose size uv_handle_size() tells at run time, and two numbers.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
struct uv_loop_s;    // NOLINT: libuv's names
struct uv_handle_s;  // NOLINT

using UvHandle = uv_handle_s;
using UvLoop = uv_loop_s;

int uv_poll_init(UvLoop* loop, UvHandle* handle, int fd);
int uv_poll_start(UvHandle* handle, int events, void (*ready)(UvHandle* handle, int status, int events));
int uv_poll_stop(UvHandle* handle);
int uv_prepare_init(UvLoop* loop, UvHandle* handle);
int uv_prepare_start(UvHandle* handle, void (*before_poll)(UvHandle* handle));
int uv_timer_init(UvLoop* loop, UvHandle* handle);
int uv_timer_start(UvHandle* handle, void (*expired)(UvHandle* handle), uint64_t timeout_ms,
                   uint64_t repeat_ms);
int uv_is_active(const UvHandle* handle);
void uv_ref(UvHandle* handle);
void uv_unref(UvHandle* handle);
void uv_close(UvHandle* handle, void (*closed)(UvHandle* handle));
size_t uv_handle_size(int type);
void* uv_handle_get_data(const UvHandle* handle);
void uv_handle_set_data(UvHandle* handle, void* data);
}

namespace rdmakit::ring::binding {

// uv_handle_type and uv_poll_event.
inline constexpr int kUvPoll = 8;
inline constexpr int kUvPrepare = 9;
inline constexpr int kUvTimer = 13;
inline constexpr int kUvReadable = 1;

}  // namespace rdmakit::ring::binding
