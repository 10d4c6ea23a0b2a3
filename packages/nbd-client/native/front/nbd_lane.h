// A lane that serves NBD connections and queues of ublk devices.
#pragma once

#include "front/nbd_front.h"
#include "lane/working_lane.h"

namespace rdmakit::nbd {

using NbdLane = volume::ServingLane<NbdFront>;

}  // namespace rdmakit::nbd
