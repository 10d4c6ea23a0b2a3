// Peers that mean harm. Each of them loses its own connection, and nothing else happens: a good connection
// beside them keeps transferring data that it verifies, no memory that they must not touch changes, and none
// of them costs more than its share of memory and time.
#include <random>

#include "raw_peer.h"

namespace iwarp_hostile_stress {

using namespace fixture;
using namespace std::chrono_literals;

// Registered memory between two guards.
struct Guarded {
  static constexpr size_t kGuard = 8192;
  Bytes bytes;
  size_t length;
  ibv_mr* mr;

  Guarded(ibv_pd* pd, size_t size)
      : bytes(size + 2 * kGuard, 0xa5),
        length(size),
        mr(provider().reg_mr(pd, data(), size,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)) {
    CHECK(mr != nullptr);
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() {
    CHECK(is_filled(bytes.data(), kGuard, 0xa5));
    CHECK(is_filled(bytes.data() + kGuard + length, kGuard, 0xa5));
    CHECK(provider().dereg_mr(mr) == 0);
  }
  uint8_t* data() { return bytes.data() + kGuard; }
  uint64_t address(uint64_t offset = 0) { return reinterpret_cast<uint64_t>(data()) + offset; }
  ibv_sge sge(size_t offset, size_t size) { return {address(offset), static_cast<uint32_t>(size), mr->lkey}; }
};

// The good connection: WRITEs and reads back, as fast as it can, until it is destroyed.
class Bystander {
 public:
  // `pause`: between its rounds, as there are two cores for all.
  Bystander(Listener& listener, Progress progress, std::chrono::microseconds pause = 200us)
      : pause_(pause),
        pair_(listener, {.progress = progress}, {.progress = Progress::automatic}),
        near_(pair_.client->pd, 2 * kLength),
        far_(pair_.server->pd, kLength),
        thread_([this] { run(); }) {}
  ~Bystander() {
    stop_ = true;
    thread_.join();
    std::printf(
        "  the bystander: %llu rounds, the slowest %lld ms\n", static_cast<unsigned long long>(rounds_),
        static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(slowest_).count()));
    // By time, as it is time that it must not lose; other processes may take more of it than any peer does.
    CHECK(rounds_ > 0 && slowest_ < kHang / 4);
  }
  uint64_t rounds() const { return rounds_; }
  // Returns when it has done some more.
  void still_well() const {
    await([this, before = rounds_.load()] { return rounds_ >= before + 2; });
  }
  uint32_t key() const { return far_.mr->rkey; }
  uint64_t address() { return far_.address(); }

 private:
  static constexpr size_t kLength = 20'000;

  void run() {
    std::mt19937 random(11);
    while (!stop_) {
      const auto begin = Clock::now();
      fill_noise(near_.data(), kLength, random());
      post(*pair_.client,
           {.opcode = IBV_WR_RDMA_WRITE,
            .flags = 0,
            .remote_address = far_.address(),
            .remote_key = far_.mr->rkey},
           {near_.sge(0, kLength)});
      post(*pair_.client,
           {.wr_id = 1,
            .opcode = IBV_WR_RDMA_READ,
            .remote_address = far_.address(),
            .remote_key = far_.mr->rkey},
           {near_.sge(kLength, kLength)});
      pair_.client->expect(1);
      CHECK(std::memcmp(near_.data(), near_.data() + kLength, kLength) == 0);
      slowest_ = std::max(slowest_, Clock::now() - begin);
      rounds_++;
      std::this_thread::sleep_for(pause_);
    }
  }

  const std::chrono::microseconds pause_;
  Pair pair_;
  Guarded near_, far_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> rounds_{0};
  Clock::duration slowest_{};
  std::thread thread_;
};

// A victim with memory that a peer may use, between guards.
struct Target {
  Victim victim;
  Guarded memory;
  explicit Target(Progress progress) : victim(progress), memory(victim.end->pd, 64 * 1024) {}

  // Sends, and waits until the connection has ended.
  void ends_by(const Bytes& bytes) {
    victim.peer.send(bytes);
    victim.drain();
    CHECK(victim.end->id.events->expect(CmEvent::Type::disconnected).status != 0);
  }
};

// Single messages that ask for what is not theirs; the guards and the bystander's memory are watched.
void trespassers(Progress progress, Bystander& bystander) {
  const Bytes payload(2000, 0xee);
  const Bytes large(50'000, 0xee);
  std::mt19937 random(12);
  const auto write = [&](uint32_t stag, uint64_t address) {
    for (const Bytes& each : {payload, large})
      Target(progress).ends_by(fpdu(tagged(Opcode::write, stag, address, each)));
  };
  const auto read = [&](uint32_t stag, uint64_t address, uint32_t length) {
    Target(progress).ends_by(fpdu(read_request(1, {1, 0, length, stag, address})));
  };
  for (int i = 0; i < 20; i++) {
    const uint32_t guess = random();
    write(guess, random());
    read(guess, random(), random() | 1);
  }
  // Another tenant's key, with the right address.
  write(bystander.key(), bystander.address());
  read(bystander.key(), bystander.address(), 100);
  for (const uint64_t beyond : {uint64_t{1}, uint64_t{2000}, uint64_t{64 * 1024}, uint64_t{1} << 40}) {
    for (const bool reading : {false, true}) {
      Target target(progress);
      const uint64_t address = target.memory.address(target.memory.length + beyond) - 2000;
      const uint32_t key = target.memory.mr->rkey;
      target.ends_by(reading ? fpdu(read_request(1, {1, 0, 2000, key, address}))
                             : fpdu(tagged(Opcode::write, key, address, payload)));
    }
  }
  for (const uint64_t address : {UINT64_MAX, UINT64_MAX - 1999, UINT64_MAX - 1000, uint64_t{0}}) {
    for (const bool reading : {false, true}) {
      Target target(progress);
      const uint32_t key = target.memory.mr->rkey;
      target.ends_by(reading ? fpdu(read_request(1, {1, 0, UINT32_MAX, key, address}))
                             : fpdu(tagged(Opcode::write, key, address, payload)));
    }
  }
  bystander.still_well();
}

void wrong_crcs(Progress progress, Bystander& bystander) {
  for (const size_t length : {0u, 1u, 1000u, 60'000u}) {
    Target target(progress);
    Bytes bytes = fpdu(tagged(Opcode::write, target.memory.mr->rkey, target.memory.address(), Bytes(length)));
    bytes.back() ^= 0x80;
    target.ends_by(bytes);
  }
  bystander.still_well();
}

void noise(Progress progress, Bystander& bystander) {
  std::mt19937 random(13);
  for (int round = 0; round < effort(60); round++) {
    Target target(progress);
    for (uint64_t i = 0; i < 4; i++) post_receive(*target.victim.end, i, target.memory.sge(0, 1000));
    Bytes all;
    for (int part = 0; part < 10; part++) {
      Bytes ulpdu(random() % 3 == 0 ? random() % 60'000 : random() % 100);
      fill_noise(ulpdu.data(), ulpdu.size(), random());
      all += (round % 2 ? ulpdu : fpdu(ulpdu));
    }
    target.victim.peer.send(all);
    target.victim.peer.close();
    target.victim.drain();
  }
  bystander.still_well();
}

// WRITEs of one byte and of none, very many of them: legal, so they are served, and the others have their
// turns.
void tiny_messages(Progress progress, Bystander& bystander) {
  Target target(progress);
  constexpr int kChunk = 1000;
  const int kMessages = (effort(120'000) + kChunk - 1) / kChunk * kChunk;
  Bytes chunk;
  for (int i = 0; i < kChunk; i++) {
    const Bytes payload = i % 2 ? Bytes{static_cast<uint8_t>(i)} : Bytes{};
    chunk += fpdu(tagged(Opcode::write, target.memory.mr->rkey, target.memory.address(i), payload));
  }
  const uint64_t before = bystander.rounds();
  std::thread sender([&] {
    for (int i = 0; i < kMessages / kChunk; i++) target.victim.peer.send(chunk);
    target.victim.peer.send(
        fpdu(read_request(1, {1, 0, 1, target.memory.mr->rkey, target.memory.address(1)})));
  });
  const Bytes answer = target.victim.answer();
  sender.join();
  CHECK(answer == tagged(Opcode::read_response, 1, 0, {1}));
  for (int i = 1; i < kChunk; i += 2) CHECK(target.memory.data()[i] == static_cast<uint8_t>(i));
  CHECK(bystander.rounds() > before);
}

size_t resident() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long size = 0, pages = 0;
  CHECK(file != nullptr && std::fscanf(file, "%lu %lu", &size, &pages) == 2);
  std::fclose(file);
  return pages * 4096;
}

// Peers that ask for READs and never take the answers cost a socket buffer (the kernel's) and no more.
void peers_that_never_read(Bystander& bystander) {
  constexpr size_t kPeers = 32;
  std::vector<std::unique_ptr<Target>> targets;
  for (size_t i = 0; i < kPeers; i++) targets.push_back(std::make_unique<Target>(Progress::automatic));
  // What the peers send is made beforehand: a sanitizer keeps what the test frees.
  std::vector<Bytes> requests, writes;
  for (const auto& target : targets) {
    const uint32_t stag = target->memory.mr->rkey;
    Bytes all;
    for (uint32_t i = 1; i <= 4; i++) {  // as many as were agreed on
      all += fpdu(read_request(i, {1, 0, 64 * 1024, stag, target->memory.address()}));
    }
    requests.push_back(std::move(all));
    writes.push_back(fpdu(tagged(Opcode::write, stag, target->memory.address(), Bytes(60'000))));
  }
  const size_t before = resident();
  for (size_t i = 0; i < kPeers; i++) targets[i]->victim.peer.send(requests[i]);
  bystander.still_well();
  // WRITEs behind them are still taken in.
  for (size_t i = 0; i < kPeers; i++) {
    for (int round = 0; round < 20; round++) targets[i]->victim.peer.send(writes[i]);
  }
  bystander.still_well();
  const size_t after = resident();
  const size_t growth = after > before ? after - before : 0;
  std::printf("  %zu peers that never read: %zu KiB each\n", kPeers, growth / kPeers / 1024);
  CHECK(growth / kPeers < 512 * 1024);  // buffers of 32 and 64 KiB, and what a sanitizer adds
}

// More Read Requests than were agreed on, without waiting for answers.
void read_floods(Progress progress, Bystander& bystander) {
  Target target(progress);
  const int small = 4096;  // or the kernel takes all the answers
  setsockopt(target.victim.peer.descriptor(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  Bytes flood;
  for (uint32_t i = 1; i <= 3000; i++) {
    flood += fpdu(read_request(i, {1, 0, 64 * 1024, target.memory.mr->rkey, target.memory.address()}));
  }
  target.ends_by(flood);
  bystander.still_well();
}

void terminate_floods(Progress progress, Bystander& bystander) {
  Bytes flood;
  for (uint32_t i = 1; i <= 5000; i++) {
    Bytes payload(kMaxTerminateLength);
    TerminateMessage message;
    message.code = {static_cast<uint8_t>(i % 4), static_cast<uint8_t>(i % 16), static_cast<uint8_t>(i)};
    message.has_segment = i % 2;
    payload.resize(build_terminate(payload.data(), message, nullptr));
    flood += fpdu(untagged(Opcode::terminate, 2, i, 0, payload));
  }
  Target target(progress);
  post_receive(*target.victim.end, 1, target.memory.sge(0, 8));
  target.victim.peer.send(flood);
  target.victim.end->expect(1, IBV_WC_WR_FLUSH_ERR);
  CHECK(target.victim.end->id.events->expect(CmEvent::Type::disconnected).status == ECONNABORTED);
  bystander.still_well();
}

// Gone after each possible part of an FPDU, in order and with a reset.
void gone_within_an_fpdu(Progress progress, Bystander& bystander) {
  for (const size_t length : {20u, 30'000u}) {
    for (const size_t part :
         {size_t{1}, size_t{2}, size_t{3}, size_t{10}, size_t{16}, size_t{20}, length + 17}) {
      for (const bool reset : {false, true}) {
        Target target(progress);
        const Bytes whole =
            fpdu(tagged(Opcode::write, target.memory.mr->rkey, target.memory.address(), Bytes(length)));
        if (reset) {
          const linger hard{1, 0};
          setsockopt(target.victim.peer.descriptor(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        }
        target.victim.peer.send(Bytes(whole.begin(), whole.begin() + static_cast<long>(part)));
        target.victim.peer.close();
        target.victim.drain();
        CHECK(target.victim.end->id.events->expect(CmEvent::Type::disconnected).status == ECONNRESET);
      }
    }
  }
  bystander.still_well();
}

// Half of a handshake, and one that takes a byte at a time: both are over after the deadline, and while they
// last others connect. False: the machine was so slow that the deadline was over first.
bool slow_handshakes(Bystander& bystander) {
  Listener listener;
  std::vector<std::unique_ptr<RawPeer>> half_open;
  for (int i = 0; i < 100; i++) {
    half_open.push_back(std::make_unique<RawPeer>(listener));
    if (i % 2) half_open.back()->send(text("MPA ID Req Frame"));
  }
  RawPeer slow(listener);
  const Bytes request = build_mpa(enhanced_request());
  { const Pair another(listener, {.progress = Progress::automatic}, {.progress = Progress::automatic}); }
  pollfd first{half_open.front()->descriptor(), POLLIN, 0};
  const bool in_time = ::poll(&first, 1, 0) == 0;
  // With each byte all over again, the deadline would be over after three times as long.
  size_t sent = 0;
  pollfd waiting{slow.descriptor(), POLLIN, 0};
  while (sent < request.size() && ::poll(&waiting, 1, 500) == 0) slow.send({request[sent++]});
  CHECK(sent < request.size() && slow.receive(1).empty());
  for (const auto& each : half_open) CHECK(each->receive(1).empty());
  CHECK(listener.events->empty());
  bystander.still_well();
  return in_time;
}

STRESS(iwarp_hostile) {
  Listener listener;
  const auto all = [&](Progress progress) {
    Bystander bystander(listener, progress);
    timed("trespassers", [&] { trespassers(progress, bystander); });
    timed("wrong CRCs", [&] { wrong_crcs(progress, bystander); });
    timed("noise", [&] { noise(progress, bystander); });
    timed("tiny messages", [&] { tiny_messages(progress, bystander); });
    timed("floods of READs", [&] { read_floods(progress, bystander); });
    timed("floods of Terminates", [&] { terminate_floods(progress, bystander); });
    timed("gone within an FPDU", [&] { gone_within_an_fpdu(progress, bystander); });
  };
  std::thread slow([&] {
    timed("slow handshakes", [] {
      Listener another;
      Bystander bystander(another, Progress::automatic, 5ms);
      while (!slow_handshakes(bystander)) {
      }
    });
  });
  all(Progress::manual);
  all(Progress::automatic);
  slow.join();
  // Alone, as it measures the memory of this process.
  timed("peers that never read", [&] {
    Bystander bystander(listener, Progress::automatic);
    peers_that_never_read(bystander);
  });
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_hostile_stress
