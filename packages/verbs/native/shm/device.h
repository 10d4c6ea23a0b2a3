// The one device of this provider, "shm0", its process-wide context, and its attributes.
#pragma once

#include <infiniband/verbs.h>

#include "software/async_events.h"

namespace rdmakit::shm {

inline constexpr char kDeviceName[] = "shm0";

ibv_context* device_context();
software::AsyncEvents& async_events();

}  // namespace rdmakit::shm
