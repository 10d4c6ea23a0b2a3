// The lane of nbd-client, compiled once.
#include "front/nbd_lane.h"

#include "lane/lane_loop.h"

namespace rdmakit::volume {

template class WorkingLane<ServeRequests<nbd::NbdFront>>;

}  // namespace rdmakit::volume
