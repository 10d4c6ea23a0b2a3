#pragma once

#include <napi.h>

namespace rdmakit::ring::binding {

// Makes malloc keep up to 64 MiB of freed memory for later allocations. V8 frees the memory of large messages
// at a collection, 32 MiB at a time. glibc returns memory freed at the end of its heap to the kernel from 128
// KiB on, so each page of the next messages is faulted in and cleared again: at 256 KiB that takes twice the
// time of everything else.
//
// glibc adapts that limit, and its threshold for mmap, to the largest block that was ever freed, up to 32 MiB
// (mallopt(3), M_MMAP_THRESHOLD, M_TRIM_THRESHOLD). So this frees one. The block was never touched, so it
// took no memory; limits that the user has set stay as they are. Other C libraries are not affected.
void keep_freed_memory(const Napi::CallbackInfo&);

}  // namespace rdmakit::ring::binding
