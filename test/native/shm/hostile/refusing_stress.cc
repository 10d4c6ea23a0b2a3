// An acceptor that says it is at the initiator's memory, and then does not accept. Its word counts, for an
// acceptor is in use of the initiator's area before the initiator has read its answer; but only while it is
// there.
#include "../traffic.h"
#include "raw_peer.h"

namespace shm_refusing_stress {

using namespace fixture;

// It listens, by hand.
struct Refuser {
  std::string path = fresh_path();
  UniqueFd listening{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  UniqueFd socket;
  size_t size = 0;
  uint8_t* area = nullptr;  // the initiator's

  Refuser() {
    const sockaddr_un address = place(path);
    CHECK(::bind(listening.get(), generic(address), sizeof address) == 0);
    CHECK(::listen(listening.get(), 1) == 0);
  }
  Refuser(const Refuser&) = delete;
  ~Refuser() {
    ::unlink(path.c_str());
    if (area != nullptr) munmap(area, size);
  }
  // The initiator connects: its request is taken, and from here on `key` is said to be in use.
  void take(uint32_t key) {
    socket = UniqueFd(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    shm::Frame frame;
    expect_readable();
    CHECK(shm::receive_frame(socket.get(), frame) == 0 && frame.header.type == shm::FrameType::request);
    const shm::GreetingFrame& greeting = frame.greeting;
    size = shm::AreaShape{greeting.receive_entries, greeting.receive_sges}.size();
    void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, frame.fds[0].get(), 0);
    CHECK(at != MAP_FAILED);
    area = static_cast<uint8_t*>(at);
    reinterpret_cast<shm::AreaHeader*>(area)->hazard.store(key);
  }
  void reject() const {
    shm::GreetingFrame greeting{};
    greeting.header = shm::header_of(shm::FrameType::reject);
    CHECK(shm::send_frame(socket.get(), &greeting, sizeof greeting, {}) == 0);
  }
  void expect_hang_up() const {
    shm::Frame frame;
    expect_readable();
    CHECK(shm::receive_frame(socket.get(), frame) == EPIPE);
  }

 private:
  void expect_readable() const {
    pollfd waiting{socket.get(), POLLIN, 0};
    CHECK(::poll(&waiting, 1, kHangMs) == 1);
  }
};

// An initiator with memory that is not shared, and whose end thus waits for peers.
struct Initiator {
  Refuser refuser;
  std::unique_ptr<End> end = resolve(refuser.path, {.hostile_peer = true});
  Memory first{end->pd, 64, kAllAccess, Kind::plain}, second{end->pd, 64, kAllAccess, Kind::plain};

  Initiator() {
    uint32_t dead_key = 0;
    {
      const Memory memory(end->pd, 64);
      dead_key = memory.mr->rkey;
    }
    connect(*end);
    refuser.take(dead_key);
  }
  int deregister(Memory& memory) { return provider().dereg_mr(std::exchange(memory.mr, nullptr)); }
  void expect_rest() {
    CHECK(deregister(first) == 0);
    CHECK(provider().destroy_qp(std::exchange(end->qp, nullptr)) == 0);
    end->id.id->close();
    CHECK(end->id.id->settled());
    CHECK(deregister(second) == 0);
  }
};

void refuses_and_goes() {
  Initiator initiator;
  initiator.refuser.reject();
  initiator.end->id.events->expect(CmEvent::Type::rejected);
  initiator.refuser.expect_hang_up();
  initiator.refuser.socket.reset();
  initiator.expect_rest();
}

void dies() {
  Initiator initiator;
  initiator.refuser.socket.reset();
  CHECK(initiator.end->id.events->expect(CmEvent::Type::connect_failed).status == ECONNRESET);
  initiator.expect_rest();
}

void is_left() {
  Initiator initiator;
  initiator.end->id.id->close();
  initiator.refuser.expect_hang_up();
  initiator.refuser.socket.reset();
  initiator.expect_rest();
}

// It is given up like one that is stopped in the middle of a copy, and not forgotten before it has gone.
void refuses_and_stays() {
  Initiator initiator;
  initiator.refuser.reject();
  initiator.end->id.events->expect(CmEvent::Type::rejected);
  CHECK(initiator.deregister(initiator.first) == ETIMEDOUT);
  CHECK(provider().destroy_qp(std::exchange(initiator.end->qp, nullptr)) == ETIMEDOUT);
  initiator.end->id.id->close();
  CHECK(!initiator.end->id.id->settled());
  initiator.refuser.expect_hang_up();
  initiator.refuser.socket.reset();
  CHECK(initiator.end->id.id->settled());
  CHECK(initiator.deregister(initiator.second) == 0);
}

STRESS(shm_refusing) {
  side_by_side({{"refuses and goes", refuses_and_goes},
                {"dies", dies},
                {"is left", is_left},
                {"refuses and stays", refuses_and_stays}});
  std::puts("ok");
  return 0;
}

}  // namespace shm_refusing_stress
