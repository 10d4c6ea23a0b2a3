// What the native shm tests share: checks, connected pairs of queue pairs, and a process for the other end.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../stress.h"
#include "provider.h"

namespace fixture {

using namespace rdmakit;

inline Provider& provider() { return shm_provider(); }
inline ibv_context* context() { return provider().open_device("shm0"); }

inline sockaddr_un place(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  CHECK(path.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}
inline const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// A path in the temporary folder that nobody uses.
inline std::string fresh_path() {
  static std::atomic<int> next{0};
  return "/tmp/rdmakit-shm-" + std::to_string(getpid()) + "-" + std::to_string(next++);
}

// The events of one id, in order.
class Events {
 public:
  void push(CmEvent&& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    arrived_.notify_all();
  }
  CmEvent next() {
    std::unique_lock lock(mutex_);
    CHECK(arrived_.wait_for(lock, kHang, [&] { return !events_.empty(); }), "no event comes");
    CmEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  CmEvent expect(CmEvent::Type type) {
    CmEvent event = next();
    if (event.type != type) {
      std::fprintf(stderr, "event %d with status %d, wanted %d\n", static_cast<int>(event.type), event.status,
                   static_cast<int>(type));
      std::abort();
    }
    return event;
  }
  bool empty() {
    const std::lock_guard lock(mutex_);
    return events_.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<CmEvent> events_;
};

// An id with its events.
struct Id {
  std::shared_ptr<ConnectionId> id;
  std::shared_ptr<Events> events = std::make_shared<Events>();

  Id() : Id(provider().create_id()) {}
  explicit Id(std::shared_ptr<ConnectionId> made) : id(std::move(made)) {
    id->set_sink([events = events](CmEvent&& event) { events->push(std::move(event)); });
  }
  Id(Id&&) = default;
  ~Id() {
    if (id != nullptr) id->close();
  }
};

struct Listener : Id {
  std::string path;
  explicit Listener(std::string where = fresh_path()) : path(std::move(where)) {
    const sockaddr_un address = place(path);
    CHECK(id->listen(generic(address), sizeof address, 128) == 0);
  }
  sockaddr_un address() const { return place(path); }
};

struct Options {
  Progress progress = Progress::manual;
  bool channel = false;
  uint32_t depth = 128;
  uint32_t sge = 4;
  uint32_t inline_data = 512;
  ibv_cq* cq = nullptr;  // shared, else one of its own
  ibv_pd* pd = nullptr;  // likewise
  ibv_srq* srq = nullptr;
  bool hostile_peer = false;  // it may say that it is at this end's memory until it is gone
};

// One end: everything from the protection domain to the queue pair.
struct End {
  Id id;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  bool owns_cq = false;
  ibv_qp* qp = nullptr;
  Options options;

  End(Id made, const Options& wanted) : id(std::move(made)), options(wanted) {
    pd = options.pd != nullptr ? options.pd : provider().alloc_pd(context());
    CHECK(pd != nullptr);
    cq = options.cq;
    if (cq == nullptr) {
      if (options.channel) channel = provider().create_comp_channel(context());
      cq = provider().create_cq(context(), static_cast<int>(4 * options.depth), this, channel,
                                options.progress);
      owns_cq = true;
    }
    CHECK(cq != nullptr);
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.srq = options.srq;
    attributes.cap = {options.depth, options.depth, options.sge, options.sge, options.inline_data};
    qp = id.id->create_qp(pd, &attributes);
    CHECK(qp != nullptr);
  }
  End(const End&) = delete;
  ~End() {
    destroy_qp();
    id.id->close();
    if (owns_cq) CHECK(provider().destroy_cq(cq) == 0);
    if (channel != nullptr) CHECK(provider().destroy_comp_channel(channel) == 0);
    if (options.pd == nullptr) CHECK(provider().dealloc_pd(pd) == 0);
  }
  void destroy_qp() {
    if (qp == nullptr) return;
    const int error = provider().destroy_qp(std::exchange(qp, nullptr));
    CHECK(error == 0 || (options.hostile_peer && error == ETIMEDOUT));
  }

  // The next completion, moving data as the progress model asks for.
  ibv_wc completion() {
    const auto deadline = Clock::now() + kHang;
    ibv_wc wc{};
    for (int tries = 0;; tries++) {
      const int count = ibv_poll_cq(cq, 1, &wc);
      CHECK(count >= 0);
      if (count == 1) return wc;
      CHECK(Clock::now() < deadline);
      if (channel != nullptr && tries > 50) {
        CHECK(ibv_req_notify_cq(cq, 0) == 0);
        if (ibv_poll_cq(cq, 1, &wc) == 1) return wc;
        pollfd waiting{channel->fd, POLLIN, 0};
        ::poll(&waiting, 1, 100);
        ibv_cq* ready = nullptr;
        void* ready_context = nullptr;
        if (provider().data_path_verbs()->get_cq_event(channel, &ready, &ready_context) == 0) {
          CHECK(ready == cq && ready_context == this);
          provider().data_path_verbs()->ack_cq_events(ready, 1);
        }
      } else if (tries % 64 == 63) {
        std::this_thread::yield();
      }
    }
  }
  ibv_wc expect(uint64_t wr_id, ibv_wc_status status = IBV_WC_SUCCESS) {
    const ibv_wc wc = completion();
    if (wc.wr_id != wr_id || wc.status != status) {
      std::fprintf(stderr, "completion %llu status %d vendor %x, wanted %llu status %d\n",
                   static_cast<unsigned long long>(wc.wr_id), wc.status, wc.vendor_err,
                   static_cast<unsigned long long>(wr_id), status);
      std::abort();
    }
    return wc;
  }
};

inline constexpr int kAllAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

enum class Kind { shared, plain };

// Registered memory: the provider's own, or the heap's.
struct Memory {
  uint8_t* data;
  size_t size;
  Kind kind;
  ibv_mr* mr;

  Memory(ibv_pd* pd, size_t bytes, int access = kAllAccess, Kind wanted = Kind::shared)
      : size(bytes), kind(wanted) {
    data = static_cast<uint8_t*>(kind == Kind::shared ? provider().map_memory(std::max<size_t>(bytes, 1), {})
                                                      : std::calloc(std::max<size_t>(bytes, 1), 1));
    CHECK(data != nullptr);
    mr = provider().reg_mr(pd, data, bytes, access);
    CHECK(mr != nullptr);
  }
  Memory(const Memory&) = delete;
  ~Memory() {
    deregister();
    if (kind == Kind::shared) {
      provider().unmap_memory(data, size, {});
    } else {
      std::free(data);
    }
  }
  void deregister() {
    if (mr != nullptr) CHECK(provider().dereg_mr(std::exchange(mr, nullptr)) == 0);
  }
  void fill(uint64_t seed) { fill_noise(data, size, seed); }
  uint64_t address(size_t offset = 0) const { return reinterpret_cast<uint64_t>(data) + offset; }
  ibv_sge sge(size_t offset, size_t length) const {
    return {address(offset), static_cast<uint32_t>(length), mr->lkey};
  }
};

inline std::unique_ptr<End> resolve(const std::string& path, const Options& options) {
  Id connecting;
  const sockaddr_un address = place(path);
  CHECK(connecting.id->resolve(generic(address), sizeof address, kHangMs) == 0);
  connecting.events->expect(CmEvent::Type::route_resolved);
  CHECK(connecting.id->context() == context());
  return std::make_unique<End>(std::move(connecting), options);
}

inline void connect(End& end, const std::vector<uint8_t>& greeting = {}) {
  ConnectParameters parameters;
  parameters.qp = end.qp;
  parameters.private_data = greeting;
  CHECK(end.id.id->connect(parameters) == 0);
}
inline void accept(End& end, const std::vector<uint8_t>& greeting = {}) {
  ConnectParameters parameters;
  parameters.qp = end.qp;
  parameters.private_data = greeting;
  CHECK(end.id.id->accept(parameters) == 0);
}

// Two ends in this process, connected over a listener.
struct Pair {
  std::unique_ptr<End> client, server;

  Pair(Listener& listener, const Options& client_options, const Options& server_options,
       const std::vector<uint8_t>& greeting = {}) {
    client = resolve(listener.path, client_options);
    connect(*client, greeting);
    CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
    CHECK(request.private_data == greeting);
    server = std::make_unique<End>(Id(std::move(request.request)), server_options);
    accept(*server, greeting);
    CHECK(client->id.events->expect(CmEvent::Type::established).private_data == greeting);
    server->id.events->expect(CmEvent::Type::established);
  }
};

inline void post_receive(End& end, uint64_t wr_id, ibv_sge sge) {
  ibv_recv_wr request{}, *bad = nullptr;
  request.wr_id = wr_id;
  request.sg_list = &sge;
  request.num_sge = 1;
  CHECK(ibv_post_recv(end.qp, &request, &bad) == 0);
}

struct Send {
  uint64_t wr_id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  int flags = IBV_SEND_SIGNALED;
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;
  uint32_t immediate = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
};
inline int try_post(End& end, const Send& send, std::vector<ibv_sge> sges) {
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = send.wr_id;
  request.opcode = send.opcode;
  request.send_flags = static_cast<unsigned>(send.flags);
  request.imm_data = htonl(send.immediate);
  if (send.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || send.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    request.wr.atomic = {send.remote_address, send.compare_add, send.swap, send.remote_key};
  } else {
    request.wr.rdma.remote_addr = send.remote_address;
    request.wr.rdma.rkey = send.remote_key;
  }
  request.sg_list = sges.data();
  request.num_sge = static_cast<int>(sges.size());
  return ibv_post_send(end.qp, &request, &bad);
}
inline void post(End& end, const Send& send, std::vector<ibv_sge> sges) {
  CHECK(try_post(end, send, sges) == 0);
}

}  // namespace fixture
