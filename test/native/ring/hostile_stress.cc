// A peer that breaks the protocol by bare verbs, with words that the notification of no good peer would be:
// it loses its own connection, whatever it floods with, and no other of the same poller.
#include <cstring>
#include <thread>

#include "fixture.h"

namespace ring_hostile_stress {

using namespace ring_test;

constexpr uint32_t kForged = 0xffff;  // a slot that no poller has: its completions belong to no connection

// The server's side of the connections, by slot, as its event ring tells of it.
class Watched {
 public:
  explicit Watched(Side& side) : side_(side) {}

  // Takes events until `done`.
  template <typename Done>
  void until(Done done, const char* what) {
    const auto deadline = std::chrono::steady_clock::now() + fixture::kHang;
    while (!done()) {
      CHECK(std::chrono::steady_clock::now() < deadline, "%s", what);
      if (!take()) side_.wait_for_doorbell(tail_);
    }
  }
  bool broken(uint32_t number) const { return state_[ring::slot_of(number)].broken; }
  ring::Descriptor reason(uint32_t number) const { return state_[ring::slot_of(number)].reason; }
  bool detached(uint32_t number) const { return state_[ring::slot_of(number)].detached; }
  uint64_t messages(uint32_t number) const { return state_[ring::slot_of(number)].messages; }

 private:
  struct State {
    bool broken = false, detached = false;
    uint64_t messages = 0;
    ring::Descriptor reason{};
  };

  bool take() {
    ring::EventRing& events = side_.poller->event_ring();
    const uint32_t head = side_.head();
    if (head == tail_) return false;
    for (; tail_ != head; ++tail_) {
      const ring::Descriptor& descriptor = *events.at(tail_);
      State& state = state_[ring::slot_of(descriptor.connection)];
      if (descriptor.type == static_cast<uint32_t>(ring::Event::broken)) {
        state.broken = true;
        state.reason = descriptor;
      }
      if (descriptor.type == static_cast<uint32_t>(ring::Event::detached)) state.detached = true;
      if (descriptor.type == static_cast<uint32_t>(ring::FrameType::data)) ++state.messages;
    }
    events.word(ring::EventRing::kTail).store(tail_, std::memory_order_seq_cst);
    if (events.word(ring::EventRing::kFull).load(std::memory_order_seq_cst) != 0) side_.poller->wake();
    return true;
  }

  Side& side_;
  State state_[64];
  uint32_t tail_ = 0;
};

void post_forged(const Endpoint& end, const Endpoint& victim, uint32_t word, bool immediate) {
  ibv_sge element = {reinterpret_cast<uint64_t>(end.staging->addr), 4, end.staging->lkey};
  std::memcpy(end.staging->addr, &word, 4);
  ibv_send_wr request = {};
  request.wr_id = ring::WorkId{ring::Work::data, kForged, 0, 0, 0}.encode();
  request.send_flags = IBV_SEND_SIGNALED;
  if (immediate) {
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = htonl(word);
    request.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(victim.ring->addr);
    request.wr.rdma.rkey = victim.ring->rkey;
  } else {
    request.opcode = IBV_WR_SEND;
    request.send_flags |= IBV_SEND_INLINE;
    request.sg_list = &element;
    request.num_sge = 1;
  }
  ibv_send_wr* bad = nullptr;
  // A queue pair that the victim has ended already takes no more.
  ibv_post_send(end.qp.get(), &request, &bad);
}

struct Attack {
  const char* name;
  uint32_t word;
  int times;
  // Of the victim's end: kind 1 with this violation, or any end at all.
  ring::Violation violation = ring::Violation::none;
};

void run(const Attack& attack, ring::Mode mode, bool immediate) {
  ring::PollerOptions options;
  options.mode = mode;
  options.max_connections = 64;
  ring::PollerOptions threaded = options;
  threaded.mode = ring::Mode::event;
  Side client(threaded, 4096), server(options, 4096);
  std::vector<Endpoint> clients, servers;
  clients.reserve(2);
  servers.reserve(2);
  Shape shape;
  shape.log2_capacity = 12;
  shape.immediate = immediate;
  connect(client, server, shape, clients, servers, 2);
  const Endpoint &bad = clients[0], &victim = servers[0], &good = clients[1], &other = servers[1];
  Watched watched(server);
  for (int i = 0; i < attack.times; ++i) post_forged(bad, victim, attack.word, immediate);
  watched.until([&] { return watched.broken(victim.number); }, attack.name);
  const ring::Descriptor reason = watched.reason(victim.number);
  if (attack.violation != ring::Violation::none)
    CHECK(reason.offset == 1 && reason.length == static_cast<uint32_t>(attack.violation),
          "%s: kind %u detail %u", attack.name, reason.offset, reason.length);
  server.poller->detach(victim.number);
  watched.until([&] { return watched.detached(victim.number); }, "the victim does not detach");
  server.poller->release(victim.number);
  // The other connection of the same pollers knows nothing of it.
  const uint8_t byte = 7;
  for (uint32_t i = 0; i < 10; ++i)
    CHECK(client.poller->send(good.number, ring::FrameType::data, i, 0, &byte, 1) == ring::SendResult::done);
  CHECK(client.poller->flush(good.number) == ring::SendResult::done);
  CHECK(client.poller->ping(good.number) == ring::SendResult::done);
  watched.until([&] { return watched.messages(other.number) == 10; }, "the good connection is silent");
  CHECK(!watched.broken(other.number));
  for (auto* ends : {&clients, &servers}) {
    for (Endpoint& end : *ends) {
      end.qp = {};
      end.id->close();
    }
  }
}

// One forged ping is answered like any other, and nothing else happens to who answers. Who gets the answer
// without having asked drops the connection.
void answered_ping() {
  ring::PollerOptions options;
  options.mode = ring::Mode::event;
  options.max_connections = 64;
  Side client(options, 4096), server(options, 4096);
  std::vector<Endpoint> clients, servers;
  clients.reserve(1);
  servers.reserve(1);
  connect(client, server, Shape{}, clients, servers, 1);
  Watched watched(client);
  post_forged(clients[0], servers[0], ring::kPing, true);
  watched.until([&] { return watched.broken(clients[0].number); }, "no answer to the ping came");
  const ring::Descriptor reason = watched.reason(clients[0].number);
  CHECK(reason.offset == 1 && reason.length == static_cast<uint32_t>(ring::Violation::credit));
  double counted[std::size(ring::kConnectionCounters)];
  CHECK(server.poller->counters(servers[0].number, counted));
  CHECK(counted[5] == 1 && counted[4] == 1, "%f pings, %f credits sent", counted[5], counted[4]);
  clients[0].id->close();
  servers[0].id->close();
}

STRESS(ring_hostile) {
  answered_ping();
  const Attack attacks[] = {
      {"a flood of pings", ring::kPing, 60},  // a violation, or more than there are receives
      {"a notification of nothing", 0, 1, ring::Violation::published},
      {"more units than there are", 257, 1, ring::Violation::published},
      {"a word between units and the ping", ring::kPing - 1, 1, ring::Violation::published},
      {"a word above the ping", ring::kPing + 1, 1, ring::Violation::published},
      {"the largest word that is no credit", ring::kCreditBit - 1, 1, ring::Violation::published},
      {"an answer to no ping", ring::kCreditBit, 1, ring::Violation::credit},
      {"answers to no ping, many", ring::kCreditBit, 40, ring::Violation::credit},
      {"a credit for what was never sent", ring::kCreditBit + 1, 1, ring::Violation::credit},
      {"the largest word", 0xffffffff, 3, ring::Violation::credit},
  };
  for (const Attack& attack : attacks) {
    for (const ring::Mode mode : {ring::Mode::event, ring::Mode::caller}) {
      run(attack, mode, true);
      run(attack, mode, false);
    }
    std::printf("%s: held\n", attack.name);
  }
  return 0;
}

}  // namespace ring_hostile_stress
