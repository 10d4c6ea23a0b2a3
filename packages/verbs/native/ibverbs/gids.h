// A port's GID table.
#pragma once

#include <vector>

#include "ibverbs/libraries.h"
#include "provider/provider.h"

namespace rdmakit::ibverbs {

// 0 or an errno value.
int query_gids(const Libraries& lib, ibv_context* context, uint8_t port, std::vector<GidEntry>& gids);

}  // namespace rdmakit::ibverbs
