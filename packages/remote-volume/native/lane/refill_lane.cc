// The lane that fills replicas, compiled once.
#include "lane/lane_loop.h"

namespace rdmakit::volume {

template class WorkingLane<FillReplicas>;

}  // namespace rdmakit::volume
