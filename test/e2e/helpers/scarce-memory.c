// Preloaded by limits.test.ts: memory above RDMAKIT_MALLOC_LIMIT bytes cannot be had, as on a machine that is out of it.
// V8 takes its own by mmap(2), and ends the process when there is none: a real limit (ulimit -v) would meet it first.
#include <errno.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static int scarce(size_t size) {
  if (size < 1 << 20) return 0;
  const char *limit = getenv("RDMAKIT_MALLOC_LIMIT");
  if (limit == NULL || size <= strtoull(limit, NULL, 10)) return 0;
  errno = ENOMEM;
  return 1;
}

void *malloc(size_t size) { return scarce(size) ? NULL : __libc_malloc(size); }

void *aligned_alloc(size_t alignment, size_t size) {
  return scarce(size) ? NULL : __libc_memalign(alignment, size);
}
