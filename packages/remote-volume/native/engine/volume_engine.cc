#include "engine/volume_engine.h"

#include <sys/random.h>

#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "system/error_reason.h"

namespace rdmakit::volume {

// join() gives lanes this much more than stop(): for the flushes.
constexpr uint64_t kJoinSlack = 1'500 * kMillisecond;

VolumeEngine::VolumeEngine(const VolumeEngineOptions& options, Sink sink)
    : options_(options), sink_(std::move(sink)) {}

void VolumeEngine::Closer::operator()(VolumeEngine* engine) const {
  engine->close(0);
  if (!engine->stuck_) delete engine;
}

int VolumeEngine::open_volume(std::string& why) {
  if (const int error = volume_.open(options_.volume, why); error != 0) return error;
  if (options_.read_ahead % kOutputChunk != 0 || options_.read_ahead > ReadAhead::kWindows * kOutputChunk)
    return with_reason(why, EINVAL, "a read-ahead is a multiple of 64 KiB of at most 1 MiB");
  return open_backup(why);
}

int VolumeEngine::open_backup(std::string& why) {
  if (options_.backup.path.empty()) {
    if (options_.acknowledge == Acknowledge::backup)
      return with_reason(why, EINVAL, "to acknowledge by the backup there must be one");
    return 0;
  }
  if (options_.volume.thin) return with_reason(why, EINVAL, "a thin volume has no backup");
  backup_ = std::make_unique<Backup>(options_.backup);
  const auto failed = [this] { wake(); };
  const int error = backup_->open(volume_.size(), failed, backup_warnings_, why);
  if (error == 0) volume_.set_backup(backup_.get());
  return error;
}

void VolumeEngine::stamp_backup() {
  if (backup_ == nullptr) return;
  uint64_t random = 0;
  // Without it the name is one that others may have: what the map knows of the file is checked besides.
  if (getrandom(&random, sizeof random, 0) != sizeof random) random = now_ns(CLOCK_REALTIME);
  backup_->stamp(random);
}

int VolumeEngine::check_region(const MrRef& region, uint64_t arena, std::string& why) const {
  const auto address = reinterpret_cast<uint64_t>(region->addr);
  if (arena < address || arena + Arena::kBytes > address + region->length)
    return with_reason(why, EINVAL,
                       "the memory region does not hold the lane's arena (see laneRequirements)");
  return 0;
}

int VolumeEngine::prepare_lane(LaneResources&& resources, LaneControl& control, LaneOptions& options,
                               std::string& why) {
  if (closed_) return with_reason(why, ESHUTDOWN, "the engine is closed");
  auto& [cq, channel, queue_pairs, regions] = resources;
  if (!cq) return with_reason(why, EINVAL, "a lane needs a completion queue");
  if (!channel && options_.wait_mode != WaitMode::poll)
    return with_reason(why, EINVAL, "a lane that sleeps needs a completion channel");
  if (channel && cq->channel != channel.get())
    return with_reason(why, EINVAL, "the completion queue belongs to another channel");
  const LaneRequirements needs = lane_requirements();
  if (cq->cqe < static_cast<int>(needs.completion_queue_entries))
    return with_reason(why, EINVAL, "the completion queue is too small (see laneRequirements)");
  if (queue_pairs.size() > kMaxServers) return with_reason(why, EINVAL, "more than 1024 servers");
  if (regions.empty() || (regions.size() > 1 && regions.size() < queue_pairs.size()))
    return with_reason(why, EINVAL, "one memory region is needed, or one for each server");

  control.connected.resize(kMaxServers);
  control.arena = reinterpret_cast<uint64_t>(regions[0]->addr);
  if (regions.size() == 1) control.shared_region = regions[0];
  for (size_t server = 0; server < queue_pairs.size(); server++) {
    if (!queue_pairs[server]) continue;
    MrRef& region = regions.size() == 1 ? regions[0] : regions[server];
    if (!region) return with_reason(why, EINVAL, "a server has a queue pair and no memory region");
    if (const int error = check_region(region, control.arena, why); error != 0) return error;
    if (queue_pairs[server]->send_cq != cq.get())
      return with_reason(why, EINVAL, "a queue pair sends to another completion queue");
    if (region->pd != queue_pairs[server]->pd)
      return with_reason(why, EINVAL,
                         "a queue pair and its memory region are of different protection domains");
    control.connected[server] = true;
    options.servers.push_back({static_cast<uint32_t>(server), std::move(queue_pairs[server]), region});
  }
  if (const int error = check_region(regions[0], control.arena, why); error != 0) return error;
  options.cq = std::move(cq);
  options.channel = std::move(channel);
  options.arena = reinterpret_cast<void*>(control.arena);
  options.wait_mode = options_.wait_mode;
  options.max_spin_ns = options_.max_spin_ns;
  options.operation_timeout_ns = options_.operation_timeout_ns;
  options.swap_safe = options_.swap_safe;
  options.acknowledge = options_.acknowledge;
  if (backup_ != nullptr) {
    options.backup = backup_->open_port();
    if (options.backup == nullptr) return with_reason(why, ENOMEM, "no memory for the backup's queue");
  }
  options.refill_rate = options_.refill_rate;
  options.read_ahead = options_.read_ahead;
  options.thread_name = options_.lane_name;
  return 0;
}

int VolumeEngine::start_lane(Lane& lane, std::vector<std::string>& warnings, std::string& why) {
  const int error = lane.start(warnings);
  return error == 0 ? 0 : with_reason(why, error, "the lane could not be started: " + why_no_thread(error));
}

int VolumeEngine::add_lane(LaneResources&& resources, uint32_t& index, std::vector<std::string>& warnings,
                           std::string& why) {
  const std::lock_guard lock(control_);
  index = lane_count();
  if (index == kMaxLanes) return with_reason(why, ENOSPC, "64 lanes exist");
  LaneControl control;
  LaneOptions options;
  if (const int error = prepare_lane(std::move(resources), control, options, why); error != 0) return error;
  std::unique_ptr<Lane> lane = make_serving_lane(index, std::move(options), [this] { wake(); });
  if (const int error = start_lane(*lane, warnings, why); error != 0) return error;
  lane_controls_[index] = std::move(control);
  lanes_[index] = std::move(lane);
  lane_count_.store(index + 1, std::memory_order_release);
  lane_added();
  return 0;
}

int VolumeEngine::add_refill_lane(LaneResources&& resources, std::vector<std::string>& warnings,
                                  std::string& why) {
  const std::lock_guard lock(control_);
  if (refill_lane_ != nullptr) return with_reason(why, EEXIST, "there is a refill lane");
  LaneControl control;
  LaneOptions options;
  if (const int error = prepare_lane(std::move(resources), control, options, why); error != 0) return error;
  auto lane = std::make_unique<RefillLane>(kRefillLane, volume_, std::move(options), [this] { wake(); });
  if (const int error = start_lane(*lane, warnings, why); error != 0) return error;
  refill_control_ = std::move(control);
  refill_lane_ = std::move(lane);
  return 0;
}

int VolumeEngine::pin_lane(uint32_t lane, const std::vector<uint32_t>& processors) {
  const std::lock_guard lock(control_);
  if (lane >= lane_count()) return EINVAL;
  if (closed_) return ESHUTDOWN;
  return lanes_[lane]->pin(processors);
}

int VolumeEngine::yield_lane(uint32_t lane) {
  const std::lock_guard lock(control_);
  const int error = check_lane(lane);
  return error == 0 ? lanes_[lane]->yield() : error;
}

int VolumeEngine::resume_lane(uint32_t lane) {
  const std::lock_guard lock(control_);
  const int error = check_lane(lane);
  return error == 0 ? lanes_[lane]->resume() : error;
}

const RefillLane* VolumeEngine::refill_lane() {
  const std::lock_guard lock(control_);
  return refill_lane_.get();
}

int VolumeEngine::close(uint64_t timeout_ns) {
  const std::lock_guard closing(closing_);
  {
    const std::lock_guard lock(control_);
    if (std::exchange(closed_, true)) return stuck_ ? ETIMEDOUT : 0;
  }
  stop_clients();
  const uint64_t deadline = now_ns() + timeout_ns;
  const uint32_t lanes = lane_count();
  for (uint32_t i = 0; i < lanes; i++) lanes_[i]->stop(deadline);
  if (refill_lane_ != nullptr) refill_lane_->stop(deadline);
  for (uint32_t i = 0; i < lanes; i++) stuck_ |= !lanes_[i]->join(deadline + kJoinSlack);
  if (refill_lane_ != nullptr) stuck_ |= !refill_lane_->join(deadline + kJoinSlack);
  // A lane that was ended by its deadline may have left anything.
  bool rests = !stuck_ && (refill_lane_ == nullptr || refill_lane_->ended_at_rest());
  for (uint32_t i = 0; i < lanes && rests; i++) rests = lanes_[i]->ended_at_rest();
  if (backup_ != nullptr && !stuck_) stuck_ |= !backup_->stop(deadline + kJoinSlack, rests);
  stop_events();  // the last ones go out here
  if (stuck_) return ETIMEDOUT;
  if (rests) volume_.check_rest();
  for (uint32_t i = 0; i < lanes; i++) lanes_[i]->drop_resources();
  if (refill_lane_ != nullptr) refill_lane_->drop_resources();
  volume_.unlock_files();
  if (backup_ != nullptr) backup_->unlock_files();
  // Now, and not when the engine is collected. Control, which alone still wakes anybody, has the lock.
  const std::lock_guard lock(control_);
  for (uint32_t i = 0; i < lanes; i++) lanes_[i]->close_descriptor();
  if (refill_lane_ != nullptr) refill_lane_->close_descriptor();
  close_descriptors();
  return 0;
}

// ---- on the thread of events ----

void VolumeEngine::handle_events() {
  std::vector<Event> events;
  {
    const std::lock_guard lock(control_);
    if (tell_failures(events)) wake_lanes();  // those that sleep; the others see it by themselves
    for (uint32_t i = 0; i < lane_count(); i++) lanes_[i]->take_events(events);
    if (refill_lane_ != nullptr) refill_lane_->take_events(events);
    if (std::string failure; backup_ != nullptr && backup_->take_failure(failure))
      events.push_back(Event::about(Event::Type::backup_failed, kMaxLanes, failure.c_str()));
    for (const Event& event : events)
      if (event.type == Event::Type::slab_refilled || event.type == Event::Type::refill_failed)
        refilling_ = false;
    const uint64_t epoch = volume_.epoch();
    if (acknowledged(epoch)) {
      if (std::exchange(told_epoch_, epoch) != epoch) {
        Event event = Event::about(Event::Type::synchronized, kMaxLanes, "");
        event.epoch = epoch;
        events.push_back(event);
      }
      if (raise_again_) raise_epoch();
    }
  }
  for (const Event& event : events) sink_(event);
}

// Servers that have failed are state of the volume, which is checked whenever control wakes up: so no failure
// is missed, whatever else happens. They are reported in the order in which they failed.
bool VolumeEngine::tell_failures(std::vector<Event>& events) {
  if (volume_.failures() == told_failure_count_) return false;
  for (const uint32_t server : volume_.failed_in_order()) {
    Volume::Failure failure;
    // A lane that has found a failure and not published it yet will wake control when it has.
    if (told_failures_[server] || !volume_.failure(server, failure)) continue;
    told_failures_[server] = true;
    told_failure_count_++;
    events.push_back(Event::about(Event::Type::server_failed, failure.lane, failure.reason.data(), server));
  }
  return true;
}

// Control's: a lane that sleeps would not look at what changed.
void VolumeEngine::wake_lanes() {
  for (uint32_t i = 0; i < lane_count(); i++) lanes_[i]->wake();
  if (refill_lane_ != nullptr) refill_lane_->wake();
}

}  // namespace rdmakit::volume
