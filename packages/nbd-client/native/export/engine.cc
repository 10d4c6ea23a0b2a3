#include "export/engine.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "export/whole_export.h"
#include "system/error_reason.h"

namespace rdmakit::nbd {

using namespace volume;

namespace {

// What a lane's answers may take in its end of the socket: a large READ in one go. The kernel doubles either
// number (socket(7), SO_SNDBUF).
constexpr int kAnswerRoom = 4 << 20;
// What the kernel's requests may take in the other end: some WRITEs of its size. With more room it sends
// pages as fast as it evicts them, in more and smaller requests, as those that wait in its queue are what it
// merges.
constexpr int kRequestRoom = 208 << 10;
// nbdcopy opens 4 connections to an export that says CAN_MULTI_CONN and fails when one is refused.
constexpr uint32_t kMultiConnectionLanes = 4;
// join() gives lanes this much more than stop(): for the flushes.
constexpr uint64_t kJoinSlack = 1'500 * kMillisecond;

// Root may pass the system's limit; others get what it allows.
void set_send_buffer(const UniqueFd& socket, int bytes) {
  if (setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
    setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

}  // namespace

Engine::Engine(const EngineOptions& options, Sink sink) : options_(options), sink_(std::move(sink)) {}

void Engine::Closer::operator()(Engine* engine) const {
  engine->close(0);
  if (!engine->stuck_) delete engine;
}

Engine::Owner Engine::open(const EngineOptions& options, Sink sink, int& error, std::string& why) {
  Owner engine(new Engine(options, std::move(sink)));
  error = engine->volume_.open(options.volume, why);
  if (error != 0) return nullptr;
  error = engine->open_backup(why);
  if (error != 0) return nullptr;
  Offer offer;
  error = engine->make_offer(offer, why);
  if (error != 0) return nullptr;
  std::unique_ptr<const TlsCredentials> credentials;
  if (options.tls.mode != TlsMode::off) {
    offer.tls = options.tls.mode;
    credentials = TlsCredentials::load(options.tls, why);
    if (credentials == nullptr) {
      error = ENOKEY;
      return nullptr;
    }
  }
  Acceptor::Host& host = *engine;
  engine->acceptor_ =
      std::make_unique<Acceptor>(host, std::move(offer), options.acceptor, std::move(credentials));
  error = engine->acceptor_->start();
  if (error != 0) {
    why = why_no_thread(error);
    return nullptr;
  }
  return engine;
}

int Engine::open_backup(std::string& why) {
  if (options_.backup.path.empty()) {
    if (options_.acknowledge == Acknowledge::backup)
      return refuse(why, EINVAL, "to acknowledge by the backup there must be one");
    return 0;
  }
  if (options_.volume.thin) return refuse(why, EINVAL, "a thin volume has no backup");
  backup_ = std::make_unique<Backup>(options_.backup);
  const auto failed = [this] {
    if (acceptor_ != nullptr) acceptor_->wake();
  };
  const int error = backup_->open(volume_.size(), failed, backup_warnings_, why);
  if (error == 0) volume_.set_backup(backup_.get());
  return error;
}

void Engine::stamp_backup() {
  if (backup_ == nullptr) return;
  uint64_t random = 0;
  // Without it the name is one that others may have: what the map knows of the file is checked besides.
  if (getrandom(&random, sizeof random, 0) != sizeof random) random = now_ns(CLOCK_REALTIME);
  backup_->stamp(random);
}

int Engine::make_offer(Offer& offer, std::string& why) const {
  const Export whole = whole_export(volume_);
  if (options_.exports.empty()) return refuse(why, EINVAL, "at least one export is needed");
  if (options_.read_ahead % kOutputChunk != 0 || options_.read_ahead > ReadAhead::kWindows * kOutputChunk)
    return refuse(why, EINVAL, "a read-ahead is a multiple of 64 KiB of at most 1 MiB");
  if (!std::has_single_bit(options_.minimum_block) || options_.minimum_block > kPage)
    return refuse(why, EINVAL, "the minimum block size is a power of two of at most 4096");
  for (const ExportOptions& each : options_.exports) {
    if (each.name.size() > kMaxString || each.description.size() > kMaxString)
      return refuse(why, EINVAL, "export name and description have at most 4096 bytes");
    if (std::any_of(offer.exports.begin(), offer.exports.end(),
                    [&each](const ExportDescription& other) { return other.name == each.name; }))
      return refuse(why, EINVAL, "two exports have the same name");
    if (each.offset % kPage != 0 || each.size % kPage != 0)
      return refuse(why, EINVAL, "offset and size of an export are multiples of 4096");
    if (each.offset >= whole.size || each.size > whole.size - each.offset)
      return refuse(why, EINVAL, "an export reaches beyond the end of the volume");
    ExportDescription description{each.name, each.description, whole, kPage};
    description.exported.offset = each.offset;
    description.exported.size = each.size == 0 ? whole.size - each.offset : each.size;
    description.exported.minimum_block = std::max(options_.minimum_block, whole.minimum_block);
    if (each.read_only) description.exported.flags |= kFlagReadOnly;
    offer.exports.push_back(std::move(description));
  }
  return 0;
}

int Engine::check_region(const MrRef& region, uint64_t arena, std::string& why) const {
  const auto address = reinterpret_cast<uint64_t>(region->addr);
  if (arena < address || arena + Arena::kBytes > address + region->length)
    return refuse(why, EINVAL, "the memory region does not hold the lane's arena (see laneRequirements)");
  return 0;
}

int Engine::make_lane(uint32_t index, LaneResources&& resources, LaneControl& control,
                      std::unique_ptr<Lane>& lane, std::vector<std::string>& warnings, std::string& why) {
  if (closed_) return refuse(why, ESHUTDOWN, "the engine is closed");
  auto& [cq, channel, queue_pairs, regions] = resources;
  if (!cq) return refuse(why, EINVAL, "a lane needs a completion queue");
  if (!channel && options_.wait_mode != WaitMode::poll)
    return refuse(why, EINVAL, "a lane that sleeps needs a completion channel");
  if (channel && cq->channel != channel.get())
    return refuse(why, EINVAL, "the completion queue belongs to another channel");
  const LaneRequirements needs = lane_requirements();
  if (cq->cqe < static_cast<int>(needs.completion_queue_entries))
    return refuse(why, EINVAL, "the completion queue is too small (see laneRequirements)");
  if (queue_pairs.size() > kMaxServers) return refuse(why, EINVAL, "more than 1024 servers");
  if (regions.empty() || (regions.size() > 1 && regions.size() < queue_pairs.size()))
    return refuse(why, EINVAL, "one memory region is needed, or one for each server");

  control.connected.resize(kMaxServers);
  control.arena = reinterpret_cast<uint64_t>(regions[0]->addr);
  if (regions.size() == 1) control.shared_region = regions[0];
  LaneOptions options;
  for (size_t server = 0; server < queue_pairs.size(); server++) {
    if (!queue_pairs[server]) continue;
    MrRef& region = regions.size() == 1 ? regions[0] : regions[server];
    if (!region) return refuse(why, EINVAL, "a server has a queue pair and no memory region");
    if (const int error = check_region(region, control.arena, why); error != 0) return error;
    if (queue_pairs[server]->send_cq != cq.get())
      return refuse(why, EINVAL, "a queue pair sends to another completion queue");
    if (region->pd != queue_pairs[server]->pd)
      return refuse(why, EINVAL, "a queue pair and its memory region are of different protection domains");
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
    if (options.backup == nullptr) return refuse(why, ENOMEM, "no memory for the backup's queue");
  }
  options.refills = index == kRefillLane;
  options.refill_rate = options_.refill_rate;
  options.read_ahead = options_.read_ahead;

  lane = std::make_unique<Lane>(index, volume_, std::move(options), [this] { acceptor_->wake(); });
  if (const int error = lane->start(warnings); error != 0)
    return refuse(why, error, "the lane could not be started: " + why_no_thread(error));
  return 0;
}

int Engine::add_lane(LaneResources&& resources, uint32_t& index, std::vector<std::string>& warnings,
                     std::string& why) {
  const std::lock_guard lock(control_);
  index = lane_count();
  if (index == kMaxLanes) return refuse(why, ENOSPC, "64 lanes exist");
  LaneControl control;
  std::unique_ptr<Lane> lane;
  if (const int error = make_lane(index, std::move(resources), control, lane, warnings, why); error != 0)
    return error;
  lane_controls_[index] = std::move(control);
  lanes_[index] = std::move(lane);
  lane_count_.store(index + 1, std::memory_order_release);
  acceptor_->wake();  // somebody may be waiting for a lane
  return 0;
}

int Engine::add_refill_lane(LaneResources&& resources, std::vector<std::string>& warnings, std::string& why) {
  const std::lock_guard lock(control_);
  if (refill_lane_ != nullptr) return refuse(why, EEXIST, "there is a refill lane");
  LaneControl control;
  std::unique_ptr<Lane> lane;
  if (const int error = make_lane(kRefillLane, std::move(resources), control, lane, warnings, why);
      error != 0)
    return error;
  refill_control_ = std::move(control);
  refill_lane_ = std::move(lane);
  return 0;
}

int Engine::connect_server(uint32_t lane, uint32_t server, const QpRef& qp, const MrRef& mr,
                           std::string& why) {
  const std::lock_guard lock(control_);
  const bool refills = lane == kRefillLane && refill_lane_ != nullptr;
  if ((!refills && lane >= lane_count()) || server >= kMaxServers)
    return refuse(why, EINVAL, "no such lane or server");
  LaneControl& control = refills ? refill_control_ : lane_controls_[lane];
  Lane& target = refills ? *refill_lane_ : *lanes_[lane];
  if (closed_) return refuse(why, ESHUTDOWN, "the engine is closed");
  if (control.connected[server]) return refuse(why, EEXIST, "the lane has a queue pair for this server");
  if (volume_.failed(server)) return refuse(why, EHOSTDOWN, "this server index has failed; use a new one");
  const MrRef& region = mr ? mr : control.shared_region;
  if (!region) return refuse(why, EINVAL, "a memory region is needed");
  if (const int error = check_region(region, control.arena, why); error != 0) return error;
  if (region->pd != qp->pd)
    return refuse(why, EINVAL, "the queue pair and the memory region are of different protection domains");
  const int error = target.connect(server, qp, region);
  if (error != 0) return refuse(why, error, "the lane does not keep up with its commands");
  control.connected[server] = true;
  return 0;
}

int Engine::fail_server(uint32_t server, const std::string& reason) {
  if (server >= kMaxServers) return EINVAL;
  if (!volume_.fail(server, kMaxLanes, reason.c_str())) return 0;
  const std::lock_guard lock(control_);
  wake_lanes();
  acceptor_->wake();
  return 0;
}

int Engine::set_limits(uint32_t server, uint64_t bytes, uint64_t operations) {
  if (server >= kMaxServers) return EINVAL;
  const std::lock_guard lock(control_);
  volume_.pace(server).set(bytes, operations);
  wake_lanes();  // one may sleep until a turn that comes sooner now
  return 0;
}

int Engine::refill(uint32_t slab, uint32_t server, std::string& why) {
  const std::lock_guard lock(control_);
  if (slab >= volume_.slabs() || server >= kMaxServers) return refuse(why, EINVAL, "no such slab or server");
  if (closed_) return refuse(why, ESHUTDOWN, "the engine is closed");
  if (refill_lane_ == nullptr) return refuse(why, ENOTCONN, "there is no refill lane");
  if (refilling_) return refuse(why, EBUSY, "another slab is being refilled");
  const int error = refill_lane_->refill(slab, server);
  refilling_ = error == 0;
  refilled_server_ = server;
  return error;
}

int Engine::add_spare(uint32_t id, std::span<const Replica> replicas) {
  const int error = volume_.add_spare(id, replicas);
  const std::lock_guard lock(control_);
  if (error == 0) wake_lanes();
  return error;
}

void Engine::set_exhausted() {
  volume_.set_exhausted();
  const std::lock_guard lock(control_);
  wake_lanes();
}

uint64_t Engine::synchronize() {
  const std::lock_guard lock(control_);
  const uint64_t epoch = volume_.epoch();
  if (acknowledged(epoch)) {
    raise_epoch();
  } else {
    raise_again_ = true;
  }
  return epoch + 1;
}

bool Engine::acknowledged(uint64_t epoch) const {
  const auto done = [epoch](const Lane& lane) {
    return lane.acknowledged_epoch() == epoch || lane.state() == Lane::State::stopped;
  };
  for (uint32_t i = 0; i < lane_count(); i++) {
    if (!done(*lanes_[i])) return false;
  }
  return refill_lane_ == nullptr || done(*refill_lane_);
}

void Engine::raise_epoch() {
  raise_again_ = false;
  volume_.raise_epoch();
  wake_lanes();
  acceptor_->wake();  // without lanes nobody else would
}

const Lane* Engine::refill_lane() {
  const std::lock_guard lock(control_);
  return refill_lane_.get();
}

int Engine::bind_unix(const std::string& path, std::string& why) {
  Listener listener;
  if (const int error = listener.open_unix(path, why); error != 0) return error;
  const std::lock_guard lock(control_);
  if (closed_) return ESHUTDOWN;
  bound_.push_back(std::move(listener));
  return 0;
}

int Engine::bind_tcp(const std::string& host, uint16_t port, std::string& bound_host, uint16_t& bound_port,
                     std::string& why) {
  Listener listener;
  if (const int error = listener.open_tcp(host, port, why); error != 0) return error;
  bound_host = listener.host();
  bound_port = listener.port();
  const std::lock_guard lock(control_);
  if (closed_) return ESHUTDOWN;
  bound_.push_back(std::move(listener));
  return 0;
}

void Engine::accept_clients() {
  const std::lock_guard lock(control_);
  for (Listener& listener : bound_) acceptor_->add(std::move(listener));
  bound_.clear();
}

int Engine::listen_unix(const std::string& path, std::string& why) {
  const int error = bind_unix(path, why);
  if (error == 0) accept_clients();
  return error;
}

int Engine::listen_tcp(const std::string& host, uint16_t port, std::string& bound_host, uint16_t& bound_port,
                       std::string& why) {
  const int error = bind_tcp(host, port, bound_host, bound_port, why);
  if (error == 0) accept_clients();
  return error;
}

int Engine::pin_lane(uint32_t lane, const std::vector<uint32_t>& processors) {
  const std::lock_guard lock(control_);
  if (lane >= lane_count()) return EINVAL;
  if (closed_) return ESHUTDOWN;
  return lanes_[lane]->pin(processors);
}

int Engine::attach_socketpair(uint32_t lane, int& descriptor) {
  const std::lock_guard lock(control_);
  if (lane >= lane_count()) return EINVAL;
  if (closed_) return ESHUTDOWN;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return errno;
  UniqueFd ours(pair[0]);
  UniqueFd theirs(pair[1]);
  set_send_buffer(ours, kAnswerRoom);
  set_send_buffer(theirs, kRequestRoom);
  if (!lanes_[lane]->reserve()) return EBUSY;
  Terms terms;
  terms.exported = whole_export(volume_);
  lanes_[lane]->attach(ours.release(), terms);
  descriptor = theirs.release();
  return 0;
}

int Engine::attach_device(std::span<const uint32_t> lanes, int device, std::string& why) {
  const std::lock_guard lock(control_);
  if (closed_) return ESHUTDOWN;
  // The driver hears of the first queue when nothing can fail any more.
  std::vector<std::unique_ptr<DeviceQueue>> queues;
  for (const uint32_t lane : lanes) {
    if (lane >= lane_count()) return EINVAL;
    UniqueFd own(fcntl(device, F_DUPFD_CLOEXEC, 0));
    if (!own) return errno;
    int error = 0;
    queues.push_back(DeviceQueue::open(std::move(own), static_cast<uint16_t>(queues.size()), error, why));
    if (queues.back() == nullptr) return error;
  }
  for (size_t i = 0; i < lanes.size(); i++) {
    if (lanes_[lanes[i]]->reserve()) continue;
    while (i > 0) lanes_[lanes[--i]]->give_up();
    return refuse(why, EBUSY, "a lane serves another connection");
  }
  Terms terms;
  terms.exported = whole_export(volume_);
  for (size_t i = 0; i < lanes.size(); i++) lanes_[lanes[i]]->attach(std::move(queues[i]), terms);
  return 0;
}

int Engine::close(uint64_t timeout_ns) {
  const std::lock_guard closing(closing_);
  {
    const std::lock_guard lock(control_);
    if (std::exchange(closed_, true)) return stuck_ ? ETIMEDOUT : 0;
    bound_.clear();
  }
  if (acceptor_ != nullptr) acceptor_->stop_accepting();
  const uint64_t deadline = now_ns() + timeout_ns;
  const uint32_t lanes = lane_count();
  for (uint32_t i = 0; i < lanes; i++) lanes_[i]->stop(deadline);
  if (refill_lane_ != nullptr) refill_lane_->stop(deadline);
  for (uint32_t i = 0; i < lanes; i++) stuck_ |= !lanes_[i]->join(deadline + kJoinSlack);
  if (refill_lane_ != nullptr) stuck_ |= !refill_lane_->join(deadline + kJoinSlack);
  if (backup_ != nullptr && !stuck_) stuck_ |= !backup_->stop(deadline + kJoinSlack);
  if (acceptor_ != nullptr) acceptor_->join();  // the last events go out here
  if (stuck_) return ETIMEDOUT;
  for (uint32_t i = 0; i < lanes; i++) lanes_[i]->drop_resources();
  if (refill_lane_ != nullptr) refill_lane_->drop_resources();
  volume_.unlock_files();
  if (backup_ != nullptr) backup_->unlock_files();
  return 0;
}

// ---- on the acceptor's thread ----

Lane* Engine::reserve_lane() {
  for (uint32_t i = 0; i < lane_count(); i++) {
    if (lanes_[i]->reserve()) return lanes_[i].get();
  }
  return nullptr;
}

// Every lane sees what every other one has answered (RdmaQueue, PageMap), so CAN_MULTI_CONN always holds;
// but it also invites a client to open more connections, and these must be there to be had.
uint16_t Engine::withheld_flags() { return lane_count() >= kMultiConnectionLanes ? 0 : kFlagCanMultiConn; }

void Engine::report(const Event& event) { sink_(event); }

void Engine::woken() {
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

// Servers that have failed are state of the volume, which is looked at whenever anybody wakes control: no
// failure is missed, whatever else happens. In the order in which they failed.
bool Engine::tell_failures(std::vector<Event>& events) {
  if (volume_.failures() == told_failure_count_) return false;
  for (const uint32_t server : volume_.failed_in_order()) {
    Volume::Failure failure;
    // Who has found it and has not said so yet wakes control when it has.
    if (told_failures_[server] || !volume_.failure(server, failure)) continue;
    told_failures_[server] = true;
    told_failure_count_++;
    events.push_back(Event::about(Event::Type::server_failed, failure.lane, failure.reason.data(), server));
  }
  return true;
}

// Control's: a lane that sleeps would not look at what changed.
void Engine::wake_lanes() {
  for (uint32_t i = 0; i < lane_count(); i++) lanes_[i]->wake();
  if (refill_lane_ != nullptr) refill_lane_->wake();
}

}  // namespace rdmakit::nbd
