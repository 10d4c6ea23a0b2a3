#include "export/engine.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "export/whole_export.h"
#include "system/error_reason.h"

namespace rdmakit::nbd {

// nbdcopy opens 4 connections to an export that says CAN_MULTI_CONN and fails when one is refused.
constexpr uint32_t kMultiConnectionLanes = 4;

Engine::Engine(const EngineOptions& options, Sink sink)
    : VolumeEngine(options, std::move(sink)), options_(options) {}

Engine::Owner Engine::open(const EngineOptions& options, Sink sink, int& error, std::string& why) {
  Owner engine(new Engine(options, std::move(sink)));
  error = engine->open_volume(why);
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

int Engine::make_offer(Offer& offer, std::string& why) const {
  const Export whole = whole_export(volume());
  if (options_.exports.empty()) return with_reason(why, EINVAL, "at least one export is needed");
  if (!std::has_single_bit(options_.minimum_block) || options_.minimum_block > kPage)
    return with_reason(why, EINVAL, "the minimum block size is a power of two of at most 4096");
  for (const ExportOptions& each : options_.exports) {
    if (each.name.size() > kMaxString || each.description.size() > kMaxString)
      return with_reason(why, EINVAL, "export name and description have at most 4096 bytes");
    if (std::any_of(offer.exports.begin(), offer.exports.end(),
                    [&each](const ExportDescription& other) { return other.name == each.name; }))
      return with_reason(why, EINVAL, "two exports have the same name");
    if (each.offset % kPage != 0 || each.size % kPage != 0)
      return with_reason(why, EINVAL, "offset and size of an export are multiples of 4096");
    if (each.offset >= whole.size || each.size > whole.size - each.offset)
      return with_reason(why, EINVAL, "an export reaches beyond the end of the volume");
    ExportDescription description{each.name, each.description, whole, kPage};
    description.exported.offset = each.offset;
    description.exported.size = each.size == 0 ? whole.size - each.offset : each.size;
    description.exported.minimum_block = std::max(options_.minimum_block, whole.minimum_block);
    if (each.read_only) description.exported.flags |= kFlagReadOnly;
    offer.exports.push_back(std::move(description));
  }
  return 0;
}

std::unique_ptr<Lane> Engine::make_serving_lane(uint32_t index, LaneOptions&& options,
                                                std::function<void()> wake_control) {
  return std::make_unique<NbdLane>(index, volume(), std::move(options), std::move(wake_control));
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

void Engine::stop_clients() {
  {
    const std::lock_guard lock(control_);
    bound_.clear();
  }
  if (acceptor_ != nullptr) acceptor_->stop_accepting();
}

void Engine::stop_events() {
  if (acceptor_ != nullptr) acceptor_->join();
}

// ---- on the acceptor's thread ----

NbdLane* Engine::reserve_lane() {
  for (uint32_t i = 0; i < lane_count(); i++) {
    if (lanes_[i]->reserve()) return &nbd_lane(i);
  }
  return nullptr;
}

// Every lane sees what every other one has answered (RdmaQueue, PageMap), so CAN_MULTI_CONN always holds;
// but it also invites a client to open more connections, and these must be there to be had.
uint16_t Engine::withheld_flags() { return lane_count() >= kMultiConnectionLanes ? 0 : kFlagCanMultiConn; }

}  // namespace rdmakit::nbd
