// A device on which the test decides when what was posted completes, and how.
#pragma once

#include <arpa/inet.h>
#include <sys/eventfd.h>

#include <array>
#include <cstring>
#include <deque>
#include <mutex>

#include "base/unique_fd.h"
#include "fixture.h"

namespace ring_test {

constexpr uint32_t kLog2Capacity = ring::kMinLog2Capacity;
constexpr uint32_t kDepth = ring::kMinReceiveDepth;
constexpr uint32_t kUnits = 1 << (kLog2Capacity - 4);
constexpr uint32_t kKey = 0x1ced;

// One completion queue and one queue pair. What is posted stays until the test completes it, but receives
// when the queue pair fails: those come back at once. One that `lends` takes lent bytes from where they are.
class Device {
 public:
  explicit Device(bool lends = false) {
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
    if (lends) qp_handle_.verbs = &kLendingVerbs;
  }
  Device(const Device&) = delete;

  CqRef queue() { return CqRef(&cq_handle_); }
  ChannelRef channel() { return ChannelRef(&channel_handle_); }
  QpRef queue_pair() { return QpRef(&qp_handle_); }
  MrRef region() { return MrRef(&region_handle_); }
  uint8_t* memory() { return memory_.data(); }
  int region_users() const { return region_handle_.references.load(); }

  // What was posted to the send queue since the last call, with elements that stay.
  std::vector<ibv_send_wr> sent() {
    const std::lock_guard lock(mutex_);
    return std::exchange(sent_, {});
  }
  void complete(uint64_t id, ibv_wc_status status = IBV_WC_SUCCESS) {
    ibv_wc completion{};
    completion.wr_id = id;
    completion.status = status;
    const std::lock_guard lock(mutex_);
    come(completion);
  }
  // The peer has written frames of no payload from unit `unit` of the ring on, and notifies of them.
  void arrive(uint32_t unit, uint32_t frames = 1) {
    constexpr ring::FrameFormat kFormat(ring::Version::three);
    for (uint32_t at = unit; at != unit + frames; ++at)
      kFormat.write(memory_.data() + (size_t{at} % kUnits << kFormat.unit_log2()),
                    {ring::FrameType::data, 0, 0, at});
    notify(frames);
  }
  // The peer's notification of that word: units that it has published, or a credit.
  void notify(uint32_t word) {
    const std::lock_guard lock(mutex_);
    CHECK(!receives_.empty());
    ibv_wc completion{};
    completion.wr_id = receives_.front();
    completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    completion.imm_data = htonl(word);
    receives_.pop_front();
    come(completion);
  }
  // Called each time just before the queue is armed.
  std::function<void()> before_arming;
  // Called by the thread that polls the queue, before the poll.
  std::function<void()> before_polling;
  // What arming, and reading the channel, end with from now on; 0: the queue is armed, the event taken if
  // there is one.
  std::atomic<int> arm_error{0};
  std::atomic<int> event_error{0};
  std::atomic<int> looks{0};  // at the channel
  // As siw behind the end of a connection: it refuses what is posted, names no request, and has it all the
  // same.
  bool refuses = false;
  int lent_posts = 0;
  // An event, whose completion may have been taken by now.
  void make_readable() {
    const std::lock_guard lock(mutex_);
    raise();
  }

 private:
  void raise() {
    armed_ = false;
    const uint64_t one = 1;
    CHECK(write(event_.get(), &one, sizeof one) == sizeof one);
  }
  void come(const ibv_wc& completion) {
    completions_.push_back(completion);
    if (armed_) raise();
  }
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
    if (self.before_polling) self.before_polling();
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
    const std::lock_guard lock(self.mutex_);
    self.armed_ = self.arm_error == 0;
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
    for (; request != nullptr; request = request->next) self.keep(*request);
    if (self.refuses) errno = ENOTCONN;
    return self.refuses ? -1 : 0;
  }
  // All of it leaves at once: nothing is copied to its place.
  static int post_lent(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr**, const LentBytes& lent) {
    Device& self = of(qp);
    const std::lock_guard lock(self.mutex_);
    ++self.lent_posts;
    for (; request != nullptr; request = request->next) {
      ibv_sge& element = self.keep(*request);
      std::vector<uint8_t>& bytes = self.left_.emplace_back(element.length);
      for (uint64_t at = 0, most = 0; at < bytes.size(); at += most) {
        most = bytes.size() - at;
        const uint8_t* const from = lent.find(reinterpret_cast<uint8_t*>(element.addr + at), most);
        std::memcpy(bytes.data() + at, from, most);
      }
      element.addr = reinterpret_cast<uint64_t>(bytes.data());
    }
    return 0;
  }
  ibv_sge& keep(const ibv_send_wr& request) {
    ibv_send_wr& kept = sent_.emplace_back(request);
    ibv_sge& element = elements_.emplace_back();
    if (request.num_sge > 0) element = *request.sg_list;
    kept.sg_list = &element;
    kept.next = nullptr;
    return element;
  }
  static int fail(ibv_qp* qp) {
    Device& self = of(qp);
    const std::lock_guard lock(self.mutex_);
    for (const uint64_t id : self.receives_) {
      ibv_wc completion{};
      completion.wr_id = id;
      completion.status = IBV_WC_WR_FLUSH_ERR;
      self.come(completion);
    }
    self.receives_.clear();
    return 0;
  }
  static int get_event(ibv_comp_channel* channel, ibv_cq**, void**) {
    Device& self = *static_cast<Channel*>(channel)->device;
    ++self.looks;
    if (self.event_error != 0) return self.event_error;
    uint64_t count;
    return read(self.event_.get(), &count, sizeof count) == sizeof count ? 0 : EAGAIN;
  }
  static constexpr DataPathVerbs kVerbs{get_event, [](ibv_cq*, unsigned int) {}, fail};
  static constexpr DataPathVerbs kLendingVerbs{get_event, [](ibv_cq*, unsigned int) {}, fail, post_lent};
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
  alignas(64) std::array<uint8_t, 32 << kLog2Capacity> memory_{};
  Owned<ibv_cq> cq_handle_{HandleKind::completion_queue, cq_};
  Owned<Channel> channel_handle_{HandleKind::completion_channel, channel_};
  Owned<ibv_qp> qp_handle_{HandleKind::queue_pair, qp_};
  Owned<ibv_mr> region_handle_{HandleKind::memory_region, region_};
  std::mutex mutex_;
  bool armed_ = false;
  std::deque<ibv_wc> completions_;
  std::deque<uint64_t> receives_;
  std::vector<ibv_send_wr> sent_;
  std::deque<ibv_sge> elements_;           // of all that was sent
  std::deque<std::vector<uint8_t>> left_;  // bytes of what was sent with lent ones
};

}  // namespace ring_test
