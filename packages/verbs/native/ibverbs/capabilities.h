// The capabilities of a device beyond SEND, RECV, RDMA WRITE and RDMA READ: kCapability… of rdmakit/handle.h.
#pragma once

#include <cstdint>

#include "ibverbs/libraries.h"

namespace rdmakit::ibverbs {

// Asked of the device once, then remembered.
uint32_t capabilities_of(const Libraries& lib, ibv_context* context);

}  // namespace rdmakit::ibverbs
