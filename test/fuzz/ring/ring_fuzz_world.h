// The environment of the ring's fuzz target: a poller without a thread, and a device on which the input
// decides which messages arrive and which requests complete. The device keeps to the rules of a real one, and
// checks that posted requests do.
#pragma once

#include <arpa/inet.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "../fuzz_check.h"
#include "ring/polling/poller.h"

namespace fuzz {

using namespace rdmakit;

constexpr ring::Windows kOne{ring::kMinLog2Capacity, 1};
constexpr ring::Windows kThree{ring::kMinLog2Capacity + 2 * ring::kGrowthLog2, 3};
constexpr uint32_t kReceiveDepth = ring::kMinReceiveDepth;
constexpr uint32_t kSendDepth = 16;
constexpr uint32_t kReceives = kReceiveDepth + ring::kReceivesForControl;
constexpr uint32_t kSends = kSendDepth + ring::kReservedForControl + ring::kReservedForReads;
constexpr uint32_t kMaxInline = 64;
constexpr uint64_t kPeerAddress = uint64_t{0x7000} << 32;
constexpr uint32_t kPeerKey = 0x600d;

// Memory of its own: a byte too far is seen.
class Memory {
 public:
  explicit Memory(size_t length) : length_(length), bytes_(std::make_unique<Unit[]>(length / sizeof(Unit))) {
    CHECK(length % sizeof(Unit) == 0);
    region.addr = bytes_.get();
    region.length = length;
    region.lkey = ++last_key_;
  }
  uint8_t* data() const { return bytes_[0].bytes; }
  bool has(const ibv_sge& part) const {
    const uint64_t begin = reinterpret_cast<uint64_t>(data());
    return part.lkey == region.lkey && part.addr >= begin && part.addr - begin <= length_ &&
           part.length <= length_ - (part.addr - begin);
  }
  ibv_mr region{};

 private:
  struct alignas(64) Unit {
    uint8_t bytes[64];
  };
  size_t length_;
  std::unique_ptr<Unit[]> bytes_;
  static inline uint32_t last_key_ = 0;
};

// The peer's view: the words of the notifications that were posted.
struct Heard {
  uint32_t units = 0;          // published
  uint32_t notifications = 0;  // that published them
  uint32_t pings = 0;
};

class Device {
 public:
  // Both rings have these windows.
  explicit Device(const ring::Windows& windows) : windows_(windows) {
    context_.ops.poll_cq = poll;
    context_.ops.req_notify_cq = [](ibv_cq*, int) { return 0; };
    context_.ops.post_recv = post_receives;
    context_.ops.post_send = post_sends;
    cq_.context = qp_.context = &context_;
    cq_.cq_context = qp_.qp_context = this;
    channel_.fd = -1;
  }
  Device(const Device&) = delete;

  CqRef queue() { return CqRef(&cq_handle_); }
  ChannelRef channel() { return ChannelRef(&channel_handle_); }
  QpRef queue_pair() { return QpRef(&qp_handle_); }
  MrRef ring() { return MrRef(&ring_handle_); }
  MrRef staging() { return MrRef(&staging_handle_); }
  uint8_t* ring_bytes() { return ring_memory_.data(); }
  const Heard& heard() const { return heard_; }

  // A notification arrives, if a receive is posted: by WRITE with immediate, or by a SEND of `length` bytes.
  void arrive(uint32_t word, bool immediate, uint32_t length = sizeof(uint32_t)) {
    if (receives_.empty() || failed_) return;
    const auto [id, buffer] = receives_.front();
    receives_.pop_front();
    ibv_wc completion{};
    completion.wr_id = id;
    completion.opcode = immediate ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    if (immediate) {
      completion.imm_data = htonl(word);
    } else {
      completion.byte_len = length;
      std::memcpy(buffer, &word, sizeof word);
    }
    completions_.push_back(completion);
    // A credit that tells of nothing more is a pong.
    if ((word & ring::kCreditBit) != 0 && std::exchange(credit_, word) == word) ++pongs_;
  }
  // The oldest request of the send queue completes, with those before it that were not signaled.
  void complete(ibv_wc_status status) {
    if (status != IBV_WC_SUCCESS) return fail(status);
    while (!sends_.empty()) {
      const Send send = sends_.front();
      sends_.pop_front();
      if (!send.signaled) continue;
      ibv_wc completion{};
      completion.wr_id = send.id;
      completions_.push_back(completion);
      return;
    }
  }
  // The queue pair is in error: all that is posted comes back, the first send with `status`.
  void fail(ibv_wc_status status = IBV_WC_WR_FLUSH_ERR) {
    failed_ = true;
    for (; !sends_.empty(); sends_.pop_front(), status = IBV_WC_WR_FLUSH_ERR)
      flush(sends_.front().id, status);
    for (; !receives_.empty(); receives_.pop_front()) flush(receives_.front().id, IBV_WC_WR_FLUSH_ERR);
  }

 private:
  struct Receive {
    uint64_t id;
    uint8_t* buffer;
  };
  struct Send {
    uint64_t id;
    bool signaled;
  };

  static Device& of(ibv_cq* cq) { return *static_cast<Device*>(cq->cq_context); }
  static Device& of(ibv_qp* qp) { return *static_cast<Device*>(qp->qp_context); }

  static int poll(ibv_cq* cq, int count, ibv_wc* to) {
    Device& self = of(cq);
    int done = 0;
    for (; done < count && !self.completions_.empty(); ++done, self.completions_.pop_front())
      to[done] = self.completions_.front();
    return done;
  }
  static int post_receives(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr**) {
    Device& self = of(qp);
    for (; request != nullptr; request = request->next) {
      CHECK(request->num_sge == 1 && request->sg_list->length == 8 &&
            self.ring_memory_.has(*request->sg_list));
      auto* buffer = reinterpret_cast<uint8_t*>(request->sg_list->addr);
      // Behind the ring, where no WRITE of a frame belongs.
      CHECK(buffer >= self.ring_bytes() + self.windows_.bytes());
      for (const Receive& other : self.receives_) CHECK(other.buffer != buffer);
      self.receives_.push_back({request->wr_id, buffer});
    }
    CHECK(self.receives_.size() <= kReceives);
    if (self.failed_) self.fail();
    return 0;
  }
  static int post_sends(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr**) {
    Device& self = of(qp);
    for (; request != nullptr; request = request->next) {
      self.check(*request);
      self.sends_.push_back({request->wr_id, (request->send_flags & IBV_SEND_SIGNALED) != 0});
    }
    CHECK(self.sends_.size() <= kSends);
    if (self.failed_) self.fail();
    return 0;
  }
  void check(const ibv_send_wr& request) {
    uint64_t length = 0;
    for (int i = 0; i < request.num_sge; ++i) {
      const ibv_sge& part = request.sg_list[i];
      CHECK(staging_memory_.has(part) ||
            (request.opcode != IBV_WR_RDMA_READ && is_inline_word(request, part)));
      length += part.length;
    }
    switch (request.opcode) {
      case IBV_WR_RDMA_READ:
        return;
      case IBV_WR_SEND: {
        uint32_t word;
        CHECK(request.num_sge == 1 && length == sizeof word);
        std::memcpy(&word, reinterpret_cast<const void*>(request.sg_list->addr), sizeof word);
        return hear(word);
      }
      case IBV_WR_RDMA_WRITE:
      case IBV_WR_RDMA_WRITE_WITH_IMM:
        CHECK(request.wr.rdma.rkey == kPeerKey && request.wr.rdma.remote_addr >= kPeerAddress);
        CHECK(request.wr.rdma.remote_addr - kPeerAddress + length <= windows_.bytes());
        if (request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) hear(ntohl(request.imm_data));
        return;
      default:
        CHECK(!"an opcode that a ring posts");
    }
  }
  // For control, whose word the receiver keeps behind its ring.
  bool is_inline_word(const ibv_send_wr& request, const ibv_sge& part) const {
    return request.opcode == IBV_WR_SEND && part.length == sizeof(uint32_t) && ring_memory_.has(part);
  }
  void hear(uint32_t word) {
    if ((word & ring::kCreditBit) != 0) return;
    if (word == ring::kPing) {
      // The one before has been answered.
      CHECK(heard_.pings++ <= pongs_);
    } else {
      CHECK(word > 0 && word <= 1u << (windows_.log2_capacity - 4));
      heard_.units += word;
      ++heard_.notifications;
    }
  }
  void flush(uint64_t id, ibv_wc_status status) {
    ibv_wc completion{};
    completion.wr_id = id;
    completion.status = status;
    completions_.push_back(completion);
  }

  static int get_event(ibv_comp_channel*, ibv_cq**, void**) { return EAGAIN; }
  static void acknowledge(ibv_cq*, unsigned int) {}
  static int move_to_error(ibv_qp* qp) {
    of(qp).fail();
    return 0;
  }
  static constexpr DataPathVerbs kVerbs{get_event, acknowledge, move_to_error};
  // Everything here is the world's, which outlives the poller: nothing is counted.
  static Handle handle(HandleKind kind, void* object) {
    const auto nothing = [](Handle*) {};
    return {kHandleAbi, kind, object, &kVerbs, 0, kMaxInline, nothing, nothing};
  }

  ibv_context context_{};
  ibv_cq cq_{};
  ibv_comp_channel channel_{};
  ibv_qp qp_{};
  const ring::Windows windows_;
  Memory ring_memory_{(windows_.bytes() + ring::Receiver::ring_words(kReceiveDepth) * 8 + 63) / 64 * 64};
  Memory staging_memory_{windows_.bytes() + kSendDepth * 8};
  Handle cq_handle_ = handle(HandleKind::completion_queue, &cq_);
  Handle channel_handle_ = handle(HandleKind::completion_channel, &channel_);
  Handle qp_handle_ = handle(HandleKind::queue_pair, &qp_);
  Handle ring_handle_ = handle(HandleKind::memory_region, &ring_memory_.region);
  Handle staging_handle_ = handle(HandleKind::memory_region, &staging_memory_.region);
  std::deque<Receive> receives_;
  std::deque<Send> sends_;
  std::deque<ibv_wc> completions_;
  Heard heard_;
  uint32_t credit_ = ring::kCreditBit;  // the peer's last
  uint32_t pongs_ = 0;
  bool failed_ = false;
};

}  // namespace fuzz
