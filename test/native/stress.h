// The common part of all native tests: checks, a registry of tests, the number of repetitions.
//
//   folder/NAME_stress.cc   STRESS(folder_NAME) { …; return 0; }
//
// The tests of a folder are one program, folder_stress, which runs one of them: `folder_stress folder_NAME
// [ARGUMENT…]`. Each runs in a process of its own (ctest), and what is compiled is shared: several files make
// one unit, so everything in a file lives in a namespace named after it. A test that replaces a function of
// the C library for its whole process is a program of its own (RDMAKIT_ALONE in CMakeLists.txt).
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <initializer_list>
#include <thread>
#include <vector>

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

// At the end of a process ThreadSanitizer sleeps, for a second unless told otherwise, so that threads that
// still run may be caught at what static destructors have taken down. A test with 20 child processes would
// mostly sleep.
#if defined(__SANITIZE_THREAD__)
extern "C" __attribute__((weak, used, visibility("default"))) const char* __tsan_default_options() {
  return "atexit_sleep_ms=50";
}
#endif

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

// A deadline that only ends a hang: an event that takes this long never comes, however slow the machine is.
inline constexpr std::chrono::seconds kHang{120};
inline constexpr int kHangMs = 120'000;

// Waits for what other threads bring about.
template <typename Condition>
void await(Condition condition, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  for (const auto deadline = Clock::now() + kHang; !condition();) {
    CHECK(Clock::now() < deadline, "waited in vain at %s:%d", file, line);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

inline double processor_seconds() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

// Of this thread: pages that it touched for the first time (getrusage(2)).
inline long page_faults() {
  rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

// A part of a test. RDMAKIT_PART chooses those whose name holds it.
struct Part {
  const char* name;
  std::function<void()> test;

  bool wanted() const {
    static const char* const wanted = std::getenv("RDMAKIT_PART");
    return wanted == nullptr || std::strstr(name, wanted) != nullptr;
  }
};

inline void measured(const char* name, const std::function<void()>& work) {
  const auto begin = Clock::now();
  const double processor = processor_seconds();
  work();
  std::printf("%-44s %6.0f ms, %6.0f ms of processors\n", name, seconds_since(begin) * 1000,
              (processor_seconds() - processor) * 1000);
  std::fflush(stdout);
}

inline void timed(const Part& part) {
  if (part.wanted()) measured(part.name, part.test);
}
inline void timed(const char* name, std::function<void()> test) { timed({name, std::move(test)}); }

// Parts that mostly wait, for time-outs above all, each on a thread of its own: together they take no longer
// than the longest of them.
inline void side_by_side(std::initializer_list<Part> parts) {
  const auto all = [&] {
    std::vector<std::thread> threads;
    for (const Part& part : parts) {
      if (!part.wanted()) continue;
      threads.emplace_back([&part] {
        const auto begin = Clock::now();
        part.test();
        std::printf("  %-42s %6.0f ms\n", part.name, seconds_since(begin) * 1000);
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  if (std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.wanted(); }))
    measured("these together", all);
}

// Bytes that look random and follow from `seed`. They are copied from a table: under a sanitizer, making and
// comparing them one by one would be most of what a test does.
namespace noise_table {
inline constexpr size_t kBytes = 65'536;
inline const std::array<uint64_t, kBytes / 8 + 1>& words() {
  static const auto made = [] {
    std::array<uint64_t, kBytes / 8 + 1> words{};
    uint64_t state = 1;
    for (uint64_t& word : words) {  // splitmix64
      uint64_t mixed = state += 0x9e3779b97f4a7c15u;
      mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
      mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
      word = mixed ^ mixed >> 31;
    }
    return words;
  }();
  return made;
}
// `piece(table, offset, length)` for each run of the bytes.
template <typename Piece>
void each_run(size_t length, uint64_t seed, Piece piece) {
  const auto* const table = reinterpret_cast<const uint8_t*>(words().data());
  // A prime number of bytes, so that what is off by whole pages differs.
  constexpr size_t kPeriod = 65'537;
  size_t from = static_cast<size_t>((seed + 1) * 0x9e3779b97f4a7c15u % kPeriod);
  for (size_t at = 0; at < length;) {
    const size_t run = std::min(length - at, kPeriod - from);
    piece(table + from, at, run);
    at += run;
    from = 0;
  }
}
}  // namespace noise_table

inline void fill_noise(void* to, size_t length, uint64_t seed) {
  noise_table::each_run(length, seed, [to](const uint8_t* table, size_t at, size_t run) {
    std::memcpy(static_cast<uint8_t*>(to) + at, table, run);
  });
}
inline bool is_noise(const void* bytes, size_t length, uint64_t seed) {
  bool same = true;
  noise_table::each_run(length, seed, [&](const uint8_t* table, size_t at, size_t run) {
    same = same && std::memcmp(static_cast<const uint8_t*>(bytes) + at, table, run) == 0;
  });
  return same;
}
inline bool is_filled(const void* bytes, size_t length, uint8_t byte) {
  const auto* const from = static_cast<const uint8_t*>(bytes);
  return length == 0 || (from[0] == byte && std::memcmp(from, from + 1, length - 1) == 0);
}

// The number of repetitions: `count` in CI, times RDMAKIT_EFFORT if that is set (a soak sets it).
// ThreadSanitizer makes everything ten times slower and needs no more than some overlaps: a third.
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

// Repetitions that find an order of events by chance. ThreadSanitizer is too slow for that, and sees in some
// of them whether they are clean.
inline int chances(int count) {
#if defined(__SANITIZE_THREAD__)
  count /= 20;
#endif
  return effort(count);
}

}  // namespace fixture
