// What all native tests share: checks, a registry of tests, how much of what may be repeated is.
//
//   folder/NAME_stress.cc   STRESS(folder_NAME) { …; return 0; }
//
// The tests of a folder are one program, folder_stress, which runs one of them: `folder_stress folder_NAME
// [ARGUMENT…]`. Each runs in a process of its own (ctest), and what is compiled is shared: several files make
// one unit, so everything in a file lives in a namespace named after it. A test that replaces a function of
// the C library for its whole process is a program of its own (RDMAKIT_ALONE in CMakeLists.txt).
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

// CHECK(condition) or CHECK(condition, "format", …)
#define CHECK(condition, ...)                                                                         \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      std::fprintf(stderr, "%s:%d: failed: %s (errno %d %s) ", __FILE__, __LINE__, #condition, errno, \
                   std::strerror(errno));                                                             \
      __VA_OPT__(std::fprintf(stderr, __VA_ARGS__);)                                                  \
      std::fputc('\n', stderr);                                                                       \
      std::abort();                                                                                   \
    }                                                                                                 \
  } while (0)

// Defines a test: int(int count, char** arguments), whose status is the program's. arguments[0] is its name.
#define STRESS(test)                                                     \
  static int test##_main(int count, char** arguments);                   \
  static const stress::Registered test##_registered(#test, test##_main); \
  static int test##_main([[maybe_unused]] int count, [[maybe_unused]] char** arguments)

namespace stress {

using Main = int (*)(int count, char** arguments);

struct Registered {
  Registered(const char* name, Main main);
};

// The test that runs: what a process started from this program again (/proc/self/exe) gets as its first
// argument.
const char* running();

}  // namespace stress

namespace fixture {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline void timed(const char* name, const std::function<void()>& test) {
  const auto begin = Clock::now();
  test();
  std::printf("%-36s %6.0f ms\n", name, seconds_since(begin) * 1000);
  std::fflush(stdout);
}

// How often what may be repeated is: `count` times in CI, RDMAKIT_EFFORT times that where it is set (a soak
// sets it). ThreadSanitizer makes everything ten times slower and needs no more than some overlaps: a third.
inline int effort(int count) {
  static const double scale = [] {
    const char* text = std::getenv("RDMAKIT_EFFORT");
    const double given = text == nullptr ? 1 : std::atof(text);
    return given > 0 ? given : 1;
  }();
#if defined(__SANITIZE_THREAD__)
  count /= 3;
#endif
  const double scaled = count * scale;
  return scaled < 1 ? 1 : scaled > 1e9 ? 1'000'000'000 : static_cast<int>(scaled);
}

}  // namespace fixture
