// A volume that NBD clients and the kernel use: the object that the binding holds. All functions may be
// called on any thread, and none of them is on the page path.
//
// engine.cc         exports, listeners, life
// attach_client.cc  what a lane is given to serve
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "accept/acceptor.h"
#include "accept/listener.h"
#include "engine/volume_engine.h"
#include "front/nbd_lane.h"

namespace rdmakit::nbd {

using namespace volume;

// A part of the volume under a name.
struct ExportOptions {
  std::string name = {};         // at most 4096 bytes
  std::string description = {};  // at most 4096 bytes
  uint64_t offset = 0;           // multiples of 4096
  uint64_t size = 0;             // 0: up to the end of the volume
  bool read_only = false;
};

struct EngineOptions : VolumeEngineOptions {
  EngineOptions() { lane_name = "nbd-lane"; }
  std::vector<ExportOptions> exports = {{}};  // at least one; the first is the default one
  uint32_t minimum_block = 1;                 // power of two of at most 4096
  TlsOptions tls;
  AcceptorOptions acceptor;
};

class Engine final : public VolumeEngine, private Acceptor::Host {
 public:
  using Owner = std::unique_ptr<Engine, Closer>;

  // nullptr with `error` (errno value) and `why`.
  static Owner open(const EngineOptions& options, Sink sink, int& error, std::string& why);
  const Acceptor& acceptor() const { return *acceptor_; }

  // The functions below return 0 or an errno value, with `why` where there is more to say.
  // Takes an address, or says why not, before anything is allocated. Clients that connect wait for
  // accept_clients().
  int bind_unix(const std::string& path, std::string& why);
  int bind_tcp(const std::string& host, uint16_t port, std::string& bound_host, uint16_t& bound_port,
               std::string& why);
  void accept_clients();
  int attach_socketpair(uint32_t lane, int& descriptor);
  // Serves the queues of a ublk device, one by each lane, on duplicates of `device` (/dev/ublkcN). EBUSY. All
  // or none.
  int attach_device(std::span<const uint32_t> lanes, int device, std::string& why);
  // A duplicate of a socket in transmission phase, from where another process left it. EBUSY.
  int attach_socket(uint32_t lane, int descriptor, std::string& why);

 private:
  Engine(const EngineOptions& options, Sink sink);
  ~Engine() override = default;
  int make_offer(Offer& offer, std::string& why) const;
  NbdLane& nbd_lane(uint32_t index) { return static_cast<NbdLane&>(*lanes_[index]); }

  void wake() override {
    if (acceptor_ != nullptr) acceptor_->wake();
  }
  std::unique_ptr<Lane> make_serving_lane(uint32_t index, LaneOptions&& options,
                                          std::function<void()> wake_control) override;
  void lane_added() override { acceptor_->wake(); }
  void stop_clients() override;
  void stop_events() override;
  void close_descriptors() override {
    if (acceptor_ != nullptr) acceptor_->close_descriptors();
  }

  NbdLane* reserve_lane() override;
  uint16_t withheld_flags() override;
  void report(const Event& event) override { tell(event); }
  void woken() override { handle_events(); }

  const EngineOptions options_;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<Listener> bound_;  // until accept_clients()
};

}  // namespace rdmakit::nbd
