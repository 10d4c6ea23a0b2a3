// Shared receive queues of libibverbs. libsiw has no ibv_query_srq(3), so the granted sizes and the armed
// limit are also kept here, for drivers that do not report them.
#pragma once

#include "ibverbs/libraries.h"

namespace rdmakit::ibverbs {

ibv_srq* create_srq(const Libraries& lib, ibv_pd* pd, ibv_srq_init_attr* attributes);
int modify_srq(const Libraries& lib, ibv_srq* srq, ibv_srq_attr* attributes, int mask);
int query_srq(const Libraries& lib, ibv_srq* srq, ibv_srq_attr* attributes);
int destroy_srq(const Libraries& lib, ibv_srq* srq);

// The device has raised IBV_EVENT_SRQ_LIMIT_REACHED, which disarms the limit.
void note_limit_reached(ibv_srq* srq);

}  // namespace rdmakit::ibverbs
