// The one device of this provider, "shm0", and its process-wide context.
#pragma once

#include <infiniband/verbs.h>

namespace rdmakit::shm {

inline constexpr char kDeviceName[] = "shm0";

ibv_context* device_context();

}  // namespace rdmakit::shm
