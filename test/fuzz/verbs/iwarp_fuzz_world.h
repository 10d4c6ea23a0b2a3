// The environment of the receive path's fuzz target: memory with guards, at addresses and under STags that
// are the same in every run, and a connected queue pair for each input with a plain socket as its peer.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "../fuzz_check.h"
#include "base/crc32c.h"
#include "iwarp/queue-pair/queue_pair.h"
#include "iwarp/wire/ddp.h"
#include "iwarp/wire/markers.h"
#include "iwarp/wire/mpa.h"
#include "provider/provider.h"

namespace fuzz {

using namespace rdmakit;
using namespace rdmakit::iwarp;
using Bytes = std::vector<uint8_t>;

// A region, and what its bytes are before each input.
struct Region {
  uint8_t* data;
  size_t length;
  int access;
  uint8_t fill;
  ibv_pd* pd;
  ibv_mr* mr;

  uint64_t address() const { return reinterpret_cast<uint64_t>(data); }
  void enroll() {
    mr = iwarp_provider().reg_mr(pd, data, length, access);
    CHECK(mr != nullptr);
  }
};

class World {
 public:
  static constexpr uint8_t kGuard = 0xa5;
  enum { kOpen, kReadable, kLocal, kForeign, kRegions };

  static World& instance() {
    static World* world = std::make_unique<World>().release();
    return *world;
  }

  World() {
    ibv_context* context = iwarp_provider().open_device("iwarp0");
    pd = iwarp_provider().alloc_pd(context);
    foreign_pd = iwarp_provider().alloc_pd(context);
    cq = iwarp_provider().create_cq(context, 256, nullptr, nullptr, Progress::manual);
    void* wanted = reinterpret_cast<void*>(uintptr_t{0x2000} << 32);
    void* memory = mmap(wanted, kMemory, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_POPULATE, -1, 0);
    CHECK(memory == wanted && cq != nullptr);
    memory_ = static_cast<uint8_t*>(memory);
    constexpr int kAll =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    uint8_t* at = memory_ + kGuardLength;
    const auto add = [&](int number, size_t length, int access, uint8_t fill, ibv_pd* domain) {
      regions[static_cast<size_t>(number)] = {at, length, access, fill, domain, nullptr};
      regions[static_cast<size_t>(number)].enroll();
      at += length + kGuardLength;
    };
    add(kOpen, 64 * 1024, kAll, 0x11, pd);
    add(kReadable, 16 * 1024, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, 0x22, pd);
    add(kLocal, 16 * 1024, IBV_ACCESS_LOCAL_WRITE, 0x33, pd);
    add(kForeign, 16 * 1024, kAll, 0xdd, foreign_pd);
    CHECK(at == memory_ + kMemory);
    std::memset(memory_, kGuard, kMemory);
    for (const Region& region : regions) std::memset(region.data, region.fill, region.length);
  }

  void reset() {
    for (const int each : {kOpen, kLocal}) {
      const Region& region = regions[static_cast<size_t>(each)];
      std::memset(region.data, region.fill, region.length);
    }
  }

  // Whatever a peer may not write is what it was; of the local region the parts that were lent are skipped.
  void check(const std::bitset<16>& lent_pages) const {
    const auto all = [](const uint8_t* from, size_t length, uint8_t value) {
      return from[0] == value && std::memcmp(from, from + 1, length - 1) == 0;
    };
    CHECK(all(memory_, kGuardLength, kGuard));
    for (const Region& region : regions) CHECK(all(region.data + region.length, kGuardLength, kGuard));
    for (const int each : {kReadable, kForeign}) {
      const Region& region = regions[static_cast<size_t>(each)];
      CHECK(all(region.data, region.length, region.fill));
    }
    const Region& local = regions[kLocal];
    for (size_t page = 0; page < 16; page++) {
      // Lent are the first 900 bytes of a KiB.
      const size_t lent = lent_pages[page] ? 900 : 0;
      CHECK(all(local.data + page * 1024 + lent, 1024 - lent, local.fill));
    }
  }

  ibv_pd* pd;
  ibv_pd* foreign_pd;
  ibv_cq* cq;
  std::array<Region, kRegions> regions;

 private:
  static constexpr size_t kGuardLength = 4096;
  static constexpr size_t kMemory = (64 + 3 * 16) * 1024 + 5 * kGuardLength;
  uint8_t* memory_;
};

struct Choices {
  bool crc = true;
  bool markers = false;
  bool hold_sends = false;
  bool read_was_sent = false;
};

// One connection: the queue pair and its peer's end of the socket.
class Session {
 public:
  explicit Session(const Choices& choices) : choices_(choices) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    peer_ = ends[0];
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = attributes.recv_cq = world_.cq;
    attributes.cap = {16, 16, 4, 4, 64};
    qp_ = iwarp_provider().create_qp(world_.pd, &attributes);
    CHECK(qp_ != nullptr);
    ibv_qp_attr init{};
    init.qp_state = IBV_QPS_INIT;
    CHECK(iwarp_provider().modify_qp(qp_, &init, IBV_QP_STATE) == 0);
    QueuePair::StartParameters parameters;
    parameters.socket = UniqueFd(ends[1]);
    parameters.inbound_reads = 4;
    parameters.outbound_reads = 4;
    parameters.max_ulpdu = 1440;
    parameters.crc = choices.crc;
    parameters.send_markers = parameters.receive_markers = choices.markers;
    parameters.hold_sends = choices.hold_sends;
    parameters.read_was_sent = choices.read_was_sent;
    CHECK(static_cast<QueuePair*>(qp_)->start(std::move(parameters)) == 0);
  }

  // Ends the connection; then everything that was posted must have completed, once, and all that this side
  // said must have been well-formed.
  ~Session() {
    take_answers();
    ibv_qp_attr error{};
    error.qp_state = IBV_QPS_ERR;
    CHECK(iwarp_provider().modify_qp(qp_, &error, IBV_QP_STATE) == 0);
    poll();
    CHECK(receives_.none() && sends_.none());
    CHECK(iwarp_provider().destroy_qp(qp_) == 0);
    take_answers();
    ::close(peer_);
    world_.check(lent_);
  }

  // --- the peer

  void say(const uint8_t* bytes, size_t length) {
    while (length > 0) {
      const ssize_t sent = ::send(peer_, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent <= 0) return;  // it has stopped listening, or a later turn will take it
      bytes += sent;
      length -= static_cast<size_t>(sent);
      if (length > 0) poll();
    }
  }
  void hang_up() { ::shutdown(peer_, SHUT_WR); }
  void take_answers() {
    std::array<uint8_t, 65536> buffer;
    ssize_t got;
    while ((got = ::recv(peer_, buffer.data(), buffer.size(), MSG_DONTWAIT)) > 0) {
      answers_.insert(answers_.end(), buffer.begin(), buffer.begin() + got);
    }
    understand_answers();
  }

  // --- the application

  void poll() {
    ibv_wc wc;
    for (int i = 0; i < 64; i++) {
      const int count = ibv_poll_cq(world_.cq, 1, &wc);
      CHECK(count >= 0);
      if (count == 0) return;
      CHECK(wc.wr_id < 64 && wc.qp_num == qp_->qp_num);
      const bool receive = wc.wr_id >= 32;
      std::bitset<32>& outstanding = receive ? receives_ : sends_;
      CHECK(outstanding[wc.wr_id % 32]);
      outstanding[wc.wr_id % 32] = false;
      const bool placed = receive && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV;
      if (placed) CHECK(wc.byte_len <= 900);
    }
  }
  void post_receive() {
    const size_t number = std::exchange(next_receive_, (next_receive_ + 1) % 8);
    if (receives_[number]) return;
    lent_[number] = true;
    ibv_sge sge{world_.regions[World::kLocal].address() + number * 1024, 900,
                world_.regions[World::kLocal].mr->lkey};
    ibv_recv_wr request{}, *bad = nullptr;
    request.wr_id = 32 + number;
    request.sg_list = &sge;
    request.num_sge = 1;
    receives_[number] = ibv_post_recv(qp_, &request, &bad) == 0;
  }
  void post_send(uint8_t what) {
    const size_t number = std::exchange(next_send_, (next_send_ + 1) % 8);
    if (sends_[number]) return;
    // From memory that the peer cannot change: a posted payload must not change until it has completed,
    // because its CRC is computed before the socket takes it.
    ibv_sge sge{world_.regions[World::kReadable].address() + number * 2048, what * 8u,
                world_.regions[World::kReadable].mr->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    constexpr ibv_wr_opcode kOpcodes[] = {IBV_WR_RDMA_READ,     IBV_WR_SEND,
                                          IBV_WR_RDMA_WRITE,    IBV_WR_SEND_WITH_IMM,
                                          IBV_WR_RDMA_READ,     IBV_WR_RDMA_WRITE_WITH_IMM,
                                          IBV_WR_SEND_WITH_INV, IBV_WR_ATOMIC_FETCH_AND_ADD};
    request.opcode = kOpcodes[what % 8];
    const bool atomic = request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    if (request.opcode == IBV_WR_RDMA_READ || atomic) {
      lent_[8 + number] = true;
      sge = {world_.regions[World::kLocal].address() + (8 + number) * 1024,
             atomic ? 8u : std::min(what * 8u, 900u), world_.regions[World::kLocal].mr->lkey};
    }
    request.wr_id = number;
    request.send_flags = IBV_SEND_SIGNALED;
    request.sg_list = &sge;
    request.num_sge = 1;
    sends_[number] = ibv_post_send(qp_, &request, &bad) == 0;
  }

 private:
  // Each FPDU that this side has sent: framing, CRC, markers, headers.
  void understand_answers() {
    while (true) {
      const size_t lead = choices_.markers ? leading_marker(answer_position_) : 0;
      if (answers_.size() < lead + kFpduLengthField) return;
      const size_t ulpdu_length = static_cast<size_t>(answers_[lead]) << 8 | answers_[lead + 1];
      const size_t plain = fpdu_length(ulpdu_length);
      const size_t length = choices_.markers ? marked_length(answer_position_, plain) : plain;
      if (answers_.size() < length) return;
      CHECK(!terminated_);
      const uint32_t crc = load_crc(&answers_[length - kFpduCrcLength]);
      CHECK(crc == (choices_.crc ? crc32c(answers_.data(), length - kFpduCrcLength) : 0));
      if (choices_.markers) CHECK(remove_markers(answers_.data(), length, answer_position_));
      Segment segment;
      TerminateCode why;
      const uint8_t* ulpdu = answers_.data() + kFpduLengthField;
      CHECK(parse_segment(ulpdu, ulpdu_length, segment, why));
      if (segment.opcode == Opcode::terminate) {
        terminated_ = true;
        TerminateMessage message;
        CHECK(parse_terminate(ulpdu + segment.header_length, segment.payload_length, message));
      }
      // Unreadable memory is in no answer.
      const uint8_t* payload = ulpdu + segment.header_length;
      if (segment.opcode == Opcode::read_response) {
        const auto secret = [](uint8_t byte) {
          return byte == World::kGuard || byte == 0xdd || byte == 0x33;
        };
        if (honest_payloads) CHECK(std::none_of(payload, payload + segment.payload_length, secret));
      }
      answers_.erase(answers_.begin(), answers_.begin() + static_cast<long>(length));
      answer_position_ += length;
    }
  }

 public:
  // No byte that the peer has sent looks like one of those it may not read.
  bool honest_payloads = true;

 private:
  const Choices choices_;
  World& world_ = World::instance();
  ibv_qp* qp_;
  int peer_;
  std::bitset<32> receives_, sends_;
  std::bitset<16> lent_;
  size_t next_receive_ = 0;
  size_t next_send_ = 0;
  Bytes answers_;
  uint64_t answer_position_ = 0;
  bool terminated_ = false;
};

}  // namespace fuzz
