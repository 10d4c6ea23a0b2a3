// The other end of a connection by hand: a socket, and the memory that a greeting brings. It answers nothing
// by itself.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>

#include <array>

#include "../fixture.h"
#include "shm/mapping/layout.h"
#include "shm/mapping/shared_mapping.h"
#include "shm/setup/frame.h"

namespace fixture {

struct RawPeer {
  static constexpr shm::AreaShape kShape{16, 2};

  UniqueFd socket;
  std::shared_ptr<shm::SharedMapping> area, table;  // its own
  UniqueFd area_fd, table_fd;
  // What the victim has shown of itself.
  shm::AreaShape its_shape;
  uint8_t* its_area = nullptr;
  const shm::RegionEntry* its_table = nullptr;

  explicit RawPeer(const Listener& listener) {
    area = shm::SharedMapping::create("raw", kShape.size(), shm::Sharing::writable, area_fd);
    table = shm::SharedMapping::create("raw", kTableBytes, shm::Sharing::read_only, table_fd);
    CHECK(area != nullptr && table != nullptr);
    socket = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const int yes = 1;
    const sockaddr_un address = listener.address();
    CHECK(setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) == 0);
    CHECK(::connect(socket.get(), generic(address), sizeof address) == 0);
    shm::GreetingFrame greeting{};
    greeting.header = shm::header_of(shm::FrameType::request);
    greeting.receive_entries = kShape.entries;
    greeting.receive_sges = kShape.sges;
    greeting.queue_pair = 1;
    CHECK(shm::send_frame(socket.get(), &greeting, sizeof greeting,
                          std::array{area_fd.get(), table_fd.get()}) == 0);
  }
  RawPeer(const RawPeer&) = delete;
  ~RawPeer() {
    if (its_area != nullptr) munmap(its_area, its_shape.size());
    if (its_table != nullptr) munmap(const_cast<shm::RegionEntry*>(its_table), kTableBytes);
  }

  // The victim has called accept().
  void finish() {
    shm::Frame frame;
    pollfd waiting{socket.get(), POLLIN, 0};
    CHECK(::poll(&waiting, 1, kHangMs) == 1 && shm::receive_frame(socket.get(), frame) == 0);
    CHECK(frame.header.type == shm::FrameType::accept);
    its_shape = {frame.greeting.receive_entries, frame.greeting.receive_sges,
                 (frame.greeting.flags & shm::kGreetingStamps) != 0};
    its_area = static_cast<uint8_t*>(map(frame.fds[0].get(), its_shape.size(), PROT_READ | PROT_WRITE));
    its_table = static_cast<const shm::RegionEntry*>(map(frame.fds[1].get(), kTableBytes, PROT_READ));
    const shm::PlainFrame ready{shm::header_of(shm::FrameType::synchronized), 0, shm::Blame::nothing, {}};
    CHECK(shm::send_frame(socket.get(), &ready, sizeof ready, {}) == 0);
  }

  // Memory of its own, as segment `number` of generation 1.
  void announce(uint32_t number, int fd) const {
    const shm::SegmentFrame frame{shm::header_of(shm::FrameType::announce), number, 1};
    CHECK(shm::send_frame(socket.get(), &frame, sizeof frame, std::array{fd}) == 0);
  }

  // Its own, which the victim reads.
  shm::AreaHeader& own_header() const { return *reinterpret_cast<shm::AreaHeader*>(area->data()); }
  const shm::Slot& own_slot(uint32_t number) const {
    return reinterpret_cast<shm::Slot*>(area->data() + kShape.slots_at())[number % kShape.entries];
  }
  shm::ReceiveEntry& own_entry(uint32_t number) const {
    return *reinterpret_cast<shm::ReceiveEntry*>(area->data() + kShape.entries_at() +
                                                 number % kShape.entries * kShape.entry_stride());
  }
  shm::RegionEntry& own_region(uint32_t key) const {
    return reinterpret_cast<shm::RegionEntry*>(table->data())[shm::slot_of_key(key)];
  }

  // The victim's.
  shm::AreaHeader& header() const { return *reinterpret_cast<shm::AreaHeader*>(its_area); }
  shm::Slot& slot(uint32_t number) const {
    return reinterpret_cast<shm::Slot*>(its_area + its_shape.slots_at())[number % its_shape.entries];
  }
  bool is_live(uint32_t key) const { return its_table[shm::slot_of_key(key)].key.load() == key; }

 private:
  static constexpr size_t kTableBytes = shm::kMaxRegions * sizeof(shm::RegionEntry);
  static void* map(int fd, size_t size, int protection) {
    void* at = mmap(nullptr, size, protection, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
  }
};

// An end that has accepted a raw peer.
struct Victim {
  Listener listener;
  RawPeer peer{listener};
  std::unique_ptr<End> end;

  explicit Victim(const Options& options = {}) {
    CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
    end = std::make_unique<End>(Id(std::move(request.request)), options);
    accept(*end);
    peer.finish();
    end->id.events->expect(CmEvent::Type::established);
  }
  bool nothing_completes() const {
    ibv_wc wc;
    return ibv_poll_cq(end->cq, 1, &wc) == 0;
  }
};

}  // namespace fixture
