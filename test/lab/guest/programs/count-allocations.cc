// Counts what a program allocates, the threads of its page path (nbd-lane-*) apart from all others.
//
//   LD_PRELOAD=count-allocations RDMAKIT_ALLOCATIONS=FILE PROGRAM …
//   od -An -tu8 FILE      three numbers: of the lanes, of the others, and the process
//
// The first process to have FILE is counted, in each program that it executes, and none that it starts.
// The lanes' count begins with 1: an allocation made here under a lane's name, which proves the counter.
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

struct Counts {
  std::atomic<uint64_t> lanes;
  std::atomic<uint64_t> others;
  std::atomic<uint64_t> process;
};

Counts until_mapped;
std::atomic<Counts*> counts{&until_mapped};

// By its name: nothing else tells a lane's thread from the outside. It takes the name after its start, so
// only a yes is kept. Initial-exec, because the other models allocate a thread's first use.
bool on_lane() {
  [[gnu::tls_model("initial-exec")]] thread_local bool known = false;
  if (known) return true;
  char name[17] = {};
  prctl(PR_GET_NAME, name);
  if (std::strncmp(name, "nbd-lane-", 9) == 0) known = true;
  return known;
}

void count() {
  Counts& now = *counts.load(std::memory_order_relaxed);
  (on_lane() ? now.lanes : now.others).fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  count();
  return __libc_malloc(bytes);
}

void* calloc(size_t items, size_t bytes) {
  count();
  return __libc_calloc(items, bytes);
}

void* realloc(void* memory, size_t bytes) {
  count();
  return __libc_realloc(memory, bytes);
}

void* memalign(size_t alignment, size_t bytes) {
  count();
  return __libc_memalign(alignment, bytes);
}

void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  void* const made = memalign(alignment, bytes);
  if (made == nullptr) return ENOMEM;
  *memory = made;
  return 0;
}

}  // extern "C"

namespace {

// A thread of its own: one that has had a lane's name is taken for a lane until it ends.
void prove() {
  pthread_t thread;
  const auto allocate = [](void*) -> void* {
    prctl(PR_SET_NAME, "nbd-lane-proof");
    void* volatile memory = std::malloc(1);  // volatile: a pair without a use may be left out
    std::free(memory);
    return nullptr;
  };
  if (pthread_create(&thread, nullptr, allocate, nullptr) != 0 || pthread_join(thread, nullptr) != 0)
    std::abort();
}

[[gnu::constructor]] void open_counts() {
  const char* const file = std::getenv("RDMAKIT_ALLOCATIONS");
  if (file == nullptr) return;
  const int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Counts)) != 0) std::abort();
  void* const memory = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) std::abort();
  close(fd);
  Counts& mapped = *static_cast<Counts*>(memory);
  const uint64_t own = static_cast<uint64_t>(getpid());
  if (uint64_t first = 0; !mapped.process.compare_exchange_strong(first, own) && first != own) return;
  counts = &mapped;
  prove();
}

}  // namespace
