// A volume whose servers are processes of their own, reached through a provider.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <deque>

#include "../fixture/workers.h"
#include "provider/provider.h"

namespace fixture {

inline constexpr uint64_t kSlab = 1 << 20;
inline constexpr uint32_t kSlabs = 8;
inline constexpr uint32_t kLanes = 2;

// What a server tells whoever connects.
struct Greeting {
  uint64_t address;
  uint32_t key;
};

class Events {
 public:
  void push(CmEvent&& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    arrived_.notify_all();
  }
  CmEvent next(std::chrono::seconds patience = kHang) {
    std::unique_lock lock(mutex_);
    CHECK(arrived_.wait_for(lock, patience, [&] { return !events_.empty(); }));
    CmEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  CmEvent expect(CmEvent::Type type) {
    CmEvent event = next();
    CHECK(event.type == type);
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<CmEvent> events_;
};

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

Provider& provider_of(const std::string& name) { return name == "shm" ? shm_provider() : iwarp_provider(); }

Address address_of(const std::string& text) {
  Address address;
  if (text[0] == '/') {
    sockaddr_un path{};
    path.sun_family = AF_UNIX;
    CHECK(text.size() < sizeof path.sun_path);
    std::memcpy(path.sun_path, text.data(), text.size());
    std::memcpy(&address.storage, &path, address.length = sizeof path);
  } else {
    sockaddr_in loopback{};
    loopback.sin_family = AF_INET;
    loopback.sin_port = htons(static_cast<uint16_t>(std::stoul(text)));
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::memcpy(&address.storage, &loopback, address.length = sizeof loopback);
  }
  return address;
}
inline const sockaddr* generic(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

// ---- a server: memory for all slabs, whoever connects gets the key ----

// Ends with the process that started it: `lifeline` is the other end of a socket that it holds.
inline int serve(const std::string& name, const std::string& where, int lifeline) {
  Provider& provider = provider_of(name);
  ibv_context* context = provider.open_device(name == "shm" ? "shm0" : "iwarp0");
  ibv_pd* pd = provider.alloc_pd(context);
  const size_t bytes = kSlabs * kSlab;
  void* memory = provider.map_memory(bytes, {});
  CHECK(memory != nullptr);
  std::memset(memory, 0xdb, bytes);  // never zeros: a page that was not filled would show
  ibv_mr* mr = provider.reg_mr(pd, memory, bytes,
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
  CHECK(mr != nullptr);
  ibv_cq* cq = provider.create_cq(context, 16, nullptr, nullptr, Progress::automatic);
  Events requests;
  const auto listener = provider.create_id();
  listener->set_sink([&](CmEvent&& event) { requests.push(std::move(event)); });
  const Address address = address_of(where);
  CHECK(listener->listen(generic(address), address.length, 64) == 0);
  const sockaddr_storage bound = listener->local_address();
  const uint16_t port =
      bound.ss_family == AF_INET ? ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port) : 0;
  CHECK(write(lifeline, &port, sizeof port) == sizeof port);
  std::thread([lifeline] {
    uint8_t byte;
    while (read(lifeline, &byte, 1) < 0 && errno == EINTR) {
    }
    _exit(0);
  }).detach();
  const Greeting greeting{reinterpret_cast<uint64_t>(memory), mr->rkey};
  std::vector<std::shared_ptr<ConnectionId>> connections;
  for (;;) {
    CmEvent request = requests.next(std::chrono::hours(1));
    if (request.type != CmEvent::Type::connect_request) continue;
    request.request->set_sink([](CmEvent&&) {});
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.cap = {1, 1, 1, 1, 0};
    ConnectParameters parameters;
    parameters.qp = request.request->create_qp(pd, &attributes);
    parameters.private_data.resize(sizeof greeting);
    std::memcpy(parameters.private_data.data(), &greeting, sizeof greeting);
    CHECK(parameters.qp != nullptr && request.request->accept(parameters) == 0);
    connections.push_back(std::move(request.request));
  }
}

class ServerProcess {
 public:
  ServerProcess(const std::string& name, uint32_t number) {
    where_ =
        name == "shm" ? "/tmp/nbd-replica-" + std::to_string(getpid()) + "-" + std::to_string(number) : "0";
    // Close on exec: a server started later must not hold the others' lifelines.
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    lifeline_.reset(ends[0]);
    const UniqueFd theirs(ends[1]);
    pid_ = fork();
    CHECK(pid_ >= 0);
    if (pid_ == 0) {
      const int inherited = dup(theirs.get());
      execl("/proc/self/exe", "server", stress::running(), "--serve", name.c_str(), where_.c_str(),
            std::to_string(inherited).c_str(), nullptr);
      _exit(127);
    }
    uint16_t port = 0;
    CHECK(read(lifeline_.get(), &port, sizeof port) == sizeof port);
    if (name != "shm") where_ = std::to_string(port);
  }
  ServerProcess(const ServerProcess&) = delete;
  ~ServerProcess() {
    end();
    if (where_[0] == '/') unlink(where_.c_str());
  }
  void end() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    CHECK(waitpid(pid_, nullptr, 0) == pid_);
    pid_ = 0;
  }
  const std::string& where() const { return where_; }

 private:
  std::string where_;
  UniqueFd lifeline_;
  pid_t pid_ = 0;
};

// ---- the client ----

// A provider's object in a handle, as the addon of verbs makes it.
struct Wrapped : Handle {
  static Handle* make(HandleKind kind, void* object, const DataPathVerbs* verbs, std::function<void()> end) {
    auto* made = std::make_unique<Wrapped>().release();
    made->abi = kHandleAbi;
    made->kind = kind;
    made->object = object;
    made->verbs = verbs;
    made->capabilities = made->max_inline_data = 0;
    made->end = std::move(end);
    made->retain = [](Handle* self) { static_cast<Wrapped*>(self)->references++; };
    made->release = [](Handle* self) {
      auto* wrapped = static_cast<Wrapped*>(self);
      if (--wrapped->references > 0) return;
      const std::unique_ptr<Wrapped> last(wrapped);
      last->end();
    };
    return made;
  }
  std::function<void()> end;
  std::atomic<int> references{0};
};

class ProcessVolume {
 public:
  ProcessVolume(const std::string& name, uint32_t servers, Acknowledge acknowledge)
      : name_(name), provider_(provider_of(name)) {
    context_ = provider_.open_device(name == "shm" ? "shm0" : "iwarp0");
    pd_ = provider_.alloc_pd(context_);
    VolumeEngineOptions options;
    options.volume.size = kSlabs * kSlab;
    options.volume.slab_size = kSlab;
    options.acknowledge = acknowledge;
#if defined(__SANITIZE_THREAD__)
    // Nothing orders what is read ahead with the WRITEs that make it void (docs/page-service/read-ahead.md).
    // Over shm a server's memory is mapped here, so TSan takes these for accesses of one process.
    if (name == "shm") options.read_ahead = 0;
#endif
    int error = 0;
    std::string why;
    engine_ = InProcessEngine::open(
        options, [this](const Event& event) { record(event); }, error, why);
    CHECK(engine_ != nullptr);
    for (uint32_t i = 0; i <= kLanes; i++) add_lane(i == kLanes);
    for (uint32_t i = 0; i < servers; i++) add_server();
    for (uint32_t slab = 0; slab < kSlabs; slab++) {
      const std::array<Replica, 2> places{replica(slab, slab % servers), replica(slab, (slab + 1) % servers)};
      CHECK(engine_->volume().map_slab(slab, places) == 0);
    }
  }
  ~ProcessVolume() {
    engine_.reset();
    lanes_.clear();
    for (auto& [arena, mr] : arenas_) munmap(arena, kArena);
    CHECK(provider_.dealloc_pd(pd_) == 0);
  }

  // A new server process, known to all lanes. Gives its index.
  uint32_t add_server() {
    const auto index = static_cast<uint32_t>(servers_.size());
    servers_.push_back(std::make_unique<ServerProcess>(name_, index));
    std::string why;
    for (uint32_t i = 0; i <= kLanes; i++) {
      const QpRef qp = connect(lanes_[i], *servers_.back());
      const int error = engine_->connect_server(i == kLanes ? kRefillLane : i, index, qp, MrRef(), why);
      if (error != 0) std::fprintf(stderr, "connect_server: %s\n", why.c_str());
      CHECK(error == 0);
    }
    const uint64_t epoch = engine_->synchronize();
    wait_until(
        [=](const Event& event) { return event.type == Event::Type::synchronized && event.epoch >= epoch; });
    greetings_.push_back(last_greeting_);
    return index;
  }
  Replica replica(uint32_t slab, uint32_t server) const {
    return {greetings_[server].address + slab * kSlab, greetings_[server].key, static_cast<uint16_t>(server),
            true};
  }
  // Kills the server and waits until the engine knows.
  void kill(uint32_t server) {
    servers_[server]->end();
    wait_until([=](const Event& event) {
      return event.type == Event::Type::server_failed && event.server == server;
    });
  }
  // Everything that was on `from` is filled on `to`.
  void repair(uint32_t from, uint32_t to) {
    Volume& slabs = engine_->volume();
    for (uint32_t slab = 0; slab < kSlabs; slab++) {
      Volume::Dropped dropped;
      const int error = slabs.drop_replica(slab, from, false, dropped);
      if (error == ENOENT) continue;
      CHECK(error == 0 && dropped.live_left == 1);
      CHECK(slabs.add_replica(slab, replica(slab, to)) == 0);
      std::string why;
      CHECK(engine_->refill(slab, to, why) == 0);
      wait_until([=](const Event& event) {
        return event.type == Event::Type::slab_refilled && event.slab == slab && event.server == to;
      });
    }
  }
  std::vector<InProcess::Attachment> attach() {
    std::vector<InProcess::Attachment> attachments(kLanes);
    for (uint32_t i = 0; i < kLanes; i++) {
      uint8_t* const memory = static_cast<uint8_t*>(arenas_[i].first) + Arena::kBytes;
      CHECK(InProcess::attach(*engine_, i, memory, attachments[i]) == 0);
    }
    return attachments;
  }
  InProcessEngine& engine() { return *engine_; }

 private:
  static constexpr size_t kArena = Arena::kBytes + InProcess::kClientBytes;

  struct LaneObjects {
    CqRef cq;
    ChannelRef channel;
  };

  void record(const Event& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
    arrived_.notify_all();
  }
  void wait_until(const std::function<bool(const Event&)>& wanted) {
    std::unique_lock lock(mutex_);
    CHECK(
        arrived_.wait_for(lock, kHang, [&] { return std::any_of(events_.begin(), events_.end(), wanted); }));
  }

  void add_lane(bool refills) {
    const DataPathVerbs* verbs = provider_.data_path_verbs();
    void* arena = mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ibv_mr* mr = provider_.reg_mr(pd_, arena, kArena, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr != nullptr);
    arenas_.push_back({arena, mr});
    ibv_comp_channel* channel = provider_.create_comp_channel(context_);
    LaneObjects made;
    made.channel = ChannelRef(Wrapped::make(HandleKind::completion_channel, channel, verbs, [this, channel] {
      CHECK(provider_.destroy_comp_channel(channel) == 0);
    }));
    ibv_cq* cq = provider_.create_cq(context_, static_cast<int>(lane_requirements().completion_queue_entries),
                                     nullptr, channel, Progress::manual);
    CHECK(cq != nullptr);
    made.cq = CqRef(Wrapped::make(HandleKind::completion_queue, cq, verbs, [this, cq, holds = made.channel] {
      CHECK(provider_.destroy_cq(cq) == 0);
    }));
    LaneResources resources;
    resources.cq = made.cq;
    resources.channel = made.channel;
    resources.memory_regions.push_back(MrRef(Wrapped::make(
        HandleKind::memory_region, mr, verbs, [this, mr] { CHECK(provider_.dereg_mr(mr) == 0); })));
    uint32_t index = 0;
    std::vector<std::string> warnings;
    std::string why;
    CHECK((refills ? engine_->add_refill_lane(std::move(resources), warnings, why)
                   : engine_->add_lane(std::move(resources), index, warnings, why)) == 0);
    lanes_.push_back(std::move(made));
  }

  QpRef connect(const LaneObjects& lane, const ServerProcess& server) {
    const auto events = std::make_shared<Events>();
    const auto id = provider_.create_id();
    id->set_sink([events](CmEvent&& event) { events->push(std::move(event)); });
    const Address address = address_of(server.where());
    CHECK(id->resolve(generic(address), address.length, kHangMs) == 0);
    events->expect(CmEvent::Type::route_resolved);
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = attributes.recv_cq = lane.cq.get();
    attributes.cap = {lane_requirements().send_queue_depth, 1, 1, 1, 0};
    ConnectParameters parameters;
    ibv_qp* qp = parameters.qp = id->create_qp(pd_, &attributes);
    CHECK(qp != nullptr && id->connect(parameters) == 0);
    const std::vector<uint8_t> told = events->expect(CmEvent::Type::established).private_data;
    CHECK(told.size() >= sizeof last_greeting_);
    std::memcpy(&last_greeting_, told.data(), sizeof last_greeting_);
    return QpRef(Wrapped::make(HandleKind::queue_pair, qp, provider_.data_path_verbs(),
                               [this, qp, id, holds = lane.cq] {
                                 CHECK(provider_.destroy_qp(qp) == 0);
                                 id->close();
                               }));
  }

  const std::string name_;
  Provider& provider_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::vector<Greeting> greetings_;
  Greeting last_greeting_{};
  std::vector<std::pair<void*, ibv_mr*>> arenas_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Event> events_;
  std::vector<LaneObjects> lanes_;
  InProcessEngine::Owner engine_;
};

}  // namespace fixture
