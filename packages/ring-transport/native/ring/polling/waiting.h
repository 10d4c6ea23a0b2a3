// How a poller that finds nothing waits.
#pragma once

#include <sched.h>

#include <cstdint>

namespace rdmakit::ring {

// `caller`: there is no thread; who owns the poller turns it. `guarded`: the same, and a thread does it while
// the owner computes (guardian.cc).
enum class Mode : uint32_t { poll, event, adaptive, caller, guarded };
constexpr bool turned_by_application(Mode mode) { return mode == Mode::caller || mode == Mode::guarded; }

// One turn of a spin. The thread for which the spinner waits may have no core but this one, so the spinner
// yields it: on an idle core that costs a quarter of a microsecond, on a busy one it makes the difference
// between tens of microseconds and milliseconds.
inline void relax() { sched_yield(); }

}  // namespace rdmakit::ring
