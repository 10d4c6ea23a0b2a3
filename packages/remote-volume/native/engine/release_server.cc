// Gives the index of a server that has failed to another one.
//
//   control                                        lanes
//   nothing names the server:
//     disconnect_server() ── command ────────────> its queue pair goes when nothing of it is outstanding
//     synchronize() <── the epoch is acknowledged ── no operation of it is left, no queue pair either
//     release_server(): the failure is forgotten, and then another server may have the index
//
// So no lane ever takes a remainder of the old server for the new one: a keeper, a completion, a late report
// of a failure. Nothing new can name the old one meanwhile, because it has failed.
#include <cerrno>

#include "engine/volume_engine.h"
#include "system/error_reason.h"

namespace rdmakit::volume {

// Under control_.
int VolumeEngine::releasable(uint32_t server, std::string& why) {
  if (server >= kMaxServers) return with_reason(why, EINVAL, "no such server");
  if (closed_) return with_reason(why, ESHUTDOWN, "the engine is closed");
  if (!volume_.failed(server)) return with_reason(why, ENOENT, "this server has not failed");
  if (released_server_ != kMaxServers && released_server_ != server)
    return with_reason(why, EBUSY, "the index of another server is being released");
  if (refilling_ && refilled_server_ == server) return with_reason(why, EBUSY, "it is being refilled");
  if (Volume::Failure failure; volume_.failure(server, failure) && !told_failures_[server])
    return with_reason(why, EBUSY, "its failure was not told yet");
  return 0;
}

int VolumeEngine::disconnect_server(uint32_t server, std::string& why) {
  const std::lock_guard lock(control_);
  if (const int error = releasable(server, why); error != 0) return error;
  if (volume_.names(server)) return with_reason(why, EBUSY, "a slab or a spare place names it");
  released_server_ = server;
  released_epoch_ = volume_.epoch();
  const auto disconnect = [server](Lane& lane, LaneControl& control) {
    if (!control.connected[server]) return 0;
    const int error = lane.disconnect(server);
    control.connected[server] = error != 0;
    return error;
  };
  for (uint32_t i = 0; i < lane_count(); i++) {
    if (const int error = disconnect(*lanes_[i], lane_controls_[i]); error != 0)
      return with_reason(why, error, "the lane does not keep up with its commands");
  }
  if (refill_lane_ == nullptr) return 0;
  const int error = disconnect(*refill_lane_, refill_control_);
  return error == 0 ? 0 : with_reason(why, error, "the refill lane does not keep up with its commands");
}

int VolumeEngine::release_server(uint32_t server, std::string& why) {
  const std::lock_guard lock(control_);
  if (const int error = releasable(server, why); error != 0) return error;
  const auto holds = [=, this](const Lane& lane, const LaneControl& control) {
    return control.connected[server] || lane.acknowledged_epoch() <= released_epoch_;
  };
  for (uint32_t i = 0; i < lane_count(); i++) {
    if (holds(*lanes_[i], lane_controls_[i])) return with_reason(why, EBUSY, "a lane has not let go of it");
  }
  if (refill_lane_ != nullptr && holds(*refill_lane_, refill_control_))
    return with_reason(why, EBUSY, "the refill lane has not let go of it");
  for (uint32_t i = 0; i < lane_count(); i++) lanes_[i]->take_back();
  if (refill_lane_ != nullptr) refill_lane_->take_back();
  if (const int error = volume_.release(server); error != 0)
    return with_reason(why, error, "a slab or a spare place names it");
  told_failures_[server] = false;
  released_server_ = kMaxServers;
  return 0;
}

}  // namespace rdmakit::volume
