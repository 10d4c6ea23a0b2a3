// The iwarp provider: several READs of different lengths outstanding in both directions at once, with WRITEs
// and SENDs between them, every byte checked. Costs 0.7 s plain, 0.8 s under ASan, 7 s under TSan.
#include <random>

#include "../traffic.h"

namespace iwarp_crossing_reads_stress {

using namespace fixture;

constexpr uint8_t kReads = 4;         // at once
constexpr size_t kMost = 400'000;     // of one message
constexpr size_t kArea = 6'500'000;   // where a round's messages lie, one behind the other
constexpr uint8_t kUntouched = 0xc3;  // between them
constexpr size_t kGap = 64;

// Short ones of which several responses leave in one system call, and those of many FPDUs.
size_t length_of_next(std::mt19937& random) {
  switch (random() % 4) {
    case 0:
      return 1 + random() % 600;
    case 1:
      return 600 + random() % 30'000;
    case 2:
      return 65'000 + random() % 1'000;
    default:
      return 100'000 + random() % (kMost - 100'000);
  }
}

// One end, and the memory in which its requests begin and end.
struct Side {
  End& end;
  Memory source, sink, inbox;

  explicit Side(End& of, uint64_t seed)
      : end(of), source(of.pd, kArea), sink(of.pd, kArea), inbox(of.pd, kArea) {
    source.fill(seed);
  }
  void clear() {
    std::memset(sink.bytes.data(), kUntouched, kArea);
    std::memset(inbox.bytes.data(), kUntouched, kArea);
  }
};

struct Expected {
  const Memory* to;
  size_t at;
  const Memory* from;
  size_t offset;
  size_t length;
};

// What `expected` says is there, and nothing between.
void check(const Memory& memory, const std::vector<Expected>& expected) {
  size_t end = 0;
  for (const Expected& each : expected) {
    if (each.to != &memory) continue;
    CHECK(is_filled(&memory.bytes[end], each.at - end, kUntouched));
    CHECK(std::memcmp(&memory.bytes[each.at], &each.from->bytes[each.offset], each.length) == 0,
          "%zu bytes at %zu", each.length, each.at);
    end = each.at + each.length;
  }
  CHECK(is_filled(&memory.bytes[end], kArea - end, kUntouched));
}

// Posts `count` READs, WRITEs and SENDs in turn, and says where their bytes are to be.
void post_all(Side& side, Side& other, int count, std::mt19937& random, std::vector<Expected>& expected) {
  size_t sink = kGap, inbox = kGap;
  for (int i = 0; i < 3 * count; i++) {
    const size_t length = length_of_next(random);
    const size_t offset = random() % (kArea - kMost);
    const bool read = i % 3 == 0;
    const Memory& to = read ? side.sink : other.inbox;
    const Memory& from = read ? other.source : side.source;
    size_t& at = read ? sink : inbox;
    // In two pieces.
    const size_t half = random() % length;
    const Memory& local = read ? side.sink : side.source;
    const size_t begin = read ? at : offset;
    std::vector<ibv_sge> pieces = {local.sge(begin, half), local.sge(begin + half, length - half)};
    if (i % 3 == 2) {
      post_receive(other.end, static_cast<uint64_t>(i), to.sge(at, length));
      post(side.end, {.wr_id = static_cast<uint64_t>(i)}, std::move(pieces));
    } else if (read) {
      post(side.end, read_from(from, offset, static_cast<uint64_t>(i)), std::move(pieces));
    } else {
      post(side.end, write_to(to, at, static_cast<uint64_t>(i)), std::move(pieces));
    }
    expected.push_back({&to, at, &from, offset, length});
    at += length + kGap;
    CHECK(sink < kArea && inbox < kArea);
  }
}

void round_of(Side& one, Side& two, int count, std::mt19937& random) {
  std::vector<Expected> expected;
  one.clear();
  two.clear();
  // With manual progress nothing is answered before all are posted.
  post_all(one, two, count, random, expected);
  post_all(two, one, count, random, expected);
  const size_t each = size_t{4} * static_cast<size_t>(count);  // a receive for each SEND too
  const Completions done = pump(one.end, each, two.end, each);
  for (const std::vector<ibv_wc>* all : {&done.client, &done.server}) {
    uint64_t sent = 0, received = 2;
    for (const ibv_wc& wc : *all) {
      uint64_t& next = wc.opcode == IBV_WC_RECV ? received : sent;
      CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == next);
      next += wc.opcode == IBV_WC_RECV ? 3 : 1;
    }
  }
  // WRITEs are in their places: each end's last request is a SEND, which has been received.
  for (const Side* side : {&one, &two}) {
    check(side->sink, expected);
    check(side->inbox, expected);
  }
}

void crossing(Progress first, Progress second, int rounds) {
  Listener listener;
  Pair pair(listener, {.progress = first, .reads = kReads}, {.progress = second, .reads = kReads});
  Side one(*pair.client, 11), two(*pair.server, 12);
  std::mt19937 random(13);
  for (int round = 0; round < rounds; round++) round_of(one, two, 8, random);
}

STRESS(iwarp_crossing_reads) {
  const int rounds = effort(6);
  timed("both polled", [=] { crossing(Progress::manual, Progress::manual, rounds); });
  timed("one polled", [=] { crossing(Progress::manual, Progress::automatic, rounds); });
  timed("none polled", [=] { crossing(Progress::automatic, Progress::automatic, rounds); });
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_crossing_reads_stress
