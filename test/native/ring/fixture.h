// The common part of the ring tests: handles over a provider's objects as the verbs addon makes them, and
// pairs of connected queue pairs over iwarp://127.0.0.1, without Node.
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "../stress.h"
#include "provider/provider.h"
#include "ring/polling/poller.h"

namespace ring_test {

using namespace rdmakit;

// One reference-counted object; the last reference destroys it.
struct Counted : Handle {
  std::atomic<int> references{0};
  std::function<void()> destroy;

  static Handle* make(HandleKind kind, void* object, uint32_t capabilities, uint32_t max_inline,
                      std::function<void()> destroy) {
    CHECK(object != nullptr, "kind %u: errno %d", static_cast<unsigned>(kind), errno);
    auto made = std::make_unique<Counted>();
    static_cast<Handle&>(*made) = {kHandleAbi,   kind,       object,     iwarp_provider().data_path_verbs(),
                                   capabilities, max_inline, retain_one, release_one};
    made->destroy = std::move(destroy);
    return made.release();
  }
  static void retain_one(Handle* self) { static_cast<Counted*>(self)->references.fetch_add(1); }
  static void release_one(Handle* self) {
    std::unique_ptr<Counted> counted(static_cast<Counted*>(self));
    if (counted->references.fetch_sub(1) == 1) {
      counted->destroy();
    } else {
      static_cast<void>(counted.release());
    }
  }
};

// Events of one connection id, for a thread that waits for them.
class Events {
 public:
  void push(CmEvent&& event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    some_.notify_one();
  }
  CmEvent next(CmEvent::Type expected) {
    std::unique_lock lock(mutex_);
    CHECK(some_.wait_for(lock, fixture::kHang, [&] { return !events_.empty(); }), "no event %d",
          static_cast<int>(expected));
    CmEvent event = std::move(events_.front());
    events_.pop_front();
    CHECK(event.type == expected, "event %d, status %d, wanted %d", static_cast<int>(event.type),
          event.status, static_cast<int>(expected));
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable some_;
  std::deque<CmEvent> events_;
};

struct Endpoint {
  std::shared_ptr<ConnectionId> id;
  std::shared_ptr<Events> events = std::make_shared<Events>();
  QpRef qp;
  MrRef ring;
  MrRef staging;
  uint32_t number = 0;
};

struct Shape {
  uint32_t log2_capacity = 16;
  uint32_t windows = 1;
  uint32_t receive_depth = 64;
  uint32_t send_depth = 64;
  uint32_t max_inline = 256;
  bool immediate = true;
  ring::Version version = ring::Version::four;

  ring::Windows ring() const { return {log2_capacity, windows}; }
};

// One side: a context's objects and a poller of its own.
class Side {
 public:
  Side(ring::PollerOptions options, int entries) {
    Provider& provider = iwarp_provider();
    context_ = provider.open_device("iwarp");
    if (context_ == nullptr) {
      std::vector<DeviceInfo> devices;
      CHECK(provider.list_devices(devices) == 0 && !devices.empty());
      context_ = provider.open_device(devices.front().name);
    }
    CHECK(context_ != nullptr, "open_device: errno %d", errno);
    capabilities_ = provider.capabilities(context_);
    ibv_pd* pd = provider.alloc_pd(context_);
    pd_ = PdRef(
        Counted::make(HandleKind::protection_domain, pd, 0, 0, [pd] { iwarp_provider().dealloc_pd(pd); }));
    ibv_comp_channel* channel = provider.create_comp_channel(context_);
    ChannelRef channel_ref(Counted::make(HandleKind::completion_channel, channel, 0, 0,
                                         [channel] { iwarp_provider().destroy_comp_channel(channel); }));
    ibv_cq* cq = provider.create_cq(context_, entries, nullptr, channel, Progress::manual);
    cq_ = CqRef(Counted::make(HandleKind::completion_queue, cq, 0, 0,
                              [cq, channel_ref] { iwarp_provider().destroy_cq(cq); }));
    bell_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(bell_fd_ >= 0);
    poller = std::make_unique<ring::Poller>(cq_, channel_ref, options, [this, options] {
      if (ring::turned_by_application(options.mode)) {
        const uint64_t one = 1;
        CHECK(write(bell_fd_, &one, sizeof one) == sizeof one);
        return;
      }
      std::lock_guard lock(mutex_);
      rung_ = true;
      bell_.notify_one();
    });
    CHECK(poller->start() == 0);
  }
  ~Side() {
    poller.reset();
    close(bell_fd_);
    cq_ = {};
    pd_ = {};
  }

  MrRef region(size_t length) {
    length = (length + 4095) & ~size_t{4095};
    void* memory =
        mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CHECK(memory != MAP_FAILED);
    ibv_mr* mr = iwarp_provider().reg_mr(
        pd_.get(), memory, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    return MrRef(Counted::make(HandleKind::memory_region, mr, 0, 0, [mr, memory, length, pd = pd_] {
      iwarp_provider().dereg_mr(mr);
      munmap(memory, length);
    }));
  }

  // The receiving half, before the connection is made.
  void attach(Endpoint& end, const Shape& shape) {
    ibv_qp_init_attr attributes = {};
    attributes.send_cq = attributes.recv_cq = cq_.get();
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {shape.send_depth + ring::kReservedForControl + ring::kReservedForReads,
                      shape.receive_depth + ring::kReceivesForControl, 1, 1, shape.max_inline};
    ibv_qp* qp = end.id->create_qp(pd_.get(), &attributes);
    end.qp = QpRef(Counted::make(HandleKind::queue_pair, qp, capabilities_, attributes.cap.max_inline_data,
                                 [qp, id = end.id, cq = cq_, pd = pd_] { iwarp_provider().destroy_qp(qp); }));
    end.ring = region(shape.ring().bytes() + ring::Receiver::ring_words(shape.receive_depth) * 8);
    const ring::ConnectionOptions options{
        end.qp, end.ring, shape.version, shape.ring(), shape.receive_depth, {.depth = shape.send_depth}};
    CHECK(poller->attach(options, end.number) == 0);
    format = ring::FrameFormat(shape.version);
    windows = shape.ring();
  }

  void establish(Endpoint& end, const Shape& shape, const Endpoint& peer) {
    end.staging = region(shape.ring().bytes() + shape.send_depth * 8);
    const bool can = (capabilities_ & kCapabilityWriteWithImmediate) != 0;
    ring::PeerRing ring{reinterpret_cast<uint64_t>(peer.ring->addr), peer.ring->rkey, shape.ring(),
                        shape.receive_depth, shape.immediate && can};
    CHECK(poller->establish(end.number, end.staging, ring) == 0);
  }

  // The event ring's head; without a thread, after a turn.
  uint32_t head() {
    return poller->turned_by_application()
               ? poller->turn()
               : poller->event_ring().word(ring::EventRing::kHead).load(std::memory_order_seq_cst);
  }

  // Waits until the poller has put something on the event ring, or for a while.
  void wait_for_doorbell(uint32_t tail) {
    if (poller->turned_by_application()) return static_cast<void>(sleep_on_channel(tail));
    ring::EventRing& events = poller->event_ring();
    events.word(ring::EventRing::kIdle).store(1, std::memory_order_seq_cst);
    if (events.word(ring::EventRing::kHead).load(std::memory_order_seq_cst) != tail) {
      events.word(ring::EventRing::kIdle).store(0, std::memory_order_seq_cst);
      return;
    }
    std::unique_lock lock(mutex_);
    const auto is_rung = [&] { return rung_; };
    // Nothing may have come in that time. What has must be rung for, be it late.
    if (!bell_.wait_for(lock, std::chrono::seconds(10), is_rung))
      CHECK(
          events.word(ring::EventRing::kHead).load() == tail || bell_.wait_for(lock, fixture::kHang, is_rung),
          "a doorbell was lost");
    rung_ = false;
  }

  // As an event loop does, whose JavaScript has taken all up to `tail`. True: it is called for more.
  bool sleep_on_channel(uint32_t tail) {
    const auto idle = poller->event_ring().word(ring::EventRing::kIdle);
    const auto head = poller->event_ring().word(ring::EventRing::kHead);
    idle.store(1, std::memory_order_seq_cst);
    if (head.load(std::memory_order_seq_cst) != tail && idle.exchange(0, std::memory_order_seq_cst) != 0)
      return true;
    ring::Poller::Look look = poller->look_before_sleep({bell_fd_});
    if (!look.doorbell && !look.again) {
      pollfd ready[2] = {{poller->channel_fd(), POLLIN, 0}, {bell_fd_, POLLIN, 0}};
      CHECK(poll(ready, 2, look.time ? ring::Poller::kLeavePollMs : fixture::kHangMs) > 0 || look.time,
            "an event was lost");
      uint64_t rung;
      if (ready[1].revents != 0) CHECK(read(bell_fd_, &rung, sizeof rung) == sizeof rung);
      if (ready[0].revents != 0) look = poller->look_at_events();
    }
    if (!look.doorbell) look = poller->look_before_sleep();
    return look.doorbell;
  }

  int bell_fd() const { return bell_fd_; }

  std::unique_ptr<ring::Poller> poller;
  ring::FrameFormat format{ring::Version::four};  // of each ring that is attached
  ring::Windows windows;                          // … and its own
  ring::Window window(uint32_t index) const { return {windows, index, format.unit_log2()}; }

 private:
  ibv_context* context_ = nullptr;
  uint32_t capabilities_ = 0;
  PdRef pd_;
  CqRef cq_;
  std::mutex mutex_;
  std::condition_variable bell_;
  bool rung_ = false;
  int bell_fd_ = -1;  // of who sleeps on the channel
};

inline void watch(Endpoint& end) {
  end.id->set_sink([events = end.events](CmEvent&& event) { events->push(std::move(event)); });
}

// `count` connections from one side to the other. The two rings are told to each other by hand: what
// the handshake carries in private data is JavaScript's affair.
inline void connect(Side& client, Side& server, const Shape& shape, std::vector<Endpoint>& clients,
                    std::vector<Endpoint>& servers, size_t count) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Endpoint listener;
  listener.id = iwarp_provider().create_id();
  watch(listener);
  CHECK(listener.id->listen(reinterpret_cast<sockaddr*>(&address), sizeof address, 16) == 0);
  const sockaddr_storage local = listener.id->local_address();
  for (size_t i = 0; i < count; ++i) {
    Endpoint& a = clients.emplace_back();
    Endpoint& b = servers.emplace_back();
    a.id = iwarp_provider().create_id();
    watch(a);
    CHECK(a.id->resolve(reinterpret_cast<const sockaddr*>(&local), sizeof(sockaddr_in), 5000) == 0);
    a.events->next(CmEvent::Type::route_resolved);
    client.attach(a, shape);
    ConnectParameters parameters;
    parameters.qp = a.qp.get();
    CHECK(a.id->connect(parameters) == 0);
    b.id = listener.events->next(CmEvent::Type::connect_request).request;
    watch(b);
    server.attach(b, shape);
    server.establish(b, shape, a);
    parameters.qp = b.qp.get();
    CHECK(b.id->accept(parameters) == 0);
    a.events->next(CmEvent::Type::established);
    b.events->next(CmEvent::Type::established);
    client.establish(a, shape, b);
  }
  listener.id->close();
}

}  // namespace ring_test
