// A volume served on lanes, whatever their front: the object that a binding holds. All functions may be
// called on any thread, and none of them is on the page path.
//
//   front's engine (derived)   its clients, the thread on which events come out
//        |
//   VolumeEngine               volume_engine.cc   life, lanes, events
//        |                     servers.cc         servers, refills, epochs
//        |                     release_server.cc  an index of a server that failed is given to another one
//   lanes, volume, backup
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backup/backup.h"
#include "lane/event.h"
#include "lane/working_lane.h"
#include "volume/volume.h"

namespace rdmakit::volume {

struct VolumeEngineOptions {
  VolumeOptions volume;
  uint64_t operation_timeout_ns = 4'000'000'000;
  WaitMode wait_mode = WaitMode::adaptive;
  uint64_t max_spin_ns = 100'000;
  bool swap_safe = false;
  Acknowledge acknowledge = Acknowledge::all;
  uint64_t refill_rate = 0;  // bytes per second; 0: no limit
  uint64_t read_ahead =
      256 << 10;  // bytes ahead of a client that reads in order, in units of 64 KiB; 0: none
  BackupOptions backup;
  const char* lane_name = "vol-lane";  // of threads, at most 8 characters
};

// The verbs objects of a lane (see laneRequirements in TypeScript, lane_requirements() here).
struct LaneResources {
  CqRef cq;
  ChannelRef channel;
  std::vector<QpRef> queue_pairs;     // by server index; empty where there is none
  std::vector<MrRef> memory_regions;  // one for all, or one by server index over the same memory
};

class VolumeEngine {
 public:
  // Called on a thread of the engine, one event at a time, not after close() returned.
  using Sink = std::function<void(const Event&)>;

  // Closes the engine and frees it, unless a lane is stuck: then its thread still uses the engine.
  struct Closer {
    void operator()(VolumeEngine* engine) const;
  };

  VolumeEngine(const VolumeEngine&) = delete;
  VolumeEngine& operator=(const VolumeEngine&) = delete;

  Volume& volume() { return volume_; }
  const Volume& volume() const { return volume_; }

  // The functions below return 0 or an errno value, with `why` where there is more to say.
  int add_lane(LaneResources&& resources, uint32_t& index, std::vector<std::string>& warnings,
               std::string& why);
  // The lane that fills replicas; one at most. It reaches the servers that its queue pairs lead to.
  int add_refill_lane(LaneResources&& resources, std::vector<std::string>& warnings, std::string& why);
  // `lane` may be kRefillLane.
  int connect_server(uint32_t lane, uint32_t server, const QpRef& qp, const MrRef& mr, std::string& why);
  int fail_server(uint32_t server, const std::string& reason);
  // The index of a server that has failed is given to another one, in two steps with an epoch between them:
  // after the first no lane has a queue pair of it when synchronize() is over, and after the second
  // connect_server() takes another one under that index. One server at a time. EINVAL; ENOENT: it has not
  // failed; EBUSY: a slab or a spare place names it, or it is being refilled, or control has not heard of its
  // failure, or another server is between the two; EAGAIN: call again.
  int disconnect_server(uint32_t server, std::string& why);
  // Like disconnect_server(), and EBUSY: a lane still has a queue pair of it.
  int release_server(uint32_t server, std::string& why);
  // How fast all lanes together may use a server, per second; 0: no limit. See RateLimiter.
  int set_limits(uint32_t server, uint64_t bytes, uint64_t operations);
  // See Volume::add_spare; lanes that wait for a place continue.
  int add_spare(uint32_t id, std::span<const Replica> replicas);
  // No memory is left at the servers: what waits for a spare place fails, until there is one.
  void set_exhausted();
  // Fills the replica of the slab at that server, which was added by Volume::add_replica, and makes it live.
  // Ends with an event slab_refilled or refill_failed. EINVAL; ENOTCONN: there is no refill lane; EBUSY: one
  // refill at a time.
  int refill(uint32_t slab, uint32_t server, std::string& why);
  // Lets a moment pass on all lanes: gives the epoch of the event `synchronized` (or a later one) after which
  // no operation uses a place that was replaced before this call, and every connect_server() is done.
  uint64_t synchronize();
  // See Lane::pin.
  int pin_lane(uint32_t lane, const std::vector<uint32_t>& processors);
  // The lane finishes the requests that it has begun and gives its client away: event lane_yielded. A client
  // that cannot be given away rests with its lane from then on. EAGAIN: call again.
  int yield_lane(uint32_t lane);
  // A lane that rests, or has not yielded yet, continues. EAGAIN: call again.
  int resume_lane(uint32_t lane);
  // Blocks; a second caller waits for the first. ETIMEDOUT: a lane did not end, or its device kept work
  // requests; see Closer.
  int close(uint64_t timeout_ns);

  uint32_t lane_count() const { return lane_count_.load(std::memory_order_acquire); }
  const Lane& lane(uint32_t index) const { return *lanes_[index]; }
  // nullptr: there is none.
  const RefillLane* refill_lane();
  // nullptr: there is none.
  const Backup* backup() const { return backup_.get(); }
  // See Backup::stamp(). Nothing without a backup.
  void stamp_backup();
  // The backup's warnings since it was opened, each a sentence.
  const std::vector<std::string>& backup_warnings() const { return backup_warnings_; }

 protected:
  VolumeEngine(const VolumeEngineOptions& options, Sink sink);
  virtual ~VolumeEngine() = default;
  // 0 or an errno value with `why`. First.
  int open_volume(std::string& why);

  // ---- the front's ----
  // Has handle_events() called soon, on the one thread on which events come out. Any thread.
  virtual void wake() = 0;
  virtual std::unique_ptr<Lane> make_serving_lane(uint32_t index, LaneOptions&& options,
                                                  std::function<void()> wake_control) = 0;
  // A lane may have become free for a waiting client.
  virtual void lane_added() = 0;
  // close(): no client comes any more. Then the lanes end, and then the thread of events, after the last one.
  virtual void stop_clients() = 0;
  virtual void stop_events() = 0;
  // All threads have ended. Under control_; wake() does nothing from then on.
  virtual void close_descriptors() {}

  void handle_events();
  void tell(const Event& event) { sink_(event); }
  // Under control_: EINVAL, ESHUTDOWN.
  int check_lane(uint32_t lane) const {
    if (lane >= lane_count()) return EINVAL;
    return closed_ ? ESHUTDOWN : 0;
  }

  std::mutex control_;
  std::array<std::unique_ptr<Lane>, kMaxLanes> lanes_;
  bool closed_ = false;

 private:
  struct LaneControl {  // what control knows of a lane, under control_
    std::vector<bool> connected;
    MrRef shared_region;  // when one serves all servers
    uint64_t arena = 0;
  };

  int open_backup(std::string& why);
  int check_region(const MrRef& region, uint64_t arena, std::string& why) const;
  int prepare_lane(LaneResources&& resources, LaneControl& control, LaneOptions& options, std::string& why);
  int start_lane(Lane& lane, std::vector<std::string>& warnings, std::string& why);
  bool acknowledged(uint64_t epoch) const;
  void raise_epoch();
  bool tell_failures(std::vector<Event>& events);
  int releasable(uint32_t server, std::string& why);
  void wake_lanes();

  const VolumeEngineOptions options_;
  const Sink sink_;
  Volume volume_;
  std::unique_ptr<Backup> backup_;  // outlives the lanes
  std::vector<std::string> backup_warnings_;
  std::atomic<uint32_t> lane_count_{0};

  std::mutex closing_;
  std::array<LaneControl, kMaxLanes> lane_controls_;
  std::unique_ptr<RefillLane> refill_lane_;
  LaneControl refill_control_;
  bool refilling_ = false;
  uint32_t refilled_server_ = 0;            // while refilling_
  uint32_t released_server_ = kMaxServers;  // between disconnect_server() and release_server()
  uint64_t released_epoch_ = 0;
  uint64_t told_epoch_ = 0;   // of the last event `synchronized`
  bool raise_again_ = false;  // a caller waits for the epoch after the current one
  std::vector<bool> told_failures_ = std::vector<bool>(kMaxServers);
  uint32_t told_failure_count_ = 0;
  bool stuck_ = false;  // a lane did not end
};

}  // namespace rdmakit::volume
