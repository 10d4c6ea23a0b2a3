// Completions that come at the worst moment, from a device on which the test decides when: just before the
// queue is armed, after their connection is gone, long after everything else of it.
#include <arpa/inet.h>
#include <sys/eventfd.h>

#include <array>
#include <cstring>
#include <deque>
#include <mutex>

#include "fixture.h"
#include "unique_fd.h"

namespace ring_late_completions_stress {

using namespace ring_test;

constexpr uint32_t kLog2Capacity = ring::kMinLog2Capacity;
constexpr uint32_t kDepth = ring::kMinReceiveDepth;
constexpr uint32_t kKey = 0x1ced;

// One completion queue and one queue pair. What is posted stays until the test completes it, but receives
// when the queue pair fails: those come back at once.
class Device {
 public:
  Device() {
    context_.ops.poll_cq = poll;
    context_.ops.req_notify_cq = arm;
    context_.ops.post_recv = post_receives;
    context_.ops.post_send = post_sends;
    channel_.fd = event_.get();
    channel_.device = this;
    cq_.context = qp_.context = &context_;
    cq_.cq_context = qp_.qp_context = this;
    region_.addr = memory_.data();
    region_.length = memory_.size();
    region_.lkey = kKey;
  }
  Device(const Device&) = delete;

  CqRef queue() { return CqRef(&cq_handle_); }
  ChannelRef channel() { return ChannelRef(&channel_handle_); }
  QpRef queue_pair() { return QpRef(&qp_handle_); }
  MrRef region() { return MrRef(&region_handle_); }
  uint8_t* memory() { return memory_.data(); }
  int region_users() const { return region_handle_.references.load(); }

  // What was posted to the send queue since the last call.
  std::vector<ibv_send_wr> sent() {
    const std::lock_guard lock(mutex_);
    return std::exchange(sent_, {});
  }
  void complete(uint64_t id, ibv_wc_status status = IBV_WC_SUCCESS) {
    ibv_wc completion{};
    completion.wr_id = id;
    completion.status = status;
    const std::lock_guard lock(mutex_);
    completions_.push_back(completion);
  }
  // The peer has written a frame of no payload to unit `unit` of the ring, and notifies of it.
  void arrive(uint32_t unit) {
    const ring::FrameHeader header{0, static_cast<uint16_t>(ring::FrameType::data), 0, 0, unit};
    std::memcpy(memory_.data() + size_t{unit} * ring::kUnit, &header, sizeof header);
    const std::lock_guard lock(mutex_);
    CHECK(!receives_.empty());
    ibv_wc completion{};
    completion.wr_id = receives_.front();
    completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    completion.imm_data = htonl(1);
    receives_.pop_front();
    completions_.push_back(completion);
  }
  // Called each time just before the queue is armed.
  std::function<void()> before_arming;
  // What arming, and reading the channel, end with from now on.
  std::atomic<int> arm_error{0};
  std::atomic<int> event_error{EAGAIN};
  std::atomic<int> looks{0};  // at the channel
  void make_readable() {
    const uint64_t one = 1;
    CHECK(write(event_.get(), &one, sizeof one) == sizeof one);
  }

 private:
  struct Channel : ibv_comp_channel {
    Device* device;
  };
  struct Counted : Handle {
    std::atomic<int> references{0};
  };
  static void retain_one(Handle* self) { static_cast<Counted*>(self)->references.fetch_add(1); }
  static void release_one(Handle* self) { static_cast<Counted*>(self)->references.fetch_sub(1); }
  static Device& of(ibv_cq* cq) { return *static_cast<Device*>(cq->cq_context); }
  static Device& of(ibv_qp* qp) { return *static_cast<Device*>(qp->qp_context); }

  static int poll(ibv_cq* cq, int count, ibv_wc* to) {
    Device& self = of(cq);
    const std::lock_guard lock(self.mutex_);
    int done = 0;
    for (; done < count && !self.completions_.empty(); ++done) {
      to[done] = self.completions_.front();
      self.completions_.pop_front();
    }
    return done;
  }
  static int arm(ibv_cq* cq, int) {
    Device& self = of(cq);
    if (self.before_arming) self.before_arming();
    return self.arm_error;
  }
  static int post_receives(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr**) {
    Device& self = of(qp);
    const std::lock_guard lock(self.mutex_);
    for (; request != nullptr; request = request->next) self.receives_.push_back(request->wr_id);
    return 0;
  }
  static int post_sends(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr**) {
    Device& self = of(qp);
    const std::lock_guard lock(self.mutex_);
    for (; request != nullptr; request = request->next) self.sent_.push_back(*request);
    return 0;
  }
  static int fail(ibv_qp* qp) {
    Device& self = of(qp);
    const std::lock_guard lock(self.mutex_);
    for (const uint64_t id : self.receives_) {
      ibv_wc completion{};
      completion.wr_id = id;
      completion.status = IBV_WC_WR_FLUSH_ERR;
      self.completions_.push_back(completion);
    }
    self.receives_.clear();
    return 0;
  }
  static int get_event(ibv_comp_channel* channel, ibv_cq**, void**) {
    Device& self = *static_cast<Channel*>(channel)->device;
    ++self.looks;
    return self.event_error;
  }
  static constexpr DataPathVerbs kVerbs{get_event, [](ibv_cq*, unsigned int) {}, fail};
  template <typename Object>
  struct Owned : Counted {
    Owned(HandleKind kind, Object& object) {
      static_cast<Handle&>(*this) = {kHandleAbi, kind, &object, &kVerbs, 0, 0, retain_one, release_one};
    }
  };

  ibv_context context_{};
  ibv_cq cq_{};
  Channel channel_{};
  ibv_qp qp_{};
  ibv_mr region_{};
  UniqueFd event_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  alignas(64) std::array<uint8_t, 4 << kLog2Capacity> memory_{};
  Owned<ibv_cq> cq_handle_{HandleKind::completion_queue, cq_};
  Owned<Channel> channel_handle_{HandleKind::completion_channel, channel_};
  Owned<ibv_qp> qp_handle_{HandleKind::queue_pair, qp_};
  Owned<ibv_mr> region_handle_{HandleKind::memory_region, region_};
  std::mutex mutex_;
  std::deque<ibv_wc> completions_;
  std::deque<uint64_t> receives_;
  std::vector<ibv_send_wr> sent_;
};

// A poller with one place for a connection, so that the next one gets the same place, and its consumer.
class Poller {
 public:
  Poller(Device& device, ring::Mode mode)
      : device_(device),
        poller_(device.queue(), device.channel(), options(mode), [this] { rung_.store(true); }) {
    CHECK(poller_.start() == 0);
  }
  ring::Poller* operator->() { return &poller_; }

  uint32_t connect() {
    uint32_t number = 0;
    ring::ConnectionOptions options;
    options.qp = device_.queue_pair();
    options.ring = device_.region();
    options.log2_capacity = kLog2Capacity;
    options.receive_depth = kDepth;
    options.send.depth = 16;
    CHECK(poller_.attach(options, number) == 0);
    const ring::PeerRing peer{4096, kKey, kLog2Capacity, kDepth, true};
    CHECK(poller_.establish(number, device_.region(), peer) == 0);
    return number;
  }
  // Everything that is on the board, of one type after the other.
  std::vector<ring::Descriptor> take() {
    ring::Board& board = poller_.board();
    const uint32_t head = board.word(ring::Board::kHead).load();
    std::vector<ring::Descriptor> taken;
    for (; tail_ != head; ++tail_) taken.push_back(*board.at(tail_));
    board.word(ring::Board::kTail).store(tail_);
    return taken;
  }
  // Mode `caller`: what some turns, with nothing else going on, put on the board.
  std::vector<ring::Descriptor> turns() {
    std::vector<ring::Descriptor> all;
    for (int i = 0; i < 4; ++i) {
      poller_.turn();
      for (const ring::Descriptor& each : take()) all.push_back(each);
    }
    return all;
  }
  bool rung() const { return rung_.load(); }

 private:
  static ring::PollerOptions options(ring::Mode mode) {
    ring::PollerOptions options;
    options.mode = mode;
    options.max_connections = 1;
    options.descriptor_count = 64;
    return options;
  }
  Device& device_;
  std::atomic<bool> rung_{false};
  uint32_t tail_ = 0;
  ring::Poller poller_;
};

template <typename Type>
bool has(const std::vector<ring::Descriptor>& all, Type type) {
  return std::any_of(all.begin(), all.end(),
                     [&](const ring::Descriptor& each) { return each.type == static_cast<uint32_t>(type); });
}

// A frame that arrives when the last look at the queue is over and it is not armed yet raises no event.
void just_before_arming() {
  Device device;
  std::atomic<bool> connected{false};
  device.before_arming = [&] {
    fixture::await([&] { return connected.load(); });
    device.arrive(0);
  };
  Poller poller(device, ring::Mode::event);
  poller.connect();
  connected = true;
  fixture::await([&] { return poller.rung(); });
  CHECK(has(poller.take(), ring::FrameType::data));
  poller->stop();
}

// The peer's notifications are used up when it has sent as many small messages as it may. So half of them
// give credit, however few bytes they were, and whether these have been released or not.
void small_messages() {
  Device device;
  Poller poller(device, ring::Mode::caller);
  poller.connect();
  poller.turns();
  device.sent();
  for (uint32_t unit = 0; unit < kDepth; ++unit) device.arrive(unit);
  CHECK(poller.turns().size() == kDepth);
  const std::vector<ibv_send_wr> sent = device.sent();
  CHECK(sent.size() == 1, "%zu requests", sent.size());
  CHECK(ntohl(sent[0].imm_data) == ring::encode_credit(0, kDepth));
}

// A completion of the connection before says nothing of the one that has its place now.
void of_the_one_before() {
  Device device;
  Poller poller(device, ring::Mode::caller);
  const auto send = [&](uint32_t number) {
    CHECK(poller->send(number, ring::FrameType::data, 0, 0, nullptr, 0) == ring::SendResult::done);
    CHECK(poller->flush(number) == ring::SendResult::done);
    const std::vector<ibv_send_wr> sent = device.sent();
    CHECK(sent.size() == 1);
    return sent[0].wr_id;
  };
  const uint32_t first = poller.connect();
  poller.turns();
  const uint64_t late = send(first);
  poller->detach(first);
  CHECK(has(poller.turns(), ring::Event::detached));
  poller->release(first);

  const uint32_t second = poller.connect();
  CHECK(ring::slot_of(first) == ring::slot_of(second) && first != second);
  poller.turns();
  const uint64_t own = send(second);
  device.complete(late);
  poller.turns();
  CHECK(!poller->drained(second));
  device.complete(own);
  poller.turns();
  CHECK(poller->drained(second));
}

// A READ that comes later than everything else of its connection: the memory that it fills is held until
// then, and the connection too. After Poller::kLeaveNs, 200 ms, it is given up; a run that took so long
// proves nothing, and is done again.
bool last_of_all() {
  Device device;
  Poller poller(device, ring::Mode::caller);
  const uint32_t number = poller.connect();
  poller.turns();
  device.sent();
  const int users = device.region_users();
  CHECK(poller->read(number, device.region(), 0, 4096, kKey, 64, 7) == ring::SendResult::done);
  CHECK(device.region_users() == users + 1);
  const std::vector<ibv_send_wr> sent = device.sent();
  CHECK(sent.size() == 1 && sent[0].opcode == IBV_WR_RDMA_READ);
  const auto begin = fixture::Clock::now();
  poller->detach(number);
  const std::vector<ring::Descriptor> before = poller.turns();
  const bool in_time = fixture::Clock::now() - begin < std::chrono::milliseconds(150);
  if (in_time) {
    CHECK(!has(before, ring::Event::detached));
    CHECK(device.region_users() == users + 1);
  }
  device.complete(sent[0].wr_id, IBV_WC_WR_FLUSH_ERR);
  const std::vector<ring::Descriptor> after = poller.turns();
  if (in_time) {
    CHECK(after.size() == 2);
    CHECK(after[0].type == static_cast<uint32_t>(ring::Event::read) && after[0].correlation == 7);
    CHECK(after[1].type == static_cast<uint32_t>(ring::Event::detached));
    CHECK(device.region_users() == users);
  }
  return in_time;
}

// A device that goes away: connections break, those that come later too, and the thread neither sleeps over
// it nor is woken again and again.
void cannot_be_armed() {
  Device device;
  device.arm_error = ENODEV;
  Poller poller(device, ring::Mode::event);
  poller.connect();
  fixture::await([&] { return poller.rung(); });
  CHECK(has(poller.take(), ring::Event::broken));
  poller->stop();
}

void cannot_be_read() {
  Device device;
  Poller poller(device, ring::Mode::event);
  poller.connect();
  device.event_error = EIO;
  device.make_readable();
  fixture::await([&] { return poller.rung(); });
  CHECK(has(poller.take(), ring::Event::broken));
  poller->stop();
  CHECK(device.looks == 1);
}

STRESS(ring_late_completions) {
  fixture::timed("cannot be armed", cannot_be_armed);
  fixture::timed("cannot be read", cannot_be_read);
  fixture::timed("just before arming", just_before_arming);
  fixture::timed("small messages", small_messages);
  fixture::timed("of the one before", of_the_one_before);
  fixture::timed("last of all", [] { fixture::await(last_of_all); });
  return 0;
}

}  // namespace ring_late_completions_stress
