// What the tests of the block engine share: checks, an engine on memory devices, and NBD clients.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../stress.h"
#include "export/engine.h"
#include "memory_device.h"

namespace fixture {

using namespace rdmakit;
using namespace rdmakit::nbd;
using namespace rdmakit::volume;
using memory_device::Behaviour;
using memory_device::Server;

// In nanoseconds: a time-out that never comes within a test.
inline constexpr uint64_t kNever = uint64_t{3'600} * 1'000'000'000;
// Of close(), which returns as soon as it may.
inline constexpr uint64_t kCloseTime = uint64_t{60} * 1'000'000'000;

// A path that no other test uses.
inline std::string fresh_path(const std::string& start) {
  static std::atomic<int> next{0};
  return start + "." + std::to_string(getpid()) + "." + std::to_string(next++);
}

struct Shape {
  uint64_t size = 32 << 20;
  uint64_t slab_size = 1 << 20;
  uint32_t servers = 2;
  uint32_t lanes = 1;
  uint32_t replicas = 1;
  bool refill_lane = false;
  bool roomy = false;  // each server has room for every slab, as with replicas
  bool thin = false;   // nothing is mapped at the start
  Behaviour behaviour;
  bool fenced = false;  // the device calls itself iWARP (behaviour.iwarp implies it)
  EngineOptions options;
};

// Slab i is at server i % servers, and its replicas are at the following ones.
class TestVolume {
 public:
  explicit TestVolume(const Shape& given) : shape(given), device_(given.fenced || given.behaviour.iwarp) {
    shape.options.volume.size = shape.size;
    shape.options.volume.slab_size = shape.slab_size;
    shape.options.volume.thin = shape.thin;
    const uint64_t slabs = (shape.size + shape.slab_size - 1) / shape.slab_size;
    const uint64_t each =
        (shape.replicas > 1 || shape.roomy ? slabs : (slabs + shape.servers - 1) / shape.servers) *
        shape.slab_size;
    for (uint32_t i = 0; i < shape.servers; i++)
      servers.push_back(std::make_unique<Server>(each, 0x1000 + i));
    int error = 0;
    std::string why;
    engine = Engine::open(
        shape.options, [this](const Event& event) { record(event); }, error, why);
    if (engine == nullptr) std::fprintf(stderr, "%s\n", why.c_str());
    CHECK(engine != nullptr);
    for (uint32_t slab = 0; slab < slabs && !shape.thin; slab++) {
      std::vector<Replica> replicas;
      for (uint32_t i = 0; i < shape.replicas; i++)
        replicas.push_back(replica(slab, (slab + i) % shape.servers));
      CHECK(engine->volume().map_slab(slab, replicas) == 0);
    }
    for (uint32_t i = 0; i < shape.lanes; i++) add_lane();
    if (shape.refill_lane) add_lane(true);
  }
  TestVolume(const TestVolume&) = delete;
  TestVolume& operator=(const TestVolume&) = delete;
  ~TestVolume() {
    engine.reset();
    for (void* arena : arenas_) munmap(arena, Arena::kBytes);
  }

  // Where that server holds the slab.
  Replica replica(uint32_t slab, uint32_t server) const {
    const uint64_t place = shape.replicas > 1 || shape.roomy ? slab : slab / shape.servers;
    return {servers[server]->address() + place * shape.slab_size, servers[server]->key(),
            static_cast<uint16_t>(server), true};
  }

  void add_lane(bool refills = false) {
    void* arena = mmap(nullptr, Arena::kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    arenas_.push_back(arena);
    LaneResources resources;
    resources.channel = device_.channel();
    resources.cq = device_.queue(resources.channel);
    for (auto& server : servers)
      resources.queue_pairs.push_back(device_.queue_pair(resources.cq, *server, shape.behaviour));
    resources.memory_regions.push_back(device_.region(arena, Arena::kBytes));
    queues_.emplace_back(refills ? kRefillLane : static_cast<uint32_t>(queues_.size()), resources.cq);
    uint32_t index;
    std::vector<std::string> warnings;
    std::string why;
    const int error = refills ? engine->add_refill_lane(std::move(resources), warnings, why)
                              : engine->add_lane(std::move(resources), index, warnings, why);
    if (error != 0) std::fprintf(stderr, "add_lane: %s\n", why.c_str());
    CHECK(error == 0);
  }

  // That server takes part under one more index, from all lanes.
  void connect(Server& server, uint32_t index) {
    std::string why;
    for (const auto& queue : queues_) {
      const QpRef qp = device_.queue_pair(queue.second, server, shape.behaviour);
      int error = 0;
      await([&] {  // its mailbox may be full
        error = engine->connect_server(queue.first, index, qp, MrRef(), why);
        return error != EAGAIN;
      });
      CHECK(error == 0);
    }
    synchronize();
  }

  // That server has failed, and nothing names it: its index is free.
  void release(uint32_t server) {
    std::string why;
    await([&] {  // a mailbox may be full, and control may not have heard of it
      const int error = engine->disconnect_server(server, why);
      CHECK(error == 0 || error == EAGAIN || why == "its failure was not told yet", "%s", why.c_str());
      return error == 0;
    });
    synchronize();
    const int error = engine->release_server(server, why);
    CHECK(error == 0, "%s", why.c_str());
  }

  // Nothing that began before is left.
  void synchronize() {
    const uint64_t epoch = engine->synchronize();
    wait_until(
        [=](const Event& event) { return event.type == Event::Type::synchronized && event.epoch >= epoch; });
  }

  // Drops a replica as control does: one of a healthy server is retired first.
  int drop(uint32_t slab, uint32_t server, Volume::Dropped& dropped) {
    Volume& volume = engine->volume();
    if (!volume.failed(server)) {
      if (const int error = volume.retire_replica(slab, server); error != 0) return error;
      synchronize();
    }
    return volume.drop_replica(slab, server, false, dropped);
  }

  // That of a lane that has looked for completions.
  pid_t lane_thread(uint32_t lane) const {
    return static_cast<memory_device::CompletionQueue*>(queues_[lane].second.get())->poller;
  }

  memory_device::CompletionQueue& queue(uint32_t lane) {
    return *static_cast<memory_device::CompletionQueue*>(queues_[lane].second.get());
  }
  memory_device::Channel& channel(uint32_t lane) {
    return *static_cast<memory_device::Channel*>(queue(lane).channel);
  }

  // A server does from now on what it did not: lanes that sleep look.
  void set_mode(uint32_t server, Server::Mode mode) {
    servers[server]->set_mode(mode);
    for (const auto& [lane, cq] : queues_) static_cast<memory_device::CompletionQueue*>(cq.get())->look();
  }

  // The client's end of a new connection. Waits for the lane to be free.
  int attach(uint32_t lane) {
    int fd = -1;
    await([&] {
      const int error = engine->attach_socketpair(lane, fd);
      CHECK(error == 0 || error == EBUSY);
      return error == 0;
    });
    return fd;
  }

  // Until it is unlocked control hears of nothing.
  std::unique_lock<std::mutex> deafen() { return std::unique_lock(deaf_); }
  void record(const Event& event) {
    { const std::lock_guard hears(deaf_); }
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
    arrived_.notify_all();
  }
  // Waits for an event of this type (also one that came before).
  Event wait_for(Event::Type type) {
    return wait_until([type](const Event& event) { return event.type == type; });
  }
  // Waits until `wanted` holds for one of the events.
  Event wait_until(const std::function<bool(const Event&)>& wanted) {
    std::unique_lock lock(mutex_);
    Event found;
    CHECK(arrived_.wait_for(lock, kHang, [&] {
      const auto first = std::find_if(events_.begin(), events_.end(), wanted);
      if (first == events_.end()) return false;
      found = *first;
      return true;
    }));
    return found;
  }
  // Waits until so many events of this type have come.
  void wait_for_count(Event::Type type, size_t count) {
    std::unique_lock lock(mutex_);
    CHECK(arrived_.wait_for(lock, kHang, [&] {
      const auto is = [type](const Event& event) { return event.type == type; };
      return static_cast<size_t>(std::count_if(events_.begin(), events_.end(), is)) >= count;
    }));
  }
  size_t count(Event::Type type) {
    return count_if([type](const Event& event) { return event.type == type; });
  }
  size_t count_if(const std::function<bool(const Event&)>& wanted) {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::count_if(events_.begin(), events_.end(), wanted));
  }

  // What a test that is about to fail may owe it to.
  void print_failures() {
    const std::lock_guard lock(mutex_);
    for (const Event& event : events_)
      if (event.reason[0] != '\0')
        std::fprintf(stderr, "lane %u, server %u, slab %u: event %d: %s\n", event.lane, event.server,
                     event.slab, static_cast<int>(event.type), event.reason.data());
  }

  Shape shape;
  std::vector<std::unique_ptr<Server>> servers;
  Engine::Owner engine;

 private:
  memory_device::Device device_;
  std::vector<std::pair<uint32_t, CqRef>> queues_;  // by lane
  std::vector<void*> arenas_;
  std::mutex mutex_;
  std::mutex deaf_;
  std::condition_variable arrived_;
  std::vector<Event> events_;
};

inline bool read_all(int fd, void* memory, size_t length) {
  auto* to = static_cast<uint8_t*>(memory);
  while (length > 0) {
    const ssize_t bytes = recv(fd, to, length, 0);
    if (bytes <= 0) return false;
    to += bytes;
    length -= static_cast<size_t>(bytes);
  }
  return true;
}

inline bool write_all(int fd, const void* memory, size_t length) {
  const auto* from = static_cast<const uint8_t*>(memory);
  while (length > 0) {
    const ssize_t bytes = send(fd, from, length, MSG_NOSIGNAL);
    if (bytes <= 0) return false;
    from += bytes;
    length -= static_cast<size_t>(bytes);
  }
  return true;
}

inline RequestHeader header(uint16_t command, uint64_t cookie, uint64_t offset, uint32_t length,
                            uint16_t flags = 0) {
  RequestHeader made;
  made.magic = kRequestMagic;
  made.flags = flags;
  made.type = command;
  made.cookie = cookie;
  made.offset = offset;
  made.length = length;
  return made;
}

// A client in transmission phase that many threads may use at once. Errors: an ErrorCode, or kGone.
inline constexpr uint32_t kGone = 0xffffffff;

class Client {
 public:
  explicit Client(int fd) : fd_(fd), reader_([this] { read_replies(); }) {}
  ~Client() {
    shutdown(fd_, SHUT_RDWR);
    reader_.join();
    close(fd_);
  }
  uint32_t read(uint64_t offset, uint8_t* data, uint32_t length) {
    return call(kCmdRead, offset, length, data, nullptr);
  }
  uint32_t write(uint64_t offset, const uint8_t* data, uint32_t length, uint16_t flags = 0) {
    return call(kCmdWrite, offset, length, nullptr, data, flags);
  }
  uint32_t call(uint16_t command, uint64_t offset, uint32_t length, uint8_t* in = nullptr,
                const uint8_t* out = nullptr, uint16_t flags = 0) {
    Pending pending{in, length};
    uint64_t cookie;
    {
      const std::lock_guard lock(mutex_);
      if (gone_) return kGone;
      cookie = ++cookies_;
      pending_[cookie] = &pending;
    }
    {
      const std::lock_guard lock(sending_);
      const RequestHeader request = header(command, cookie, offset, length, flags);
      // Both may fail: the reader finds out.
      if (write_all(fd_, &request, sizeof request) && out != nullptr) write_all(fd_, out, length);
    }
    std::unique_lock lock(mutex_);
    answered_.wait(lock, [&] { return pending.done; });
    return pending.error;
  }
  int fd() const { return fd_; }

 private:
  struct Pending {
    uint8_t* data;
    uint32_t length;
    uint32_t error = kGone;
    bool done = false;
  };
  void read_replies() {
    SimpleReply reply;
    while (read_all(fd_, &reply, sizeof reply)) {
      CHECK(reply.magic == kSimpleReplyMagic);
      Pending* pending;
      {
        const std::lock_guard lock(mutex_);
        const auto found = pending_.find(reply.cookie);
        CHECK(found != pending_.end());
        pending = found->second;
        pending_.erase(found);
      }
      if (reply.error == kOk && pending->data != nullptr && !read_all(fd_, pending->data, pending->length)) {
        const std::lock_guard lock(mutex_);
        pending->done = true;  // with kGone
        answered_.notify_all();
        break;
      }
      const std::lock_guard lock(mutex_);
      pending->error = reply.error;
      pending->done = true;
      answered_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    gone_ = true;
    for (auto& [cookie, pending] : pending_) pending->done = true;
    pending_.clear();
    answered_.notify_all();
  }

  const int fd_;
  std::mutex mutex_;
  std::mutex sending_;
  std::condition_variable answered_;
  std::map<uint64_t, Pending*> pending_;
  uint64_t cookies_ = 0;
  bool gone_ = false;
  std::thread reader_;
};

}  // namespace fixture
