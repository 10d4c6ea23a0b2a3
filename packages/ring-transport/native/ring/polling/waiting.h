// How a poller that finds nothing waits.
#pragma once

#include <cstdint>

namespace rdmakit::ring {

// `caller`: there is no thread; who owns the poller turns it. `guarded`: the same, and a thread does it while
// the owner computes (guardian.cc).
enum class Mode : uint32_t { poll, event, adaptive, caller, guarded };
constexpr bool turned_by_application(Mode mode) { return mode == Mode::caller || mode == Mode::guarded; }

}  // namespace rdmakit::ring
