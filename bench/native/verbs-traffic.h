// The traffic over a connected pair of endpoints, from either side: the loops that verbs-pingpong times.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>

#include "verbs-endpoint.h"

namespace bench {

using Clock = std::chrono::steady_clock;

inline constexpr uint32_t kSignalEvery = 64;  // posts whose completions are not awaited
inline constexpr const char* kTests[] = {"write-lat", "send-lat", "write-bw", "send-bw", "write-rate"};
enum Test : uint32_t { kWriteLatency, kSendLatency, kWriteBandwidth, kSendBandwidth, kWriteRate, kTestCount };

struct Region {
  uint64_t address;
  uint32_t rkey;
};

// The connecting side's parameters for the listening side.
struct Plan {
  Region region;
  uint32_t test, size, warmup, iterations, depth, chain;
  uint64_t rounds() const { return uint64_t{warmup} + iterations; }
};

#if defined(__x86_64__)
inline uint64_t ticks() { return __builtin_ia32_rdtsc(); }
#else
inline uint64_t ticks() { return static_cast<uint64_t>(Clock::now().time_since_epoch().count()); }
#endif

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The times of round trips, in the processor's ticks while they run.
class Recorder {
 public:
  explicit Recorder(const Plan& plan) : Recorder(plan.warmup, plan.iterations) {}
  Recorder(uint32_t warmup, uint32_t iterations) : warmup_(warmup) { times_.reserve(iterations); }
  void mark(uint64_t round) {
    const uint64_t now = ticks();
    if (round > warmup_) {
      times_.push_back(now - last_);
    } else {
      begin_ = Clock::now();
      first_ = now;
    }
    last_ = now;
  }
  void start() {
    begin_ = Clock::now();
    first_ = last_ = ticks();
  }
  void print(const Plan& plan) { print(kTests[plan.test], plan.size); }
  void print(const char* test, uint32_t size) {
    const double seconds = seconds_since(begin_);
    const double half_us = seconds * 1e6 / static_cast<double>(ticks() - first_) / 2;
    std::sort(times_.begin(), times_.end());
    double sum = 0;
    for (const uint64_t time : times_) sum += static_cast<double>(time);
    const auto at = [&](size_t percent) {
      return half_us * static_cast<double>(times_[(times_.size() - 1) * percent / 100]);
    };
    std::printf(
        "{\"test\":\"%s\",\"size\":%u,\"iterations\":%zu,\"p50Us\":%.4f,\"p99Us\":%.4f,\"averageUs\":%.4f}\n",
        test, size, times_.size(), at(50), at(99), half_us * sum / static_cast<double>(times_.size()));
  }

 private:
  const uint64_t warmup_;
  Clock::time_point begin_;
  uint64_t first_ = 0, last_ = 0;
  std::vector<uint64_t> times_;
};

// One side of a test: a connected endpoint, its memory, and the count of what has completed.
class Side {
 public:
  Side(Endpoint& endpoint, Memory& memory, const Plan& plan)
      : endpoint_(endpoint), memory_(memory), plan_(plan), half_(memory.bytes / 2) {
    send_sge_ = {address(half_), plan.size, memory.mr->lkey};
    receive_sge_ = {address(0), plan.size, memory.mr->lkey};
    send_.sg_list = &send_sge_;
    send_.num_sge = 1;
    receive_.sg_list = &receive_sge_;
    receive_.num_sge = 1;
    if (plan.size <= endpoint.inline_data) flags_ = IBV_SEND_INLINE;
    const uint32_t receives = plan.test == kSendBandwidth ? 2 * plan.depth : kSignalEvery;
    for (uint32_t i = 0; i < receives; ++i) post_receive();
  }
  static size_t bytes_for(const Plan& plan) {
    return 2 * rdmakit::round_up_to_page(std::max(size_t{plan.size}, size_t{64} * plan.chain));
  }

  void set_target(const Region& far) {
    send_.wr.rdma.remote_addr = far.address;
    send_.wr.rdma.rkey = far.rkey;
  }

  // ---- Hot path begins: no allocation, no system call of ours ----

  void poll() {
    ibv_wc completions[16];
    const int count = ibv_poll_cq(endpoint_.queue.cq, 16, completions);
    if (count < 0) fail("ibv_poll_cq");
    for (int i = 0; i < count; ++i) {
      if (completions[i].status != IBV_WC_SUCCESS)
        fail("completion status " + std::to_string(completions[i].status));
      ++((completions[i].opcode & IBV_WC_RECV) != 0 ? received_ : completed_);
    }
  }
  void post(ibv_wr_opcode opcode, bool signaled) {
    send_.opcode = opcode;
    send_.send_flags = flags_ | (signaled ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0u);
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(endpoint_.qp, &send_, &bad) != 0) fail("ibv_post_send");
    signaled_ += signaled;
  }
  void post_receive() {
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_recv(endpoint_.qp, &receive_, &bad) != 0) fail("ibv_post_recv");
  }
  void wait_received(uint64_t count) {
    while (received_ < count) poll();
  }
  void wait_completed(uint64_t count) {
    while (completed_ < count) poll();
  }

  // Like ib_write_lat: each side waits for the other's number in its memory.
  void write_latency(bool first, Recorder& recorder) {
    auto* out = reinterpret_cast<uint64_t*>(memory_.data + half_ + plan_.size - 8);
    const std::atomic_ref<uint64_t> in(*reinterpret_cast<uint64_t*>(memory_.data + plan_.size - 8));
    // A software provider whose progress is manual takes data in when it is polled.
    const bool polls = moves_data_when_polled();
    const auto wait = [&](uint64_t round) {
      while (in.load(std::memory_order_acquire) != round) {
        if (polls) poll();
      }
    };
    for (uint64_t round = 1; round <= plan_.rounds(); ++round) {
      if (!first) wait(round);
      *out = round;
      post(IBV_WR_RDMA_WRITE, round % kSignalEvery == 0);
      if (first) {
        wait(round);
        recorder.mark(round);
      }
      if (round % kSignalEvery == 0) wait_completed(signaled_);
    }
  }

  void send_latency(bool first, Recorder& recorder) {
    for (uint64_t round = 1; round <= plan_.rounds(); ++round) {
      if (!first) wait_received(round);
      post(IBV_WR_SEND, round % kSignalEvery == 0);
      if (first) {
        wait_received(round);
        recorder.mark(round);
      }
      post_receive();
      if (round % kSignalEvery == 0) wait_completed(signaled_);
    }
  }

  void write_rounds(uint64_t rounds) {
    for (uint64_t round = 0; round < rounds; ++round) {
      while (signaled_ - completed_ >= plan_.depth) poll();
      post(IBV_WR_RDMA_WRITE, true);
    }
    wait_arrived();
  }

  // Twice the window is posted over there; a message back says that a window of it has been used and posted
  // again. Without that an iWARP connection would end, and an InfiniBand one would be retried.
  void send_rounds(uint64_t rounds) {
    const auto credit = [this] {
      poll();
      for (; taken_ < received_; ++taken_) post_receive();
    };
    for (uint64_t round = 0; round < rounds; ++round) {
      while (signaled_ - completed_ >= plan_.depth || sent_ >= (taken_ + 2) * plan_.depth) credit();
      post(IBV_WR_SEND, true);
      ++sent_;
    }
    while (taken_ < sent_ / plan_.depth) credit();
    wait_completed(signaled_);
  }
  void receive_rounds(uint64_t rounds) {
    const uint64_t until = taken_ + rounds;
    while (taken_ < until) {
      wait_received(taken_ + 1);
      post_receive();
      if (++taken_ % plan_.depth == 0) post(IBV_WR_SEND, true);
    }
  }

  // Chains of WRITEs that share a doorbell, each to a place of its own.
  void write_chains(std::vector<ibv_send_wr>& chain, uint64_t rounds) {
    const uint64_t links = chain.size();
    const uint64_t interval = std::max<uint64_t>(1, kSignalEvery / links);  // chains
    for (uint64_t i = 0; i * links < rounds; ++i) {
      const bool signaled = (i + 1) % interval == 0;
      chain.back().send_flags = flags_ | (signaled ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0u);
      ibv_send_wr* bad = nullptr;
      if (ibv_post_send(endpoint_.qp, chain.data(), &bad) != 0) fail("ibv_post_send");
      signaled_ += signaled;
      while (signaled_ - completed_ > 1) poll();
    }
    wait_arrived();
  }

  // ---- Hot path ends ----

  std::vector<ibv_send_wr> make_chain() {
    std::vector<ibv_send_wr> chain(plan_.chain, send_);
    for (size_t i = 0; i < chain.size(); ++i) {
      chain[i].opcode = IBV_WR_RDMA_WRITE;
      chain[i].send_flags = flags_;
      chain[i].wr.rdma.remote_addr += 64 * i;
      chain[i].next = i + 1 < chain.size() ? &chain[i + 1] : nullptr;
    }
    return chain;
  }

  void farewell() { post(IBV_WR_SEND, true); }

 private:
  uint64_t address(size_t offset) const { return reinterpret_cast<uint64_t>(memory_.data) + offset; }
  bool moves_data_when_polled() const { return &endpoint_.queue.provider == &rdmakit::iwarp_provider(); }

  // A READ comes back when all that was written before it is in the peer's memory.
  void wait_arrived() {
    send_sge_.length = 8;
    const unsigned flags = std::exchange(flags_, 0);
    post(IBV_WR_RDMA_READ, true);
    flags_ = flags;
    wait_completed(signaled_);
    send_sge_.length = plan_.size;
  }

  Endpoint& endpoint_;
  Memory& memory_;
  const Plan plan_;
  const size_t half_;
  unsigned flags_ = 0;
  ibv_sge send_sge_{}, receive_sge_{};
  ibv_send_wr send_{};
  ibv_recv_wr receive_{};
  uint64_t signaled_ = 0, completed_ = 0, received_ = 0;
  uint64_t sent_ = 0, taken_ = 0;
};

}  // namespace bench
