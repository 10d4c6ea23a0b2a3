// A peer that announces segments without end, of one page each. The kernel lets a process have so many
// mappings (vm.max_map_count), and without another one nothing goes on, the heap included.
#include <sys/mman.h>

#include "../events.h"
#include "../traffic.h"
#include "raw_peer.h"

namespace shm_mappings_stress {

using namespace fixture;

constexpr size_t kPage = 4096;

// Its segments are numbered from 0.
struct Announcer : Victim {
  uint32_t next = 0;

  Announcer() : Victim({.depth = 16}) {}

  void announce(size_t count) {
    for (size_t i = 0; i < count; i++) {
      const UniqueFd fd(memfd_create("announced", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      CHECK(fd && ftruncate(fd.get(), kPage) == 0 &&
            fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
      const shm::SegmentFrame frame{shm::header_of(shm::FrameType::announce), next++, 1};
      int error;
      while ((error = shm::send_frame(peer.socket.get(), &frame, sizeof frame, std::array{fd.get()})) ==
             EAGAIN)
        std::this_thread::yield();
      CHECK(error == 0);
    }
  }
  void withdraw(uint32_t number) const {
    const shm::SegmentFrame frame{shm::header_of(shm::FrameType::withdraw), number, 1};
    CHECK(shm::send_frame(peer.socket.get(), &frame, sizeof frame, {}) == 0);
  }
  // The victim has taken all that was announced: a request to the last finds it.
  void expect_taken() {
    constexpr uint32_t kKey = 1 << 8;
    shm::RegionEntry& region = peer.own_region(kKey);
    region.access = shm::kRegion | kAllAccess;
    region.segment = next - 1;
    region.generation = 1;
    region.length = kPage;
    region.key.store(kKey);
    Memory memory(end->pd, kPage);
    post(*end, read_from({0, kKey}, 0, 1), {memory.sge(0, 8)});
    end->expect(1);
  }
  void expect_refusal(Watch& watch) const {
    CHECK(end->id.events->expect(CmEvent::Type::disconnected).status == ENOMEM);
    watch.expect(IBV_EVENT_QP_FATAL, end->qp);
  }
};

void a_peer_has_so_many() {
  Watch watch;
  Announcer announcer;
  announcer.announce(shm::most_mappings_of_peer());
  announcer.expect_taken();
  announcer.withdraw(0);
  announcer.announce(1);
  announcer.expect_taken();
  announcer.announce(1);
  announcer.expect_refusal(watch);
}

// Other peers have had theirs. Who is not connected to one that is refused goes on, and there is room again
// when a peer is gone.
void all_have_so_many() {
  Watch watch;
  std::vector<std::unique_ptr<Announcer>> announcers;
  for (size_t left = shm::most_mappings_of_peers(); left > 0;) {
    const size_t count = std::min(left, shm::most_mappings_of_peer());
    announcers.push_back(std::make_unique<Announcer>());
    announcers.back()->announce(count);
    announcers.back()->expect_taken();
    left -= count;
  }
  {
    Announcer late;
    late.announce(1);
    late.expect_refusal(watch);
  }
  announcers.pop_back();
  Announcer next;
  next.announce(1);
  next.expect_taken();
}

STRESS(shm_mappings) {
  if (shm::most_mappings_of_peers() > shm::kMaxSegments) {
    std::puts("SKIPPED, vm.max_map_count lets a process have more than a test can announce");
    return 0;
  }
  timed("a peer has so many", a_peer_has_so_many);
  timed("all have so many", all_have_so_many);
  std::puts("ok");
  return 0;
}

}  // namespace shm_mappings_stress
