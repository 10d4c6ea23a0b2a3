// Replacements for functions that our code uses with this system's headers and that an older glibc lacks.
// Only in addons (rdmakit_addon), and hidden.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#define HIDDEN __attribute__((visibility("hidden")))

extern "C" {

// Functions since glibc 2.33. On 64-bit processors the kernel's struct is that of glibc.
HIDDEN int fstat(int fd, struct stat* status) noexcept {
  return static_cast<int>(syscall(SYS_fstat, fd, status));
}
HIDDEN int stat(const char* path, struct stat* status) noexcept {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, status, 0));
}
HIDDEN int lstat(const char* path, struct stat* status) noexcept {
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW));
}

// From glibc 2.32: shared_ptr counts without atomics while it is set. An addon is never in a single-threaded
// process.
HIDDEN extern const char __libc_single_threaded;
const char __libc_single_threaded = 0;

// From glibc 2.30. Without it a condition cannot be waited for by the monotonic clock: so each wait takes at
// most a tenth of a second, after which the waiter wakes up spuriously and checks the clock.
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const timespec* until) {
  using Wait = decltype(&pthread_cond_clockwait);
  static const auto real = reinterpret_cast<Wait>(dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (real != nullptr) return real(condition, mutex, clock, until);
  constexpr long kSecond = 1'000'000'000;
  timespec now;
  clock_gettime(clock, &now);
  const long left = (until->tv_sec - now.tv_sec) * kSecond + until->tv_nsec - now.tv_nsec;
  timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_nsec += std::clamp(left, 0L, kSecond / 10);
  end.tv_sec += end.tv_nsec / kSecond;
  end.tv_nsec %= kSecond;
  const int error = pthread_cond_timedwait(condition, mutex, &end);
  return error == ETIMEDOUT && left > kSecond / 10 ? 0 : error;
}

}  // extern "C"

// From gcc 11, whose header declares it visible.
asm(".hidden _ZSt28__throw_bad_array_new_lengthv");
namespace std {
__attribute__((noreturn)) void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
