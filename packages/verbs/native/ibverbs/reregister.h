// ibv_rereg_mr(3) with errno values for answers.
#pragma once

#include "ibverbs/libraries.h"

namespace rdmakit::ibverbs {

// 0 or an errno value, as Provider::rereg_mr says.
int reregister(const Libraries& lib, ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t length,
               int access);

}  // namespace rdmakit::ibverbs
