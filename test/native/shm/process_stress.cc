// The shm provider between two processes: what shares no address, and what happens when one dies.
#include <sys/prctl.h>

#include <algorithm>
#include <map>

#include "process.h"

namespace shm_process_stress {

using namespace fixture;

constexpr size_t kRegion = 4 << 20;
constexpr size_t kMost = kRegion / 4;  // longest message
constexpr size_t kLengths[] = {0, 1, 8, 112, 113, 4096, 65537, kMost};

// --- Every operation. A region has an inbox (its first quarter), an outbox, a place for the peer's
// WRITEs and one for the answers to READs.

Kind kind_of(const std::string& role) { return role.ends_with("plain") ? Kind::plain : Kind::shared; }

void echo_child(const std::string& path, Kind kind) {
  const Prepare prepare = [](Side& side) { post_receive(*side.end, 1, side.near->sge(0, kMost)); };
  Side side = connect_side(path, {.channel = true}, kRegion, kind, prepare);
  for (size_t i = 0; i < std::size(kLengths); i++) {  // sends back what comes
    const ibv_wc wc = side.end->expect(1);
    std::memcpy(side.near->data + kMost, side.near->data, wc.byte_len);
    post_receive(*side.end, 1, side.near->sge(0, kMost));
    post(*side.end, {.wr_id = 2}, {side.near->sge(kMost, wc.byte_len)});
    side.end->expect(2);
  }
  side.end->expect(1, IBV_WC_WR_FLUSH_ERR);
  CHECK(side.end->id.events->expect(CmEvent::Type::disconnected).status == 0);
}

void every_operation(Kind kind) {
  Listener listener;
  Child child(kind == Kind::plain ? "echo-plain" : "echo", listener.path);
  Side side = accept_side(listener, {.channel = true}, kRegion, kind);
  End& end = *side.end;
  uint8_t* data = side.near->data;
  for (const size_t length : kLengths) {
    fill_noise(data + kMost, length, length);
    post_receive(end, 3, side.near->sge(0, kMost));
    post(end, {.wr_id = 4},
         {side.near->sge(kMost, length / 2), side.near->sge(kMost + length / 2, length - length / 2)});
    end.expect(4);
    CHECK(end.expect(3).byte_len == length && is_noise(data, length, length));
    fill_noise(data + kMost, length, length + 1);
    post(end, write_to(side.far, 2 * kMost, 5), {side.near->sge(kMost, length)});
    end.expect(5);
    post(end, read_from(side.far, 2 * kMost, 6), {side.near->sge(3 * kMost, length)});
    end.expect(6);
    CHECK(is_noise(data + 3 * kMost, length, length + 1));
  }
  Send add = read_from(side.far, 2 * kMost, 7);
  add.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  add.compare_add = 1;
  if (kind == Kind::shared) {
    post(end, add, {side.near->sge(0, 8)});
    end.expect(7);
    CHECK(end.id.id->disconnect() == 0);
    CHECK(child.wait() == 0);
    return;
  }
  CHECK(end.id.id->disconnect() == 0);
}

// Atomics on memory that is not shared are refused, clearly.
void atomics_need_shared_memory() {
  Listener listener;
  Child child("sleep-plain", listener.path);
  Side side = accept_side(listener, {}, kRegion);
  Send add = read_from(side.far, 0, 7);
  add.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  post(*side.end, add, {side.near->sge(0, 8)});
  CHECK(side.end->expect(7, IBV_WC_REM_OP_ERR).vendor_err == EOPNOTSUPP);
}

void sleep_child(const std::string& path, Kind kind) {
  Side side = connect_side(path, {}, kRegion, kind);
  side.end->id.events->expect(CmEvent::Type::disconnected);
}

// Memory that is not shared, of a process that is closed to others after it was connected: the error says so,
// and a peer of the same user gets no further. (Of one that was closed before:
// packages/verbs/test/shm/shm-reach.test.ts.)
void closed_child(const std::string& path) {
  if (geteuid() == 0) CHECK(setuid(65534) == 0);  // root may reach everything
  CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
  Listener listener(path);
  Child child("refused", path);
  Side side = accept_side(listener, {}, kRegion, Kind::plain);
  CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);  // now others of this user may not
  post(*side.end, {.wr_id = 1}, {side.near->sge(0, 8)});
  CHECK(side.end->id.events->expect(CmEvent::Type::disconnected).status == ECONNABORTED);
  CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);  // a leak checker traces its own process
}
void refused_child(const std::string& path) {
  Side side = connect_side(path, {}, kRegion, Kind::shared,
                           [](Side& made) { post_receive(*made.end, 0, made.near->sge(8, 8)); });
  side.end->expect(0);
  post(*side.end, write_to(side.far, 0, 1), {side.near->sge(0, 8)});
  CHECK(side.end->expect(1, IBV_WC_REM_OP_ERR).vendor_err == EPERM);
}
void closed_memory() { Child child("closed", fresh_path()); }

// --- Streams through short queues, both processes asleep most of the time.

const uint64_t kStream = effort(20'000);

void stream_child(const std::string& path) {
  Side side = connect_side(path, {.channel = true, .depth = 16}, kRegion, Kind::shared, [](Side& made) {
    for (uint64_t i = 0; i < 16; i++) post_receive(*made.end, i, made.near->sge(i * 256, 256));
  });
  for (uint64_t i = 0; i < kStream; i++) {
    const ibv_wc wc = side.end->completion();
    CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == i % 257);
    CHECK(is_noise(side.near->data + wc.wr_id * 256, wc.byte_len, i));
    if (i % 1000 == 999) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    post_receive(*side.end, wc.wr_id, side.near->sge(wc.wr_id * 256, 256));
  }
  CHECK(side.end->id.id->disconnect() == 0);
}

void stream() {
  Listener listener;
  Child child("stream", listener.path);
  Side side = accept_side(listener, {.channel = true, .depth = 16}, kRegion);
  uint64_t completed = 0;
  for (uint64_t i = 0; i < kStream; i++) {
    while (i - completed >= 16) CHECK(side.end->expect(completed++).opcode == IBV_WC_SEND);
    fill_noise(side.near->data + i % 16 * 256, i % 257, i);
    post(*side.end, {.wr_id = i}, {side.near->sge(i % 16 * 256, i % 257)});
  }
  while (completed < kStream) side.end->expect(completed++);
  CHECK(side.end->id.events->expect(CmEvent::Type::disconnected).status == 0);
}

// --- Death.

enum class Flood { everything, writes };

void flood_child(const std::string& path, Flood flood) {
  Side side = connect_side(path, {.channel = true}, kRegion);
  for (uint64_t i = 0; i < 16; i++) post_receive(*side.end, i, side.near->sge(0, 64));
  // Until killed, or the other side has enough.
  for (uint64_t i = 0;; i++) {
    const bool write = flood == Flood::writes || i % 2;
    const Send send = write ? write_to(side.far, 0, 1) : Send{.wr_id = 1};
    const int error = try_post(*side.end, send, {side.near->sge(0, write ? kMost : 64)});
    CHECK(error == 0 || error == ENOMEM);
    ibv_wc wc;
    while (ibv_poll_cq(side.end->cq, 1, &wc) == 1) {
      if (wc.status != IBV_WC_SUCCESS) return;
      if (wc.opcode == IBV_WC_RECV) post_receive(*side.end, 1, side.near->sge(0, 64));
    }
  }
}

// A peer that dies in the middle of whatever: receives and waiting sends are flushed, the event comes,
// regions can be deregistered and everything taken down at once.
void killed_in_the_middle() {
  for (uint64_t round = 0; round < static_cast<uint64_t>(effort(15)); round++) {
    Listener listener;
    Child child("flood", listener.path);
    Side side = accept_side(listener, {.channel = true, .depth = 32}, kRegion);
    for (uint64_t i = 0; i < 8; i++) post_receive(*side.end, i, side.near->sge(0, 64));
    uint64_t received = 0;
    while (received < 3 * round) {
      ibv_wc wc;
      if (ibv_poll_cq(side.end->cq, 1, &wc) != 1) continue;
      CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == received % 8);
      post_receive(*side.end, wc.wr_id, side.near->sge(0, 64));
      received++;
    }
    child.signal(SIGKILL);
    for (int i = 0; i < 24; i++) try_post(*side.end, {.wr_id = 100}, {side.near->sge(0, 64)});
    CHECK(side.end->id.events->expect(CmEvent::Type::disconnected).status == ECONNRESET);
    int flushed = 0;
    for (ibv_wc wc; flushed < 8;) {
      wc = side.end->completion();
      if (wc.opcode == IBV_WC_RECV && wc.status == IBV_WC_WR_FLUSH_ERR) {
        CHECK(wc.wr_id == received++ % 8);
        flushed++;
      } else if (wc.opcode == IBV_WC_RECV) {
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == received % 8 && flushed == 0);
        post_receive(*side.end, received++ % 8, side.near->sge(0, 64));
      }
    }
    // By time: only that tells whether it waited for who is dead, as for 5 s it does for who lives.
    const auto begin = Clock::now();
    side.near->deregister();
    CHECK(Clock::now() - begin < std::chrono::seconds(4));
    CHECK(WIFSIGNALED(child.wait()));
  }
}

// Memory that is not shared goes before the socket does: who reaches for it then finds the peer dead, and
// does not blame itself or the peer.
void killed_while_read() {
  for (uint64_t round = 0; round < static_cast<uint64_t>(effort(24)); round++) {
    Listener listener;
    Child child("sleep-plain", listener.path);
    Side side = accept_side(listener, {}, kRegion);
    ibv_wc wc{};
    for (uint64_t i = 0; wc.status == IBV_WC_SUCCESS; i++) {
      if (i == round) child.signal(SIGKILL);
      post(*side.end, round % 2 ? read_from(side.far, 0, i) : write_to(side.far, 0, i),
           {side.near->sge(0, kRegion)});
      wc = side.end->completion();
      CHECK(wc.wr_id == i);
    }
    CHECK(wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR);
    CHECK(side.end->id.events->expect(CmEvent::Type::disconnected).status == ECONNRESET);
    CHECK(WIFSIGNALED(child.wait()));
  }
}

// A sleeper hears of the death through its channel.
void killed_while_asleep() {
  Listener listener;
  Child child("sleep", listener.path);
  Side side = accept_side(listener, {.channel = true}, kRegion);
  post_receive(*side.end, 1, side.near->sge(0, 64));
  post(*side.end, {.wr_id = 2}, {side.near->sge(0, 64)});  // waits for a receive
  CHECK(ibv_req_notify_cq(side.end->cq, 0) == 0);
  ibv_wc wc;
  CHECK(ibv_poll_cq(side.end->cq, 1, &wc) == 0);
  child.signal(SIGKILL);
  pollfd waiting{side.end->channel->fd, POLLIN, 0};
  CHECK(::poll(&waiting, 1, kHangMs) == 1);
  side.end->expect(2, IBV_WC_RETRY_EXC_ERR);
  side.end->expect(1, IBV_WC_WR_FLUSH_ERR);
  CHECK(WIFSIGNALED(child.wait()));
}

// Until the peer of "flood-writes" has written.
void under_fire(Side& side) {
  const volatile uint8_t* const last = side.near->data + kMost - 1;
  await([&] { return *last != 0xbb; });
}
Prepare marked() {
  return [](Side& made) { made.near->data[kMost - 1] = 0xbb; };
}

// A peer that is stopped in the middle of a copy is not waited for without end.
void stopped_peer() {
  Listener listener;
  Child child("flood-writes", listener.path);
  Side side = accept_side(listener, {}, kRegion, Kind::shared, marked());
  ibv_mr* mr = std::exchange(side.near->mr, nullptr);
  under_fire(side);
  child.stop();
  const int error = provider().dereg_mr(mr);  // most of the flood's time is in copies
  CHECK(error == 0 || error == ETIMEDOUT);
  child.signal(SIGKILL);
  child.signal(SIGCONT);
  side.end->id.events->expect(CmEvent::Type::disconnected);
  CHECK(WIFSIGNALED(child.wait()));
}

// --- Revocation across processes.

void deregister_under_fire() {
  for (int round = 0; round < effort(12); round++) {
    Listener listener;
    Child child("flood-writes", listener.path);
    Side side = accept_side(listener, {}, kRegion, round % 2 ? Kind::plain : Kind::shared, marked());
    under_fire(side);
    std::this_thread::sleep_for(std::chrono::microseconds(100 * round));  // somewhere within a copy
    side.near->deregister();
    std::memset(side.near->data, 0xaa, kRegion);
    std::this_thread::sleep_for(std::chrono::microseconds(500));  // for what must not come
    CHECK(is_filled(side.near->data, kRegion, 0xaa));
    CHECK(side.end->id.events->expect(CmEvent::Type::disconnected).status == ECONNABORTED);
    CHECK(child.wait() == 0);
  }
}

// --- Slabs: many regions, made before and after the connection, written by the other process.

constexpr size_t kSlabs = 300;
constexpr size_t kSlabBytes = 1 << 16;
const int kSlabRounds = std::max(2, effort(4));

void slabs_child(const std::string& path) {
  Side side = connect_side(path, {}, kRegion, Kind::shared,
                           [](Side& made) { post_receive(*made.end, 1, made.near->sge(0, kMost)); });
  for (int round = 0; round < kSlabRounds; round++) {
    const ibv_wc wc = side.end->expect(1);  // where the slabs are
    std::vector<Remote> slabs(wc.byte_len / sizeof(Remote));
    std::memcpy(slabs.data(), side.near->data, wc.byte_len);
    post_receive(*side.end, 1, side.near->sge(0, kMost));
    for (size_t i = 0; i < slabs.size(); i++) {
      fill_noise(side.near->data + kMost, 4096, i);
      post(*side.end, write_to(slabs[i], kSlabBytes - 4096, 2), {side.near->sge(kMost, 4096)});
      side.end->expect(2);
    }
    post(*side.end, {.wr_id = 3}, {});
    side.end->expect(3);
  }
  side.end->id.events->expect(CmEvent::Type::disconnected);
}

void slabs() {
  Listener listener;
  Child child("slabs", listener.path);
  Side side = accept_side(listener, {}, kRegion);
  for (int round = 0; round < kSlabRounds; round++) {
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<Remote> told;
    for (size_t i = 0; i < kSlabs; i++) {
      memory.push_back(std::make_unique<Memory>(side.end->pd, kSlabBytes));
      told.push_back(remote(*memory[i]));
    }
    std::memcpy(side.near->data, told.data(), told.size() * sizeof(Remote));
    post_receive(*side.end, 4, side.near->sge(kMost, 16));
    post(*side.end, {.wr_id = 5}, {side.near->sge(0, told.size() * sizeof(Remote))});
    side.end->expect(5);
    side.end->expect(4);
    for (size_t i = 0; i < kSlabs; i++) CHECK(is_noise(memory[i]->data + kSlabBytes - 4096, 4096, i));
  }
}

STRESS(shm_process) {
  if (count == 3) {
    const std::string role = arguments[1], path = arguments[2];
    const std::map<std::string, std::function<void()>> roles = {
        {"echo", [&] { echo_child(path, kind_of(role)); }},
        {"echo-plain", [&] { echo_child(path, kind_of(role)); }},
        {"sleep", [&] { sleep_child(path, kind_of(role)); }},
        {"sleep-plain", [&] { sleep_child(path, kind_of(role)); }},
        {"stream", [&] { stream_child(path); }},
        {"closed", [&] { closed_child(path); }},
        {"refused", [&] { refused_child(path); }},
        {"flood", [&] { flood_child(path, Flood::everything); }},
        {"flood-writes", [&] { flood_child(path, Flood::writes); }},
        {"slabs", [&] { slabs_child(path); }},
    };
    roles.at(role)();
    return 0;
  }
  // It takes 5 s to be given up.
  std::thread stopped([] { timed("stopped peer", stopped_peer); });
  timed("every operation", [] { every_operation(Kind::shared); });
  timed("every operation, plain memory", [] { every_operation(Kind::plain); });
  timed("atomics need shared memory", atomics_need_shared_memory);
  timed("closed memory", closed_memory);
  timed("stream", stream);
  timed("killed in the middle", killed_in_the_middle);
  timed("killed while read", killed_while_read);
  timed("killed while asleep", killed_while_asleep);
  timed("deregister under fire", deregister_under_fire);
  timed("slabs", slabs);
  stopped.join();
  std::puts("ok");
  return 0;
}

}  // namespace shm_process_stress
