// The environment of the fuzz target of the shm provider: memory with guards, and for each input a connected
// queue pair, whose peer is nothing but shared memory.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "../fuzz_check.h"
#include "provider/provider.h"
#include "shm/queue-pair/queue_pair.h"
#include "shm/setup/peer.h"

namespace fuzz {

using namespace rdmakit;
using namespace rdmakit::shm;

// Memory of which the peer sees nothing: what is lent to receives and reads, with guards in between.
class Local {
 public:
  static constexpr size_t kPieces = 32, kStride = 512, kLent = 200;
  static constexpr uint8_t kGuard = 0xa5;

  explicit Local(ibv_pd* pd) : bytes_(kPieces * kStride, kGuard) {
    mr = shm_provider().reg_mr(pd, bytes_.data(), bytes_.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    CHECK(mr != nullptr);
  }
  ibv_sge lend(size_t number, uint32_t length) {
    lent_[number] = true;
    return {reinterpret_cast<uint64_t>(bytes_.data()) + number * kStride, std::min<uint32_t>(length, kLent),
            mr->lkey};
  }
  void check_and_reset() {
    for (size_t i = 0; i < kPieces; i++) {
      uint8_t* const piece = bytes_.data() + i * kStride;
      const auto is_guard = [](uint8_t byte) { return byte == kGuard; };
      CHECK(std::all_of(piece + (lent_[i] ? kLent : 0), piece + kStride, is_guard));
      std::fill_n(piece, kLent, kGuard);
    }
    lent_.reset();
  }

  ibv_mr* mr;

 private:
  std::vector<uint8_t> bytes_;
  std::bitset<kPieces> lent_;
};

// A memfd and its mapping.
struct Shared {
  UniqueFd fd;
  std::shared_ptr<SharedMapping> mapping;
  Shared(size_t bytes, Sharing sharing) : mapping(SharedMapping::create("fuzz", bytes, sharing, fd)) {
    CHECK(mapping != nullptr);
  }
  uint8_t* data() const { return mapping->data(); }
  size_t size() const { return mapping->size(); }
  UniqueFd another_fd() const { return UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }
};

class World {
 public:
  static constexpr uint32_t kEntries = 8, kSges = 2, kTableSlots = 16;
  static constexpr AreaShape kPeerShape{kEntries, kSges, true};

  static World& instance() {
    static World* world = std::make_unique<World>().release();
    return *world;
  }

  ibv_context* const context = shm_provider().open_device("shm0");
  ibv_pd* const pd = shm_provider().alloc_pd(context);
  ibv_comp_channel* const channel = shm_provider().create_comp_channel(context);
  ibv_cq* const cq = shm_provider().create_cq(context, 256, nullptr, channel, Progress::manual);
  ibv_mw* const window = shm_provider().alloc_mw(pd, IBV_MW_TYPE_2);
  Local local{pd};
  // The peer's: its area, its region table, and memory that it has announced.
  Shared area{kPeerShape.size(), Sharing::writable};
  Shared table{kMaxRegions * sizeof(RegionEntry), Sharing::read_only};
  Shared segment{8192, Sharing::writable};

  void reset() {
    std::memset(area.data(), 0, area.size());
    std::memset(table.data(), 0, kTableSlots * sizeof(RegionEntry));
  }
};

// One connection of this end.
class Session {
 public:
  Session() {
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = attributes.recv_cq = world_.cq;
    attributes.cap = {16, World::kEntries, 4, 2, 64};
    qp_ = shm_provider().create_qp(world_.pd, &attributes);
    CHECK(qp_ != nullptr);
    ibv_qp_attr init{};
    init.qp_state = IBV_QPS_INIT;
    CHECK(shm_provider().modify_qp(qp_, &init, IBV_QP_STATE) == 0);
    area_ = SharedMapping::open(own().area_fd(), own().shape().size(), Sharing::writable);
    connect();
  }

  // Ends the connection, its peer's hazard with it; then everything that was posted has completed, once.
  ~Session() {
    header().hazard.store(0);
    own().fail(Failure{});
    poll();
    CHECK(sends_.none() && receives_.none());
    CHECK(shm_provider().destroy_qp(qp_) == 0);
    world_.local.check_and_reset();
  }

  QueuePair& own() const { return *static_cast<QueuePair*>(qp_); }
  // The part of this end that the peer can write.
  SharedMapping& area() const { return *area_; }
  AreaHeader& header() const { return *reinterpret_cast<AreaHeader*>(area_->data()); }
  Slot& slot(uint32_t number) const {
    return reinterpret_cast<Slot*>(area_->data() + own().shape().slots_at())[number % own().shape().entries];
  }

  void poll() {
    std::array<ibv_wc, 4> wc;
    for (int count = 4; count == 4;) {
      count = ibv_poll_cq(world_.cq, 4, wc.data());
      CHECK(count >= 0);
      for (int i = 0; i < count; i++) complete(wc[static_cast<size_t>(i)]);
    }
  }
  void wait_for_event() {
    CHECK(ibv_req_notify_cq(world_.cq, 0) == 0);
    poll();
    ibv_cq* ready = nullptr;
    void* ready_context = nullptr;
    if (shm_provider().data_path_verbs()->get_cq_event(world_.channel, &ready, &ready_context) == 0)
      shm_provider().data_path_verbs()->ack_cq_events(ready, 1);
  }

  void post_receive() {
    const size_t number = std::exchange(next_receive_, (next_receive_ + 1) % 8);
    if (receives_[number]) return;
    std::array<ibv_sge, 2> sges{world_.local.lend(number, 40), world_.local.lend(8 + number, Local::kLent)};
    ibv_recv_wr request{}, *bad = nullptr;
    request.wr_id = 32 + number;
    request.sg_list = sges.data();
    request.num_sge = 2;
    receives_[number] = ibv_post_recv(qp_, &request, &bad) == 0;
  }

  void post_send(uint8_t what, uint32_t length, uint32_t key, uint64_t address) {
    const size_t number = std::exchange(next_send_, (next_send_ + 1) % 16);
    if (sends_[number]) return;
    constexpr std::array kOpcodes{IBV_WR_SEND,
                                  IBV_WR_SEND_WITH_IMM,
                                  IBV_WR_SEND_WITH_INV,
                                  IBV_WR_RDMA_WRITE,
                                  IBV_WR_RDMA_WRITE_WITH_IMM,
                                  IBV_WR_RDMA_READ,
                                  IBV_WR_LOCAL_INV,
                                  IBV_WR_BIND_MW,
                                  IBV_WR_ATOMIC_FETCH_AND_ADD};
    ibv_sge sge = world_.local.lend(16 + number, length);
    ibv_send_wr request{}, *bad = nullptr;
    request.opcode = kOpcodes[what % kOpcodes.size()];
    request.wr_id = number;
    request.send_flags = IBV_SEND_SIGNALED;
    request.sg_list = &sge;
    request.num_sge = 1;
    request.invalidate_rkey = key;
    if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      sge.length = 8;
      request.wr.atomic = {address, 1, 0, key};
    } else if (request.opcode == IBV_WR_BIND_MW) {
      request.bind_mw = {world_.window, ibv_inc_rkey(world_.window->rkey), {world_.local.mr, sge.addr, 8, 0}};
    } else {
      request.wr.rdma.remote_addr = address;
      request.wr.rdma.rkey = key;
    }
    sends_[number] = ibv_post_send(qp_, &request, &bad) == 0;
  }

 private:
  void connect() {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    socket_ = UniqueFd(ends[0]);
    GreetingFrame greeting{};
    greeting.receive_entries = World::kEntries;
    greeting.receive_sges = World::kSges;
    greeting.queue_pair = 1;
    greeting.flags = kGreetingStamps;
    Frame frame;  // of no process: its memory outside of segments is out of reach
    frame.fds[0] = world_.area.another_fd();
    frame.fds[1] = world_.table.another_fd();
    std::unique_ptr<Peer> peer = Peer::open(greeting, frame);
    CHECK(peer != nullptr);
    CHECK(own().start(std::move(peer), std::make_shared<Link>(UniqueFd(ends[1]), 0)) == 0);
    CHECK(own().add_segment(0, 0, world_.segment.fd.get()) == 0);
  }

  void complete(const ibv_wc& wc) {
    CHECK(wc.wr_id < 64 && wc.qp_num == qp_->qp_num);
    const bool receive = wc.wr_id >= 32;
    std::bitset<32>& outstanding = receive ? receives_ : sends_;
    CHECK(outstanding[wc.wr_id % 32]);
    outstanding[wc.wr_id % 32] = false;
    if (!receive || wc.status != IBV_WC_SUCCESS) return;
    CHECK(wc.byte_len <= (wc.opcode == IBV_WC_RECV ? 40 + Local::kLent : kMaxMessage));
  }

  World& world_ = World::instance();
  ibv_qp* qp_ = nullptr;
  std::shared_ptr<SharedMapping> area_;
  UniqueFd socket_;
  std::bitset<32> receives_, sends_;
  size_t next_receive_ = 0, next_send_ = 0;
};

}  // namespace fuzz
