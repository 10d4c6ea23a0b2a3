// The RDMA side of a lane, its volume and its servers, without a thread: each step is the test's, and so is
// the time.
#pragma once

#include <optional>

#include "fixture.h"
#include "rdma/arena.h"

namespace fixture {

// A volume of one slab, on the first servers.
class BareQueue final : public OperationListener {
 public:
  enum class Told { acknowledged, succeeded, failed, over, server_failed };

  BareQueue(uint32_t server_count, uint32_t replicas, Backup* backup = nullptr) {
    VolumeOptions options;
    options.size = options.slab_size = kSlab;
    std::string why;
    CHECK(volume.open(options, why) == 0, "%s", why.c_str());
    volume.set_backup(backup);
    BackupPort* const port = backup == nullptr ? nullptr : backup->open_port();
    if (port != nullptr) port->on_wake([] {});
    channel_ = device_.channel();
    const CqRef cq = device_.queue(channel_);
    memory_.resize(Arena::kBytes);
    arena = Arena(memory_.data());
    queue.emplace(volume, statistics, *this, cq, kNever, Acknowledge::all, arena.scratch(), port);
    std::vector<Replica> place;
    for (uint32_t i = 0; i < server_count; i++) {
      servers.push_back(std::make_unique<Server>(kSlab, 0x1000 + i));
      CHECK(queue->connect(i, device_.queue_pair(cq, *servers[i], {}),
                           device_.region(memory_.data(), memory_.size())) == 0);
      if (i < replicas) place.push_back({servers[i]->address(), servers[i]->key(), static_cast<uint16_t>(i)});
    }
    CHECK(volume.map_slab(0, place) == 0);
  }

  // A WRITE of a page begins: it has the page, and is under way.
  void begin_write(uint64_t page, uint8_t byte) {
    CHECK(volume.pages().claim(page, 1, PageState::unset) == 1);
    Operation& write = queue->take(Operation::Kind::write);
    write.offset = page * kPage;
    write.length = kPage;
    write.memory = arena.front_memory();
    std::memset(write.memory, byte, kPage);
    queue->chain_write(write, volume.place(write.offset), 1);
    queue->flush(1);
  }
  // Until nothing is under way.
  void run_out() {
    await([this] {
      queue->poll();
      queue->poll_backup();
      return queue->outstanding() + queue->outstanding_backup() == 0;
    });
  }

  void operation_acknowledged(Operation&) override { told.push_back(Told::acknowledged); }
  void operation_decided(Operation& operation, bool succeeded) override {
    if (catch_up != nullptr) return catch_up->operation_decided(operation, succeeded);
    told.push_back(succeeded ? Told::succeeded : Told::failed);
    volume.settle(operation.first_page(), operation.page_count(), operation.generation,
                  succeeded ? PageState::written : PageState::unset);
  }
  void operation_over(Operation& operation) override {
    if (catch_up != nullptr) return catch_up->operation_over(operation);
    told.push_back(Told::over);
    queue->give_back(operation);
  }
  bool may_move(const Operation&) override { return false; }
  void server_failed(uint32_t server, const char* reason) override {
    told.push_back(Told::server_failed);
    volume.fail(server, 0, reason);
  }
  void page_wrong(const WrongPage&) override {}

  static constexpr uint64_t kSlab = kMinSlab;
  Volume volume;
  std::vector<std::unique_ptr<Server>> servers;
  Arena arena;
  LaneStatistics statistics;
  std::optional<RdmaQueue> queue;
  BackupCatchUp* catch_up = nullptr;  // whose operations they are
  std::vector<Told> told;             // in this order

 private:
  memory_device::Device device_{false};
  ChannelRef channel_;
  std::vector<uint8_t> memory_;
};

}  // namespace fixture
