// A condition that must always hold. It is checked in release builds too: a process with a violated invariant
// ends at once, with a message, before it answers or writes anything more. Its successor takes over
// (docs/page-service/restart.md).
//
//   RDMAKIT_INVARIANT(left > 0, "operation %u, stage %d", index, stage);
//
// The condition has no side effect and costs a comparison: a check that needs a loop runs when everything is
// idle.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace rdmakit {

// Neither inlined nor near: what follows is never run. No allocation: it may be out of memory that brought it
// here.
[[noreturn, gnu::cold, gnu::noinline, gnu::format(printf, 4, 5)]] inline void invariant_broken(
    const char* file, int line, const char* condition, const char* format, ...) {
  char state[256];
  __builtin_va_list values;
  __builtin_va_start(values, format);
  std::vsnprintf(state, sizeof state, format, values);
  __builtin_va_end(values);
  std::fprintf(stderr, "rdmakit: %s:%d: this must hold and does not: %s (%s)\n", file, line, condition,
               state);
  std::abort();
}

}  // namespace rdmakit

// RDMAKIT_INVARIANT(condition, "format", …)
#define RDMAKIT_INVARIANT(condition, ...)                                       \
  do {                                                                          \
    if (!(condition)) [[unlikely]]                                              \
      ::rdmakit::invariant_broken(__FILE__, __LINE__, #condition, __VA_ARGS__); \
  } while (0)
