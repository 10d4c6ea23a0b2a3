// Servers and their state: connections, failures, refills, spare places, epochs.
#include <cerrno>

#include "engine/volume_engine.h"
#include "system/error_reason.h"

namespace rdmakit::volume {

int VolumeEngine::connect_server(uint32_t lane, uint32_t server, const QpRef& qp, const MrRef& mr,
                                 std::string& why) {
  const std::lock_guard lock(control_);
  const bool refills = lane == kRefillLane && refill_lane_ != nullptr;
  if ((!refills && lane >= lane_count()) || server >= kMaxServers)
    return with_reason(why, EINVAL, "no such lane or server");
  LaneControl& control = refills ? refill_control_ : lane_controls_[lane];
  Lane& target = refills ? *refill_lane_ : *lanes_[lane];
  if (closed_) return with_reason(why, ESHUTDOWN, "the engine is closed");
  if (control.connected[server]) return with_reason(why, EEXIST, "the lane has a queue pair for this server");
  if (volume_.failed(server))
    return with_reason(why, EHOSTDOWN, "this server index has failed; use a new one");
  const MrRef& region = mr ? mr : control.shared_region;
  if (!region) return with_reason(why, EINVAL, "a memory region is needed");
  if (const int error = check_region(region, control.arena, why); error != 0) return error;
  if (region->pd != qp->pd)
    return with_reason(why, EINVAL,
                       "the queue pair and the memory region are of different protection domains");
  const int error = target.connect(server, qp, region);
  if (error != 0) return with_reason(why, error, "the lane does not keep up with its commands");
  control.connected[server] = true;
  return 0;
}

int VolumeEngine::fail_server(uint32_t server, const std::string& reason) {
  if (server >= kMaxServers) return EINVAL;
  if (!volume_.fail(server, kMaxLanes, reason.c_str())) return 0;
  const std::lock_guard lock(control_);
  wake_lanes();
  wake();
  return 0;
}

int VolumeEngine::set_limits(uint32_t server, uint64_t bytes, uint64_t operations) {
  if (server >= kMaxServers) return EINVAL;
  const std::lock_guard lock(control_);
  volume_.limiter(server).set(bytes, operations);
  wake_lanes();  // one may sleep until a turn that comes sooner now
  return 0;
}

int VolumeEngine::refill(uint32_t slab, uint32_t server, std::string& why) {
  const std::lock_guard lock(control_);
  if (slab >= volume_.slabs() || server >= kMaxServers)
    return with_reason(why, EINVAL, "no such slab or server");
  if (closed_) return with_reason(why, ESHUTDOWN, "the engine is closed");
  if (refill_lane_ == nullptr) return with_reason(why, ENOTCONN, "there is no refill lane");
  if (refilling_) return with_reason(why, EBUSY, "another slab is being refilled");
  const int error = refill_lane_->refill(slab, server);
  refilling_ = error == 0;
  refilled_server_ = server;
  return error;
}

int VolumeEngine::add_spare(uint32_t id, std::span<const Replica> replicas) {
  const int error = volume_.add_spare(id, replicas);
  const std::lock_guard lock(control_);
  if (error == 0) wake_lanes();
  return error;
}

void VolumeEngine::set_exhausted() {
  volume_.set_exhausted();
  const std::lock_guard lock(control_);
  wake_lanes();
}

uint64_t VolumeEngine::synchronize() {
  const std::lock_guard lock(control_);
  const uint64_t epoch = volume_.epoch();
  if (acknowledged(epoch)) {
    raise_epoch();
  } else {
    raise_again_ = true;
  }
  return epoch + 1;
}

bool VolumeEngine::acknowledged(uint64_t epoch) const {
  const auto done = [epoch](const Lane& lane) {
    return lane.acknowledged_epoch() == epoch || lane.state() == Lane::State::stopped;
  };
  for (uint32_t i = 0; i < lane_count(); i++) {
    if (!done(*lanes_[i])) return false;
  }
  return refill_lane_ == nullptr || done(*refill_lane_);
}

void VolumeEngine::raise_epoch() {
  raise_again_ = false;
  volume_.raise_epoch();
  wake_lanes();
  wake();  // no lane does so if there are none
}

}  // namespace rdmakit::volume
