#include "in_process_engine.h"

#include <cerrno>
#include <utility>

#include "lane/lane_loop.h"

namespace rdmakit::volume {

template class WorkingLane<ServeRequests<InProcessFront>>;

InProcessEngine::Owner InProcessEngine::open(const VolumeEngineOptions& options, Sink sink, int& error,
                                             std::string& why) {
  Owner engine(new InProcessEngine(options, std::move(sink)));
  error = engine->open_volume(why);
  if (error != 0) return nullptr;
  error = engine->events_.start("vol-events", [self = engine.get()] { self->run(); });
  if (error == 0) return engine;
  why = why_no_thread(error);
  return nullptr;
}

int InProcessEngine::attach(uint32_t lane, std::shared_ptr<InProcessQueue>& queue) {
  const std::lock_guard lock(control_);
  if (const int error = check_lane(lane); error != 0) return error;
  auto client = std::make_unique<std::shared_ptr<InProcessQueue>>(std::make_shared<InProcessQueue>());
  if ((*client)->descriptor() < 0) return EMFILE;
  if (!lanes_[lane]->reserve()) return EBUSY;
  queue = *client;
  static_cast<InProcessLane&>(*lanes_[lane]).attach(std::move(client));
  return 0;
}

std::unique_ptr<Lane> InProcessEngine::make_serving_lane(uint32_t index, LaneOptions&& options,
                                                         std::function<void()> wake_control) {
  return std::make_unique<InProcessLane>(index, volume(), std::move(options), std::move(wake_control));
}

void InProcessEngine::wake() {
  {
    const std::lock_guard lock(mutex_);
    awake_ = true;
  }
  called_.notify_one();
}

void InProcessEngine::stop_events() {
  if (!events_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    awake_ = ends_ = true;
  }
  called_.notify_one();
  events_.join();
}

void InProcessEngine::run() {
  for (bool ends = false; !ends;) {
    {
      std::unique_lock lock(mutex_);
      called_.wait(lock, [this] { return awake_; });
      awake_ = false;
      ends = ends_;
    }
    handle_events();
  }
}

}  // namespace rdmakit::volume
