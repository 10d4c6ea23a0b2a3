// The states of iWARP queue pairs, where libibverbs and the drivers leave them to others: the kernel's
// connection manager makes the transitions to RTS, and siw of Linux 6.1 does not tell the state.
#pragma once

#include "ibverbs/libraries.h"

namespace rdmakit::ibverbs {

// A queue pair has been made, or is about to be destroyed.
void note_created(ibv_qp* qp);
void note_destroyed(ibv_qp* qp);

// ibv_modify_qp(3). EOPNOTSUPP for what belongs to a connection id: iWARP has no RTR, and RTS has a TCP
// connection behind it.
int modify_qp(const Libraries& lib, ibv_qp* qp, ibv_qp_attr* attributes, int mask);

// ibv_query_qp(3)
int query_qp(const Libraries& lib, ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* init);

// The connection manager has connected this queue pair, or has seen the connection's end. Then librdmacm
// leaves an iWARP queue pair in SQD, from which it moves on by itself.
void note_established(ibv_qp* qp);
void note_disconnected(ibv_qp* qp);

}  // namespace rdmakit::ibverbs
