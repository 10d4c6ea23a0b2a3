// A peer that writes nonsense into all that it can write: slots, counters, the region table and the
// receives that are its own, the eventfd, the socket. The victim neither crashes nor touches anything that
// it did not post or register, and its other connections go on.
//   shm_stress shm_hostile [SEED]
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>

#include "../../random_values.h"
#include "../process.h"
#include "shm/mapping/layout.h"
#include "shm/setup/frame.h"

namespace shm_hostile_stress {

using namespace fixture;
using rdmakit::UniqueFd;

const size_t kConnections = static_cast<size_t>(effort(120));
constexpr uint32_t kDepth = 16;

// --- The hostile process.

struct Bytes {
  uint8_t* data = nullptr;
  size_t size = 0;

  static Bytes map(int fd) {
    struct stat status {};
    if (fd < 0 || fstat(fd, &status) != 0 || status.st_size == 0) return {};
    const size_t size = static_cast<size_t>(status.st_size);
    void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? Bytes{} : Bytes{static_cast<uint8_t*>(at), size};
  }
  void unmap() {
    if (data != nullptr) munmap(data, size);
    data = nullptr;
  }
  void scribble(Random& random, size_t within) const {
    if (data == nullptr) return;
    const size_t at = random.below(std::min(size, within));
    if (random.one_in(2) && at + 4 <= size) {
      const uint32_t value = random.near(static_cast<uint32_t>(random.below(2 * kDepth)));
      std::memcpy(data + (at & ~size_t{3}), &value, sizeof value);
    } else {
      data[at] = static_cast<uint8_t>(random.word());
    }
  }
};

struct Hostile {
  Random& random;
  UniqueFd socket;
  shm::AreaShape shape{kDepth, 2};
  std::shared_ptr<shm::SharedMapping> area, table;  // its own
  UniqueFd area_fd, table_fd;
  UniqueFd event{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Bytes victim_area;
  uint32_t victim_entries = 1;
  UniqueFd victim_event;

  explicit Hostile(Random& from) : random(from) {
    area = shm::SharedMapping::create("hostile", shape.size(), shm::Sharing::writable, area_fd);
    table = shm::SharedMapping::create("hostile", shm::kMaxRegions * sizeof(shm::RegionEntry),
                                       shm::Sharing::read_only, table_fd);
    CHECK(area != nullptr && table != nullptr);
  }
  ~Hostile() { victim_area.unmap(); }

  UniqueFd some_descriptor() {
    switch (random.below(6)) {
      case 0:
        return UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC));
      case 1:
        return UniqueFd(eventfd(0, EFD_CLOEXEC));
      case 2:
        return UniqueFd(memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      case 3: {  // not sealed
        UniqueFd made(memfd_create("bare", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        CHECK(ftruncate(made.get(), 1 << 20) == 0);
        return made;
      }
      case 4:
        return UniqueFd(fcntl(area_fd.get(), F_DUPFD_CLOEXEC, 0));
      default: {
        UniqueFd made;
        shm::SharedMapping::create("short", 1 + random.below(8192), shm::Sharing::writable, made);
        return made;
      }
    }
  }

  // Whether the victim was taken in.
  bool greet(const std::string& path, bool honest) {
    socket = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const sockaddr_un address = place(path);
    const int yes = 1;
    setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes);
    CHECK(::connect(socket.get(), generic(address), sizeof address) == 0);
    shm::GreetingFrame greeting{};
    greeting.header = shm::header_of(shm::FrameType::request);
    greeting.receive_entries = shape.entries;
    greeting.receive_sges = shape.sges;
    greeting.queue_pair = honest ? 1 : random.word();
    greeting.flags = shm::kGreetingEventFd;
    std::vector<UniqueFd> extra;
    std::vector<int> fds = {area_fd.get(), table_fd.get(), event.get()};
    if (!honest) {
      if (random.one_in(3)) greeting.receive_entries = random.near(kDepth);
      if (random.one_in(3)) greeting.receive_sges = random.near(2);
      if (random.one_in(3)) greeting.flags = random.word() & 7;
      if (random.one_in(4)) greeting.private_length = random.near(shm::kMaxPrivateData);
      if (random.one_in(2)) {
        for (size_t i = 0; i < 3; i++) extra.push_back(some_descriptor());
        for (const UniqueFd& each : extra) {
          if (random.one_in(2)) fds.push_back(each.get());
        }
        std::shuffle(fds.begin(), fds.end(), std::minstd_rand(random.word()));
        fds.resize(std::min(fds.size(), size_t{random.below(shm::kMaxDescriptors + 1)}));
      }
    }
    if (shm::send_frame(socket.get(), &greeting, sizeof greeting, fds) != 0) return false;
    shm::Frame frame;
    pollfd waiting{socket.get(), POLLIN, 0};
    if (::poll(&waiting, 1, kHangMs) != 1 || shm::receive_frame(socket.get(), frame) != 0 ||
        frame.header.type != shm::FrameType::accept)
      return false;
    victim_entries = frame.greeting.receive_entries;
    victim_area = Bytes::map(frame.fds[0].get());
    CHECK(victim_area.data != nullptr);
    CHECK(Bytes::map(frame.fds[1].get()).data == nullptr);  // the region table is for reading only
    if (frame.greeting.flags & shm::kGreetingEventFd) victim_event = std::move(frame.fds[2]);
    const shm::PlainFrame ready{shm::header_of(shm::FrameType::synchronized), 0, shm::Blame::nothing, {}};
    return shm::send_frame(socket.get(), &ready, sizeof ready, {}) == 0;
  }

  void send_nonsense() {
    shm::Frame frame;
    auto* bytes = reinterpret_cast<uint8_t*>(&frame.greeting);
    for (size_t i = 0; i < sizeof(shm::SegmentFrame); i++) bytes[i] = static_cast<uint8_t>(random.word());
    frame.header = shm::header_of(static_cast<shm::FrameType>(random.below(11)));
    size_t length = sizeof(shm::SegmentFrame);
    if (random.one_in(2)) frame.segment.number = random.near(3);
    switch (random.below(8)) {
      case 0:
        length = random.below(sizeof(shm::GreetingFrame) + 1);
        break;
      case 1:
        frame.header.version++;
        break;
      case 2:
        length = sizeof(shm::GreetingFrame);
        break;
      default:
        break;
    }
    std::vector<UniqueFd> owned;
    std::vector<int> fds;
    for (uint64_t i = random.below(4); i > 0; i--) {
      owned.push_back(some_descriptor());
      fds.push_back(owned.back().get());
    }
    shm::send_frame(socket.get(), &frame.greeting, length, fds);
  }

  // A message that could be one, but for a detail.
  void forge_arrival(uint32_t number) {
    if (victim_area.data == nullptr) return;
    const shm::AreaShape its{victim_entries, 1};
    auto* slots = reinterpret_cast<shm::Slot*>(victim_area.data + its.slots_at());
    shm::Slot& slot = slots[number % victim_entries];
    slot.length = random.near(static_cast<uint32_t>(random.below(300)));
    slot.immediate = random.word();
    slot.kind = static_cast<shm::SlotKind>(random.one_in(8) ? random.word() : random.below(3));
    slot.flags = static_cast<uint8_t>(random.one_in(8) ? random.word() : random.below(4));
    slot.sequence.store(random.one_in(30) ? random.word() : number + 1);
  }

  void forge_own() {
    auto* header = reinterpret_cast<shm::AreaHeader*>(area->data());
    auto* entries = reinterpret_cast<shm::RegionEntry*>(table->data());
    switch (random.below(4)) {
      case 0:
        header->posted.store(random.near(kDepth));
        break;
      case 1:
        header->floor.store(random.one_in(2) ? random.word() : UINT32_MAX);
        break;
      case 2: {
        shm::RegionEntry& entry = entries[1 + random.below(4)];
        entry.access = random.one_in(4) ? random.word() : shm::kRegion | 15;
        entry.segment = random.one_in(2) ? shm::kNoSegment : random.near(1);
        entry.generation = random.near(1);
        entry.address = random.one_in(2) ? random.word() : 0;
        entry.length = random.one_in(2) ? UINT64_MAX : random.word();
        entry.segment_address = random.one_in(2) ? 0 : random.word();
        entry.key.store(static_cast<uint32_t>(1 + random.below(4)) << 8);
        break;
      }
      default:
        Bytes{area->data(), area->size()}.scribble(random, area->size());
    }
  }

  void attack(uint64_t turns, bool memory, bool frames) {
    for (uint32_t number = 0; number < turns; number++) {
      if (frames && random.one_in(50)) send_nonsense();
      if (!memory) continue;
      if (random.one_in(2)) forge_arrival(number / 4);
      if (random.one_in(20)) victim_area.scribble(random, sizeof(shm::AreaHeader));
      if (random.one_in(200)) victim_area.scribble(random, victim_area.size);
      forge_own();
      if (victim_event && random.one_in(100)) {
        const uint64_t value = random.one_in(2) ? UINT64_MAX - 1 : random.word();
        fcntl(victim_event.get(), F_SETFL, O_NONBLOCK);  // for this process's own sake
        [[maybe_unused]] const ssize_t done = write(victim_event.get(), &value, sizeof value);
      }
      uint8_t sink[1024];  // announcements, kicks
      while (recv(socket.get(), sink, sizeof sink, MSG_DONTWAIT) > 0) {
      }
    }
  }
};

void hostile_child(const std::string& where) {
  const size_t colon = where.rfind(':');
  const std::string path = where.substr(0, colon);
  Random random(std::stoull(where.substr(colon + 1)));
  for (;;) {  // until it is killed
    Hostile hostile(random);
    const uint64_t mode = random.below(8);
    if (hostile.greet(path, mode >= 3))
      hostile.attack(1'000 + random.below(15'000), mode % 4 != 0, mode % 2 == 0);
  }
}

// --- The victim.

// What is registered is posted only in its middle.
struct Guarded {
  static constexpr size_t kGuard = 4096, kBytes = kDepth * 256;
  Memory memory;
  explicit Guarded(ibv_pd* pd, Kind kind) : memory(pd, kBytes + 2 * kGuard, kAllAccess, kind) {
    std::memset(memory.data, 0xee, memory.size);
  }
  bool whole() const {
    return is_filled(memory.data, kGuard, 0xee) && is_filled(memory.data + kGuard + kBytes, kGuard, 0xee);
  }
  ibv_sge sge(uint64_t number, size_t length) const {
    return memory.sge(kGuard + number % kDepth * 256, std::min<size_t>(length, 256));
  }
};

struct Bystander {
  Listener listener;
  Pair pair{listener, {.channel = true}, {.channel = true}};
  Memory near{pair.client->pd, 4096}, far{pair.server->pd, 4096};
  uint64_t messages = 0;

  void exchange() {
    near.fill(++messages);
    post_receive(*pair.server, messages, far.sge(0, 4096));
    post(*pair.client, {.wr_id = messages}, {near.sge(0, messages % 4096)});
    pair.client->expect(messages);
    CHECK(pair.server->expect(messages).byte_len == messages % 4096 && same(near, far, messages % 4096));
  }
};

void post_something(End& end, const Guarded& memory, Random& random) {
  constexpr ibv_wr_opcode kOpcodes[] = {
      IBV_WR_SEND,      IBV_WR_SEND_WITH_IMM,        IBV_WR_RDMA_WRITE,   IBV_WR_RDMA_WRITE_WITH_IMM,
      IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_INV};
  // Mostly what needs no region of the peer: the others end the connection soon.
  Send send{.opcode = kOpcodes[random.one_in(10) ? random.below(std::size(kOpcodes)) : random.below(2)]};
  send.remote_key = static_cast<uint32_t>(random.below(6)) << 8;
  send.remote_address = random.below(8192);
  const bool atomic = send.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  const int error = try_post(end, send, {memory.sge(random.below(kDepth), atomic ? 8 : random.below(256))});
  CHECK(error == 0 || error == ENOMEM || error == EINVAL);
}

// Serves one hostile connection until it is over.
void serve(Id made, Random& random, Bystander& bystander) {
  ibv_pd* pd = provider().alloc_pd(context());
  {
    End end(std::move(made), {.channel = true, .depth = kDepth, .pd = pd, .hostile_peer = true});
    Guarded memory(pd, random.one_in(4) ? Kind::plain : Kind::shared);
    const auto receive = [&](uint64_t number) {
      ibv_sge sge = memory.sge(number, 256);
      ibv_recv_wr request{}, *bad = nullptr;
      request.wr_id = number;
      request.sg_list = &sge;
      request.num_sge = 1;
      return ibv_post_recv(end.qp, &request, &bad);
    };
    for (uint64_t i = 0; i < kDepth; i++) CHECK(receive(i) == 0);
    ConnectParameters parameters;
    parameters.qp = end.qp;
    CHECK(end.id.id->accept(parameters) == 0);
    const auto deadline = Clock::now() + kHang;
    for (uint64_t turn = 0; end.id.events->empty() || turn < 100; turn++) {
      CHECK(Clock::now() < deadline);
      if (!end.id.events->empty() && end.id.events->next().type != CmEvent::Type::established) break;
      post_something(end, memory, random);
      ibv_wc wc[4];
      const int count = ibv_poll_cq(end.cq, 4, wc);
      for (int i = 0; i < count; i++) {
        if (wc[i].opcode != IBV_WC_RECV && wc[i].opcode != IBV_WC_RECV_RDMA_WITH_IMM) continue;
        CHECK(wc[i].wr_id < kDepth);
        if (wc[i].status == IBV_WC_SUCCESS)
          CHECK(wc[i].byte_len <= (wc[i].opcode == IBV_WC_RECV ? 256 : shm::kMaxMessage));
        const int error = receive(wc[i].wr_id);
        CHECK(error == 0 || error == ENOMEM);
      }
      if (turn % 64 == 0) {
        CHECK(memory.whole());
        ibv_req_notify_cq(end.cq, 0);
        ibv_cq* ready = nullptr;
        void* ready_context = nullptr;
        if (provider().data_path_verbs()->get_cq_event(end.channel, &ready, &ready_context) == 0) {
          provider().data_path_verbs()->ack_cq_events(ready, 1);
        }
        bystander.exchange();
      }
    }
    CHECK(memory.whole());
  }
  CHECK(provider().dealloc_pd(pd) == 0);
}

STRESS(shm_hostile) {
  if (count == 3) {
    hostile_child(arguments[2]);
    return 0;
  }
  const uint64_t seed = count > 1 ? std::stoull(arguments[1]) : std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  Random random(seed);
  Bystander bystander;
  Listener listener;
  size_t rounds = 0;
  {
    Child child("hostile", listener.path + ":" + std::to_string(seed));
    while (rounds < kConnections) {
      if (listener.events->empty()) {
        bystander.exchange();
        continue;
      }
      serve(Id(listener.events->expect(CmEvent::Type::connect_request).request), random, bystander);
      rounds++;
    }
    child.signal(SIGKILL);
    CHECK(WIFSIGNALED(child.wait()));
  }
  std::printf("%zu hostile connections, %llu messages beside them\n", rounds,
              static_cast<unsigned long long>(bystander.messages));
  std::puts("ok");
  return 0;
}

}  // namespace shm_hostile_stress
