#pragma once

#include <napi.h>

namespace rdmakit::ring::binding {

// Has malloc keep what is freed, as far as 64 MiB, for what is allocated next. V8 frees the memory of large
// messages at a collection, by 32 MiB at a time; glibc gives what is freed at the end of its heap back to the
// kernel from 128 KiB on, and each page of the next messages is faulted in and cleared anew: at 256 KiB that
// takes twice the time of all else.
//
// glibc raises that limit, and what it maps apart, by itself to what the largest block that was ever freed
// makes useful, 32 MiB at most (mallopt(3), M_MMAP_THRESHOLD, M_TRIM_THRESHOLD). So one is freed. It was
// never touched, so it was no memory; and whoever has set either limit has them as he set them. Other C
// libraries do as they do.
void keep_freed_memory(const Napi::CallbackInfo&);

}  // namespace rdmakit::ring::binding
