// A volume that threads of this process use: for tests, and for programs that hold pages themselves.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "engine/volume_engine.h"
#include "in_process_front.h"
#include "rdmakit/thread.h"

namespace rdmakit::volume {

class InProcessEngine final : public VolumeEngine {
 public:
  using Owner = std::unique_ptr<InProcessEngine, Closer>;

  // nullptr with `error` (errno value) and `why`.
  static Owner open(const VolumeEngineOptions& options, Sink sink, int& error, std::string& why);
  // The queue of a caller, which leaves it at its end. 0 or an errno value; EBUSY.
  int attach(uint32_t lane, std::shared_ptr<InProcessQueue>& queue);

 private:
  InProcessEngine(const VolumeEngineOptions& options, Sink sink) : VolumeEngine(options, std::move(sink)) {}
  ~InProcessEngine() override = default;

  void wake() override;
  std::unique_ptr<Lane> make_serving_lane(uint32_t index, LaneOptions&& options,
                                          std::function<void()> wake_control) override;
  void lane_added() override {}
  void stop_clients() override {}
  void stop_events() override;
  void run();

  std::mutex mutex_;
  std::condition_variable called_;
  bool awake_ = false;
  bool ends_ = false;
  Thread events_;
};

}  // namespace rdmakit::volume
