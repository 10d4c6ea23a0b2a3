#include "binding/freed_memory.h"

#include <cstdlib>

namespace rdmakit::ring::binding {

void keep_freed_memory(const Napi::CallbackInfo&) {
  // With malloc's own header, and in whole pages, not more than its DEFAULT_MMAP_THRESHOLD_MAX.
  constexpr size_t kLargest = (size_t{32} << 20) - 8192;
  // The volatile keeps the compiler from removing the unused block.
  void* volatile block = std::malloc(kLargest);
  std::free(block);
}

}  // namespace rdmakit::ring::binding
