// RDMA READs of rings: right bytes under load of messages both ways, every one told of once whatever becomes
// of the connection, and memory that is held as long as it is being filled.
#include "traffic.h"

namespace ring_read_stress {

using namespace ring_test;

constexpr uint32_t kMost = 256 * 1024;  // of one READ
constexpr size_t kSource = 4 * kMost;

uint8_t pattern(size_t at) { return static_cast<uint8_t>(at * 31 + (at >> 8) * 7); }

struct Source {
  MrRef memory;
  explicit Source(Side& side) : memory(side.region(kSource)) {
    for (size_t at = 0; at < kSource; ++at) bytes()[at] = pattern(at);
  }
  uint8_t* bytes() const { return static_cast<uint8_t*>(memory->addr); }
  uint64_t address(uint64_t offset) const { return reinterpret_cast<uint64_t>(bytes()) + offset; }
};

// Messages on all connections, and READs on the first as fast as they go.
class Reads final : public Traffic {
 public:
  Reads(Side& side, std::vector<Endpoint>& ends, const Load& load, uint32_t seed, const Source& source,
        uint32_t reads)
      : Traffic(side, ends, load, seed),
        poller_(*side.poller),
        number_(ends[0].number),
        source_(source),
        sink_(side.region(size_t{kMost} * ring::kReservedForReads)),
        reads_(reads),
        random_(seed) {}

  bool act() override {
    bool any = false;
    while (posted_ < reads_) {
      uint32_t slot = 0;
      while (slot < ring::kReservedForReads && busy_[slot]) ++slot;
      if (slot == ring::kReservedForReads) break;
      const uint32_t length = 1 + static_cast<uint32_t>(random_() % kMost);
      const uint64_t offset = random_() % (kSource - length);
      const uint64_t sink = uint64_t{slot} * kMost;
      const auto result =
          poller_.read(number_, sink_, sink, source_.address(offset), source_.memory->rkey, length, slot);
      CHECK(result == ring::SendResult::done, "%d", static_cast<int>(result));
      busy_[slot] = true;
      length_[slot] = length;
      offset_[slot] = offset;
      ++posted_;
      any = true;
    }
    return any;
  }
  bool acted() const override { return done_ == reads_; }
  void read_done(uint32_t tag, uint32_t status) override {
    CHECK(tag < ring::kReservedForReads && busy_[tag]);
    CHECK(status == IBV_WC_SUCCESS, "READ: status %u", status);
    const uint8_t* bytes = static_cast<const uint8_t*>(sink_->addr) + uint64_t{tag} * kMost;
    CHECK(std::memcmp(bytes, source_.bytes() + offset_[tag], length_[tag]) == 0, "%u bytes at %lu",
          length_[tag], offset_[tag]);
    busy_[tag] = false;
    ++done_;
  }

 private:
  ring::Poller& poller_;
  uint32_t number_;
  const Source& source_;
  MrRef sink_;
  uint32_t reads_;
  uint32_t posted_ = 0;
  uint32_t done_ = 0;
  bool busy_[ring::kReservedForReads] = {};
  uint32_t length_[ring::kReservedForReads] = {};
  uint64_t offset_[ring::kReservedForReads] = {};
  std::mt19937 random_;
};

struct Ends {
  std::vector<Endpoint> client, server;
  ~Ends() {
    for (auto* side : {&client, &server}) {
      for (Endpoint& end : *side) {
        end.qp = {};
        end.id->close();
      }
    }
  }
};

ring::PollerOptions options(ring::Mode mode) {
  ring::PollerOptions made;
  made.mode = mode;
  made.max_connections = 256;
  made.descriptor_count = 64;
  return made;
}

void under_load(ring::Mode mode, uint64_t messages, uint32_t reads) {
  Side client(options(mode), 4096), server(options(mode), 4096);
  const Source here(client), there(server);
  Ends ends;
  connect(client, server, Shape{}, ends.client, ends.server, 2);
  const Load load{.messages = messages};
  Reads a(client, ends.client, load, 1, there, reads);
  Reads b(server, ends.server, load, 2, here, reads);
  std::thread other([&] { b.run(); });
  a.run();
  other.join();
  a.detach_all();
  b.detach_all();
}

// Takes descriptors of a side until `take` says that it is done.
template <typename Take>
void drain(Side& side, uint32_t& tail, Take take) {
  const auto deadline = std::chrono::steady_clock::now() + fixture::kHang;
  ring::EventRing& events = side.poller->event_ring();
  for (bool done = false; !done;) {
    CHECK(std::chrono::steady_clock::now() < deadline, "nothing more comes");
    const uint32_t head = events.word(ring::EventRing::kHead).load(std::memory_order_seq_cst);
    for (; !done && tail != head; ++tail) done = take(*events.at(tail));
    events.word(ring::EventRing::kTail).store(tail, std::memory_order_seq_cst);
    if (!done) side.wait_for_doorbell(tail);
  }
}

bool is(const ring::Descriptor& descriptor, ring::Event event) {
  return descriptor.type == static_cast<uint32_t>(event);
}

uint32_t refused = 0;

// `deed` is done while READs are outstanding: each of them is reported once, then the end of the connection,
// and the memory that the application has released is gone with the last of them.
template <typename Deed>
void ends_badly(const char* name, uint32_t key_change, bool detaches, Deed deed) {
  Side client(options(ring::Mode::adaptive), 4096), server(options(ring::Mode::adaptive), 4096);
  Ends ends;
  connect(client, server, Shape{}, ends.client, ends.server, 2);
  const Source source(server);
  const uint32_t number = ends.client[0].number;
  ring::Poller& poller = *client.poller;
  uint32_t expected = 15;
  {
    const MrRef sink = client.region(size_t{kMost} * 4);
    CHECK(poller.read(number, sink, kMost * 4 - 1, source.address(0), source.memory->rkey, 2, 0) ==
          ring::SendResult::too_long);
    CHECK(poller.read(number, sink, 0, source.address(0), source.memory->rkey, 0, 0) ==
          ring::SendResult::too_long);
    CHECK(poller.read(number, sink, UINT64_MAX, source.address(0), source.memory->rkey, 1, 0) ==
          ring::SendResult::too_long);
    CHECK(poller.read(0xffff0003, sink, 0, source.address(0), source.memory->rkey, 1, 0) ==
          ring::SendResult::closed);
    for (uint32_t tag = 0; tag < ring::kReservedForReads; ++tag)
      CHECK(poller.read(number, sink, uint64_t{tag} * kMost, source.address(0),
                        source.memory->rkey + key_change, kMost, tag) == ring::SendResult::done);
    const auto fifth = poller.read(number, sink, 0, source.address(0), source.memory->rkey + key_change,
                                   kMost, ring::kReservedForReads);
    // One of the four may be through by now, and then there is a place, or the connection has failed.
    if (fifth == ring::SendResult::full) ++refused;
    if (fifth == ring::SendResult::done) expected |= 16;
  }
  deed(client, server, ends);
  uint32_t told = 0, failed = 0, tail = 0;
  bool broken = false;
  drain(client, tail, [&](const ring::Descriptor& descriptor) {
    if (descriptor.connection != number) return false;
    if (is(descriptor, ring::Event::read)) {
      CHECK((told & 1u << descriptor.correlation) == 0, "READ %u is told of twice", descriptor.correlation);
      told |= 1u << descriptor.correlation;
      if (descriptor.offset != IBV_WC_SUCCESS) ++failed;
    }
    if (is(descriptor, ring::Event::broken)) {
      broken = true;
      CHECK(descriptor.offset == 0, "kind %u", descriptor.offset);
      poller.detach(number);
    }
    return is(descriptor, ring::Event::detached);
  });
  CHECK(broken != detaches);
  CHECK(told == expected, "told of %x", told);
  if (key_change != 0) CHECK(failed >= ring::kReservedForReads, "%u of the READs failed", failed);
  poller.release(number);
  std::printf("%-44s %u failed\n", name, failed);

  // The other connection is as it was.
  const MrRef sink = client.region(kMost);
  CHECK(poller.read(ends.client[1].number, sink, 0, source.address(0), source.memory->rkey, kMost, 77) ==
        ring::SendResult::done);
  drain(client, tail, [&](const ring::Descriptor& descriptor) {
    if (!is(descriptor, ring::Event::read)) return false;
    CHECK(descriptor.correlation == 77 && descriptor.offset == IBV_WC_SUCCESS);
    return true;
  });
  CHECK(std::memcmp(sink->addr, source.bytes(), kMost) == 0);
}

STRESS(ring_read) {
  using fixture::effort;
  for (const auto mode : {ring::Mode::adaptive, ring::Mode::event, ring::Mode::poll}) {
    const std::string name = "READs under load, mode " + std::to_string(static_cast<unsigned>(mode));
    fixture::timed(name.c_str(), [=] {
      under_load(mode, static_cast<uint64_t>(effort(7'500)), static_cast<uint32_t>(effort(240)));
    });
  }
  // Until a fifth READ has found no place.
  for (int round = 0; round < effort(9) || refused == 0; ++round) {
    ends_badly("a key that is not", 0x5a5a00, false, [](Side&, Side&, Ends&) {});
    ends_badly("the peer dies", 0, false, [](Side&, Side&, Ends& ends) {
      ends.server[0].qp = {};
      ends.server[0].id->close();
    });
    ends_badly("the peer breaks the connection", 0, false,
               [](Side&, Side& server, Ends& ends) { server.poller->detach(ends.server[0].number); });
    ends_badly("this side detaches", 0, true,
               [](Side& client, Side&, Ends& ends) { client.poller->detach(ends.client[0].number); });
  }
  return 0;
}

}  // namespace ring_read_stress
