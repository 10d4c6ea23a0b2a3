#include <cstdlib>

#include "binding/poller_object.h"
#include "ring/counters.h"

namespace {

// Makes malloc keep up to 64 MiB of freed memory for later allocations. V8 frees the memory of large messages
// at a collection, 32 MiB at a time. glibc returns memory freed at the end of its heap to the kernel from 128
// KiB on, so each page of the next messages is faulted in and cleared again: at 256 KiB that takes twice the
// time of everything else.
//
// glibc adapts that limit, and its threshold for mmap, to the largest block that was ever freed, up to 32 MiB
// (mallopt(3), M_MMAP_THRESHOLD, M_TRIM_THRESHOLD). So this frees one. The block was never touched, so it
// took no memory; limits that the user has set stay as they are. Other C libraries are not affected.
void keep_freed_memory(const Napi::CallbackInfo&) {
  // With malloc's own header, and in whole pages, not more than its DEFAULT_MMAP_THRESHOLD_MAX.
  constexpr size_t kLargest = (size_t{32} << 20) - 8192;
  // The volatile keeps the compiler from removing the unused block.
  void* volatile block = std::malloc(kLargest);
  std::free(block);
}

template <size_t Count>
Napi::Value names(Napi::Env env, const char* const (&list)[Count]) {
  Napi::Array out = Napi::Array::New(env, Count);
  for (uint32_t i = 0; i < Count; ++i) out.Set(i, list[i]);
  return out;
}

Napi::Object init(Napi::Env env, Napi::Object exports) {
  rdmakit::require_external_buffers(env);
  exports.Set("Poller", rdmakit::ring::binding::PollerObject::define(env));
  exports.Set("keepFreedMemory", Napi::Function::New(env, keep_freed_memory));
  exports.Set("connectionCounters", names(env, rdmakit::ring::kConnectionCounters));
  exports.Set("pollerCounters", names(env, rdmakit::ring::kPollerCounters));
  return exports;
}

}  // namespace

NODE_API_MODULE(ring_transport, init)
