// The one device of this provider, "iwarp0": its process-wide context with the data path's verbs, and its
// attributes.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

#include "provider/provider.h"

namespace rdmakit::iwarp {

inline constexpr char kDeviceName[] = "iwarp0";

ibv_context* device_context();

// 0 or an errno value.
int describe_device(ibv_device_attr& attributes);
int describe_port(uint8_t port, ibv_port_attr& attributes);
int list_gids(uint8_t port, std::vector<GidEntry>& entries);

}  // namespace rdmakit::iwarp
