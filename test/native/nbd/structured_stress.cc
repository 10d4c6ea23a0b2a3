// Structured replies, block status and several exports, over connections that negotiated them.
#include <algorithm>
#include <random>

#include "negotiated_client.h"

namespace nbd_structured_stress {

using namespace fixture;

class Served {
 public:
  explicit Served(NbdShape shape) : volume(shape) {
    std::string why;
    CHECK(volume.engine->bind_unix(path, why) == 0);
    volume.engine->accept_clients();
  }
  const std::string path = fresh_path("/tmp/nbd_structured");
  NbdVolume volume;
};

std::vector<uint8_t> filled(size_t length, uint8_t byte) { return std::vector<uint8_t>(length, byte); }

// Pages that were never written are told as holes, in the middle of data and with ragged ends.
void holes() {
  Served served(NbdShape{});
  NegotiatedClient client(served.path, true);
  CHECK((client.flags() & kFlagSendDf) != 0 && (client.flags() & kFlagSendCache) != 0 &&
        (client.flags() & kFlagSendFastZero) != 0);
  CHECK(client.write(4096, filled(4096, 7)) == kOk);
  Answer answer = client.ask(kCmdRead, 0, 16384);
  CHECK(answer.hole_bytes == 12288 && answer.content_chunks == 3 && answer.data[4096] == 7 &&
        answer.data[4095] == 0 && answer.data[8192] == 0);
  answer = client.ask(kCmdRead, 4000, 200);
  CHECK(answer.hole_bytes == 96 && answer.content_chunks == 2 && answer.data[95] == 0 &&
        answer.data[96] == 7);
  answer = client.ask(kCmdRead, 8191, 2);
  CHECK(answer.hole_bytes == 1 && answer.data[0] == 7 && answer.data[1] == 0);
  answer = client.ask(kCmdRead, 0, 16384, kCmdFlagDf);
  CHECK(answer.hole_bytes == 0 && answer.content_chunks == 1 && answer.data[4096] == 7 &&
        answer.data[0] == 0);
  answer = client.ask(kCmdRead, 0, kMaxUnfragmented, kCmdFlagDf);
  CHECK(answer.error == kOk && answer.content_chunks == 1);
  answer = client.ask(kCmdRead, 0, kMaxUnfragmented + 1, kCmdFlagDf);
  CHECK(answer.error == kEoverflow && !answer.text.empty());
  // 20 MiB of nothing: no data on the wire.
  answer = client.ask(kCmdRead, 1 << 20, 20 << 20);
  CHECK(answer.error == kOk && answer.hole_bytes == 20 << 20);
  CHECK(served.volume.engine->lane(0).statistics().rdma_reads.get() == 5);
  CHECK(client.ask(kCmdTrim, 4096, 4096).error == kOk);
  CHECK(client.ask(kCmdRead, 4096, 4096).hole_bytes == 4096);
}

void statuses() {
  using Extents = std::vector<std::pair<uint32_t, uint32_t>>;
  constexpr uint32_t kHole = kStateHole | kStateZero;
  NbdShape shape;
  shape.lanes = 2;
  Served served(shape);
  NegotiatedClient client(served.path, true);
  constexpr uint32_t kAll = 32 << 20;
  const auto status = [&](uint64_t offset, uint32_t length, uint16_t flags = 0) {
    Answer answer = client.ask(kCmdBlockStatus, offset, length, flags);
    CHECK(answer.error == kOk);
    return answer.extents;
  };
  CHECK((status(0, kAll) == Extents{{kAll, kHole}}));
  CHECK(client.write(8192, filled(8192, 1)) == kOk);
  CHECK((status(0, kAll) == Extents{{8192, kHole}, {8192, 0}, {kAll - 16384, kHole}}));
  CHECK((status(0, kAll, kCmdFlagReqOne) == Extents{{8192, kHole}}));
  CHECK((status(10'000, 100) == Extents{{100, 0}}));
  CHECK((status(8000, 400) == Extents{{192, kHole}, {208, 0}}));
  CHECK((status(16'383, 2, kCmdFlagReqOne) == Extents{{1, 0}}));
  // Zeros with NO_HOLE are zeros and no hole, until they are trimmed or written.
  CHECK(client.ask(kCmdWriteZeroes, 4096, 8192, kCmdFlagNoHole).error == kOk);
  CHECK((status(0, 20'480) == Extents{{4096, kHole}, {8192, kStateZero}, {4096, 0}, {4096, kHole}}));
  CHECK(client.ask(kCmdWriteZeroes, 8192, 4096).error == kOk);
  CHECK((status(0, 12'288) == Extents{{4096, kHole}, {4096, kStateZero}, {4096, kHole}}));
  CHECK(client.ask(kCmdTrim, 0, kAll).error == kOk);
  CHECK((status(0, kAll) == Extents{{kAll, kHole}}));
  // A map of many pieces comes in several answers, each bounded.
  for (uint32_t page = 0; page < 2000; page += 2) CHECK(client.write(page * 4096, filled(4096, 2)) == kOk);
  uint64_t at = 0;
  int answers = 0;
  uint64_t data = 0;
  while (at < kAll) {
    for (const auto& [length, flags] : status(at, static_cast<uint32_t>(kAll - at))) {
      at += length;
      data += flags == 0 ? length : 0;
    }
    answers++;
  }
  CHECK(at == kAll && data == 1000 * 4096 && answers == 4);
  CHECK(client.ask(kCmdBlockStatus, 0, 0).error == kEinval);
  CHECK(client.ask(kCmdBlockStatus, kAll, 1).error == kEinval);
  CHECK(client.ask(kCmdBlockStatus, 0, 4096, kCmdFlagDf).error == kEinval);
  NegotiatedClient plain(served.path, false);
  CHECK((plain.flags() & kFlagSendDf) == 0 && plain.ask(kCmdBlockStatus, 0, 4096).error == kEinval);
}

// Everything random, pipelined, and read in odd pieces, against a copy in memory.
void random_reads() {
  NbdShape shape;
  shape.size = 16 << 20;
  shape.lanes = 2;
  shape.behaviour.delay_ns = 2'000;
  shape.behaviour.jitter_ns = 30'000;
  Served served(shape);
  NegotiatedClient client(served.path, true);
  NegotiatedClient simple(served.path, false);
  std::mt19937_64 random(11);
  std::vector<uint8_t> model(shape.size);
  for (int round = 0; round < effort(30); round++) {
    for (int i = 0; i < 12; i++) {
      const uint64_t offset = random() % (shape.size - 300'000);
      const auto length = static_cast<uint32_t>(1 + random() % (random() % 4 == 0 ? 300'000 : 9'000));
      NegotiatedClient& writer = random() % 2 == 0 ? client : simple;
      if (random() % 3 == 0) {
        const uint16_t flags = random() % 2 == 0 ? kCmdFlagNoHole : 0;
        CHECK(writer.ask(kCmdWriteZeroes, offset, length, flags).error == kOk);
        std::fill_n(model.begin() + static_cast<long>(offset), length, 0);
      } else {
        const auto data = filled(length, static_cast<uint8_t>(random() | 1));
        CHECK(writer.write(offset, data) == kOk);
        std::copy(data.begin(), data.end(), model.begin() + static_cast<long>(offset));
      }
    }
    std::vector<uint64_t> cookies;
    for (int i = 0; i < 30; i++) {
      const uint32_t largest = random() % 10 == 0 ? 5 << 20 : random() % 3 == 0 ? 200'000 : 5'000;
      const auto length = static_cast<uint32_t>(1 + random() % largest);
      const uint64_t offset = random() % (shape.size - length);
      const bool whole = random() % 4 == 0 && length <= kMaxUnfragmented;
      cookies.push_back(client.post(kCmdRead, offset, length, whole ? kCmdFlagDf : 0));
    }
    for (const uint64_t cookie : cookies) {
      Answer answer;
      CHECK(client.wait(cookie, answer, 1 + random() % 70'000));
      CHECK(answer.error == kOk);
      CHECK(std::memcmp(answer.data.data(), model.data() + answer.request.offset, answer.data.size()) == 0);
      const Answer other =
          round % 8 == 0 ? simple.ask(kCmdRead, answer.request.offset, answer.request.length) : Answer{};
      CHECK(round % 8 != 0 || other.data == answer.data);
    }
  }
}

// A server's death is reported with the offset, also in the middle of a long answer, and the connection
// continues.
void failures() {
  NbdShape shape;
  shape.size = 40 << 20;
  shape.behaviour.delay_ns = 200'000;
  Served served(shape);
  NegotiatedClient client(served.path, true);
  for (int i = 0; i < 40; i += 8)
    CHECK(client.write(static_cast<uint64_t>(i) << 20, filled(8 << 20, 5)) == kOk);
  // Of 32 MiB the socket holds a part, so the answer has begun and is not yet all made.
  const uint64_t cookie = client.post(kCmdRead, 4096, kMaxPayload);
  uint8_t first;
  CHECK(recv(client.fd(), &first, 1, MSG_PEEK) == 1);
  served.volume.servers[1]->set_mode(Server::Mode::dead);
  Answer answer;
  CHECK(client.wait(cookie, answer));
  CHECK(answer.error == kEio && !answer.text.empty() && answer.place.has_value());
  CHECK(answer.content_chunks > 0);
  // What was told is right; the place is in a slab of the dead server.
  for (size_t at = 0; at < answer.data.size(); at += 4096) {
    const auto length = std::min<size_t>(4096, answer.data.size() - at);
    if (is_filled(&answer.covered[at], length, 0)) continue;
    for (size_t i = at; i < at + length; i++) CHECK(!answer.covered[i] || answer.data[i] == 5);
  }
  CHECK((*answer.place >> 20) % 2 == 1);
  CHECK(client.ask(kCmdRead, 0, 4096).error == kOk);
  answer = client.ask(kCmdRead, (1 << 20) - 4096, 8192);
  CHECK(answer.error == kEio && answer.content_chunks == 0);
  const auto page = filled(4096, 1);
  answer = client.ask(kCmdWrite, 1 << 20, 4096, 0, page.data());
  CHECK(answer.error == kEio && !answer.text.empty() && answer.place == 1u << 20);
}

// Parts of one volume under names of their own.
void exports() {
  NbdShape shape;
  shape.options.exports = {{.name = "all", .description = "everything"},
                           {.name = "tail", .offset = 31 << 20, .size = 0},
                           {.name = "sealed", .offset = 4096, .size = 8192, .read_only = true}};
  shape.lanes = 3;
  Served served(shape);
  NegotiatedClient all(served.path, true);
  NegotiatedClient tail(served.path, true, "tail");
  NegotiatedClient sealed(served.path, true, "sealed");
  CHECK(all.size() == 32 << 20 && tail.size() == 1 << 20 && sealed.size() == 8192);
  CHECK((sealed.flags() & kFlagReadOnly) != 0 && (tail.flags() & kFlagReadOnly) == 0);
  CHECK(tail.write(5000, filled(10'000, 9)) == kOk);
  Answer answer = all.ask(kCmdRead, (31 << 20) + 5000, 10'000);
  CHECK(answer.data == filled(10'000, 9));
  answer = tail.ask(kCmdRead, 0, 20'480);
  CHECK(answer.data[4999] == 0 && answer.data[5000] == 9 && answer.data[14'999] == 9 &&
        answer.data[15'000] == 0);
  CHECK(tail.write((1 << 20) - 1, filled(2, 1)) == kEnospc);
  CHECK(tail.ask(kCmdRead, 1 << 20, 1).error == kEinval);
  CHECK(tail.ask(kCmdTrim, UINT64_MAX - 4095, 4096).error == kEinval);
  CHECK(tail.ask(kCmdBlockStatus, 0, 1 << 20).extents.front().first == 4096);
  CHECK(sealed.write(0, filled(4096, 1)) == kEperm);
  CHECK(sealed.ask(kCmdTrim, 0, 4096).error == kEperm &&
        sealed.ask(kCmdWriteZeroes, 0, 4096).error == kEperm);
  CHECK(all.write(4096, filled(4096, 3)) == kOk);
  CHECK(sealed.ask(kCmdRead, 0, 4096).data == filled(4096, 3));

  const auto refused = [](std::vector<ExportOptions> list, uint32_t minimum = 1) {
    EngineOptions options;
    options.volume.size = 1 << 20;
    options.exports = std::move(list);
    options.minimum_block = minimum;
    int error = 0;
    std::string why;
    return Engine::open(
               options, [](const Event&) {}, error, why) == nullptr &&
           error == EINVAL && !why.empty();
  };
  CHECK(refused({}) && refused({{.name = "a"}, {.name = "a"}}) && refused({{.name = "a", .offset = 100}}));
  CHECK(refused({{.name = "a", .size = 2 << 20}}) && refused({{.name = "a", .offset = 1 << 20}}));
  CHECK(refused({{.name = "a", .offset = 4096, .size = 1 << 20}}) && refused({{.name = "a", .size = 1}}));
  CHECK(refused({{.name = std::string(5000, 'n')}}) && refused({{}}, 3) && refused({{}}, 8192) &&
        refused({{}}, 0));
}

// Below the minimum block size nothing is done; it is told.
void block_sizes() {
  NbdShape shape;
  shape.options.minimum_block = 512;
  Served served(shape);
  NegotiatedClient client(served.path, true);
  CHECK(client.write(512, filled(512, 4)) == kOk);
  CHECK(client.write(511, filled(512, 4)) == kEinval && client.write(512, filled(513, 4)) == kEinval);
  CHECK(client.ask(kCmdRead, 1, 512).error == kEinval && client.ask(kCmdTrim, 0, 1).error == kEinval);
  CHECK(client.ask(kCmdWriteZeroes, 3, 512).error == kEinval && client.ask(kCmdCache, 0, 7).error == kEinval);
  CHECK(client.ask(kCmdBlockStatus, 0, 100).error == kEinval);
  CHECK(client.ask(kCmdRead, 512, 512).data == filled(512, 4));
}

// A client that stops in the middle of a request, or takes no answers, gives its lane back; one that rests
// between requests keeps it.
void stalling_clients() {
  constexpr uint64_t kStall = 250'000'000;
  NbdShape shape;
  shape.lanes = 1;
  shape.options.acceptor.stall_timeout_ns = kStall;
  shape.options.acceptor.lane_wait_ns = kNever;
  Served served(shape);
  const auto page = filled(4096, 1);
  {
    NegotiatedClient resting(served.path, true);
    CHECK(resting.write(0, page) == kOk);
    usleep(2 * kStall / 1000);  // what it has is time
    CHECK(resting.ask(kCmdRead, 0, 4096).data == page);
  }
  const auto thrown_out = [&](const std::function<void(NegotiatedClient&)>& stall) {
    const auto start = Clock::now();
    NegotiatedClient staller(served.path, true);
    stall(staller);
    NegotiatedClient next(served.path, true);  // waits for the lane
    // Nearly all of it: a lane goes by the time at which its present turn began.
    CHECK(seconds_since(start) > 0.15);
    CHECK(next.ask(kCmdRead, 0, 4096).data == page);
  };
  const RequestHeader write = header(kCmdWrite, 1, 0, 4096);
  thrown_out([&](NegotiatedClient& staller) { CHECK(write_all(staller.fd(), &write, 20)); });
  thrown_out([&](NegotiatedClient& staller) {
    CHECK(write_all(staller.fd(), &write, sizeof write) && write_all(staller.fd(), page.data(), 1000));
  });
  thrown_out([&](NegotiatedClient& staller) {
    for (int i = 0; i < 20; i++) staller.post(kCmdRead, 0, 1 << 20, kCmdFlagDf);
  });
}

// Slowly is not the same: a byte a time, but within the limit.
void slow_client() {
  NbdShape shape;
  shape.options.acceptor.stall_timeout_ns = kNever;
  Served served(shape);
  NegotiatedClient slow(served.path, true);
  const RequestHeader write = header(kCmdWrite, 1, 0, 4096);
  const auto* bytes = reinterpret_cast<const uint8_t*>(&write);
  for (size_t i = 0; i < sizeof write; i++) {
    CHECK(write_all(slow.fd(), bytes + i, 1));
    usleep(1'000);
  }
  const auto page = filled(4096, 1);
  for (size_t i = 0; i < page.size(); i += 64) {
    CHECK(write_all(slow.fd(), page.data() + i, 64));
    if (i % 1024 == 0) usleep(1'000);
  }
  SimpleReply reply;
  CHECK(read_all(slow.fd(), &reply, sizeof reply));
  CHECK(reply.magic == kSimpleReplyMagic && reply.error == kOk && reply.cookie == 1);
  CHECK(slow.ask(kCmdRead, 0, 4096).data == page);
}

// Late requests are answered ESHUTDOWN before the connection ends; outstanding ones are answered. False: this
// client did not run for so long that it came too late for that.
bool shut_down_in_good_order() {
  NbdShape shape;
  shape.behaviour.delay_ns = 200'000'000;
  Served served(shape);
  NegotiatedClient client(served.path, true);
  const auto page = filled(4096, 6);
  const uint64_t under_way = client.post(kCmdWrite, 0, 4096, 0, page.data());
  await([&] { return served.volume.engine->lane(0).statistics().rdma_writes.get() > 0; });
  std::thread closer([&] { CHECK(served.volume.engine->close(kCloseTime) == 0); });
  Answer answer;
  bool ended = false;
  double pause = 0;
  // Until the engine closes; zeros, which no server has to send.
  do {
    const auto start = Clock::now();
    const uint64_t late = client.post(kCmdRead, 1 << 20, 4096);
    ended = !client.wait(late, answer);
    pause = seconds_since(start);
  } while (!ended && answer.error == kOk);
  if (ended) {
    CHECK(pause > 0.1);  // late requests are heard for 250 ms
    closer.join();
    return false;
  }
  CHECK(answer.error == kEshutdown && !answer.text.empty());
  CHECK(client.wait(under_way, answer) && answer.error == kOk);
  const RequestHeader goodbye = header(kCmdDisconnect, 0, 0, 0);
  write_all(client.fd(), &goodbye, sizeof goodbye);  // or it has ended by itself
  uint8_t byte;
  CHECK(recv(client.fd(), &byte, 1, 0) == 0);
  closer.join();
  return true;
}

STRESS(nbd_structured) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  timed("holes", holes);
  timed("statuses", statuses);
  timed("random reads", random_reads);
  timed("failures", failures);
  side_by_side({
      {"exports", exports},
      {"block sizes", block_sizes},
      {"stalling clients", stalling_clients},
      {"a slow client", slow_client},
      {"shutdown in good order",
       [] {
         while (!shut_down_in_good_order()) {
         }
       }},
  });
  std::printf("ok\n");
  return 0;
}

}  // namespace nbd_structured_stress
