// The one device of this provider, "iwarp0", and its process-wide context.
#pragma once

#include <infiniband/verbs.h>

namespace rdmakit::iwarp {

inline constexpr char kDeviceName[] = "iwarp0";

ibv_context* device_context();

}  // namespace rdmakit::iwarp
