// A payload that comes a page at a time, as nbd.ko sends it: how often a lane listens for it, and in how many
// WRITEs it goes on. Half a second.
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <string_view>
#include <utility>

#include "../engine/fixture/nbd_fixture.h"
#include "front/nbd-socket/input_stream.h"
#include "front/nbd-socket/payload_pace.h"

namespace lane_payload_stress {

using namespace fixture;

constexpr uint32_t kPages = 16;

// The pace alone, at times that are made up.
void pace() {
  constexpr uint32_t kRest = kPages * kPage;
  PayloadPace pace;
  uint64_t now = kSecond;
  const auto looked = [&pace](size_t bytes, uint64_t at) {
    pace.received(bytes);
    pace.judge(at);
  };
  CHECK(pace.pause(0, now) == 0 && pace.pause(PayloadPace::kLeast - 1, now) == 0);
  const uint64_t first = pace.pause(kRest, now);
  CHECK(first > 0);
  // Something else ends the pause early: what is left of it.
  looked(kPage, now + first / 2);
  CHECK(pace.pause(kRest - kPage, now + first / 2) == first - first / 2);
  // Too short: twice as long for each page that is still to come.
  now += first;
  looked(kRest / 2 - kPage, now);
  CHECK(pace.pause(kRest / 2, now) == first);
  // Nothing has come: it listens until something does.
  now += first;
  looked(0, now);
  CHECK(pace.pause(kRest / 2, now) == 0);
  looked(0, now += kSecond);
  CHECK(pace.pause(kRest / 2, now) == 0);
  looked(kRest / 4, now);
  CHECK(pace.pause(kRest / 4, now) == first);
  // Long enough, again and again, if with requests behind it: an eighth less each time, as far as the first.
  uint64_t last = UINT64_MAX;
  for (int i = 0; i < 100; i++) {
    looked(2 * kRest, now += pace.pause(kRest, now));
    const uint64_t next = pace.pause(kRest, now);
    CHECK(next < last || next == first);
    last = next;
  }
  CHECK(last == first);
  // What has come before its end ends it as well, and is not counted for the next one.
  for (int i = 0; i < 2; i++) {
    CHECK(pace.pause(kRest, now) == first);
    looked(kRest, ++now);
  }
  looked(kPage, now + kSecond);
  CHECK(pace.pause(kRest, now + kSecond) == first);
  // A turn of the lane in which it did not look at the socket, for what is under way comes first, ends
  // nothing.
  looked(kRest, now += kSecond + first);
  CHECK(pace.pause(kRest, now) == first);
  pace.judge(now + first / 2);
  CHECK(pace.pause(kRest, now + first / 2) == first - first / 2);
  pace.judge(now += first);
  CHECK(pace.pause(kRest, now) == 0);
  looked(kRest, now);
  CHECK(pace.pause(kRest, now) == first);
  looked(kRest, now += first);
  // No socket holds more than some of a long payload: that is waited for.
  for (int i = 0; i < 100; i++) {
    CHECK(pace.pause(100 * kRest, now) == first);
    looked(kRest, now += first);
  }
  // The clock is set back by more than a pause may take.
  CHECK(pace.pause(kRest, now) == first);
  CHECK(pace.pause(kRest, now - kSecond) == first);
  looked(kRest, now);
  // Never long enough: a millisecond at most.
  for (int i = 0; i < 100; i++) {
    const uint64_t pause = pace.pause(kRest, now);
    CHECK(pause > 0 && pause <= PayloadPace::kLongest);
    looked(kPage, now += pause);
  }
  CHECK(pace.pause(kRest, now) > PayloadPace::kLongest * 9 / 10);
  pace.reset();
  CHECK(pace.pause(kRest, now) == first);
}

// The kernel's end of a connection, which sends one request after the other.
struct Sender {
  NbdVolume volume;
  const int fd;
  const LaneStatistics& statistics;

  explicit Sender(WaitMode mode, uint64_t delay_ns = 0)
      : volume(shape_of(mode, delay_ns)),
        fd(volume.attach(0)),
        statistics(volume.engine->lane(0).statistics()) {}
  ~Sender() { close(fd); }
  static NbdShape shape_of(WaitMode mode, uint64_t delay_ns) {
    NbdShape shape;
    shape.options.wait_mode = mode;
    shape.behaviour.delay_ns = delay_ns;
    return shape;
  }
  // Until the lane has taken it.
  void send(const void* bytes, size_t length) const {
    CHECK(write_all(fd, bytes, length));
    await([this] {
      int unread = -1;
      CHECK(ioctl(fd, SIOCOUTQ, &unread) == 0);
      return unread == 0;
    });
  }
  void begin(uint16_t command, uint64_t offset, uint32_t length) const {
    const RequestHeader request = header(command, 7, offset, length);
    send(&request, sizeof request);
  }
  void answered() const {
    SimpleReply reply;
    CHECK(read_all(fd, &reply, sizeof reply));
    CHECK(reply.magic == kSimpleReplyMagic && reply.error == kOk && reply.cookie == 7);
  }
  void expect_noise(uint64_t offset, uint32_t length, uint64_t seed) const {
    std::vector<uint8_t> back(length);
    begin(kCmdRead, offset, length);
    answered();
    CHECK(read_all(fd, back.data(), length) && is_noise(back.data(), length, seed));
  }
  // Until the lane has also paused for more, and listens.
  template <typename Send>
  void and_pause(Send send) const {
    const uint64_t sleeps = statistics.sleeps.get();
    send();
    await([&] { return statistics.sleeps.get() >= sleeps + 2; });
  }
};

// Pages that have each arrived before the next is sent.
void few_writes(WaitMode mode) {
  const Sender sender(mode);
  uint64_t seed = 1;
  for (const uint32_t pages : {16 * kPages, kPages, kPages - 1, 2u, 16 * kPages}) {
    const uint32_t length = pages * kPage;
    std::vector<uint8_t> data(length);
    fill_noise(data.data(), length, ++seed);
    const uint64_t before = sender.statistics.rdma_writes.get();
    sender.begin(kCmdWrite, 0, length);
    for (uint32_t page = 0; page < pages; page++) sender.send(data.data() + size_t{page} * kPage, kPage);
    sender.answered();
    const uint64_t writes = sender.statistics.rdma_writes.get() - before;
    CHECK(pages > kPages ? writes <= 24 : writes == 1, "%u pages in %llu WRITEs", pages,
          static_cast<unsigned long long>(writes));
    sender.expect_noise(0, length, seed);
  }
}

// While WRITEs take so long that the memory of none can be used again, it comes to its end within a piece: it
// begins with the header, which comes together with the first page.
void fills_memory() {
  const Sender sender(WaitMode::poll, 100'000'000);
  constexpr uint32_t kLength = 3 * kInputChunk;
  const RequestHeader request = header(kCmdWrite, 7, 0, kLength);
  std::vector<uint8_t> bytes(sizeof request + kLength);
  std::memcpy(bytes.data(), &request, sizeof request);
  fill_noise(bytes.data() + sizeof request, kLength, 1);
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = at == 0 ? sizeof request + kPage : kPage;
    sender.send(bytes.data() + at, length);
    at += length;
  }
  sender.answered();
  sender.expect_noise(0, kLength, 1);
}

// After pauses that were too short, a long one.
void pauses() {
  const Sender sender(WaitMode::event);
  std::vector<uint8_t> data(size_t{kPages} * kPage);
  fill_noise(data.data(), data.size(), 1);
  sender.and_pause([&] { sender.begin(kCmdWrite, 0, kPages * kPage); });
  constexpr uint32_t kLast = PayloadPace::kLeast / kPage;
  for (uint32_t page = 0; page < kPages - kLast; page++)
    sender.and_pause([&] { sender.send(data.data() + size_t{page} * kPage, kPage); });
  sender.send(data.data() + size_t{kPages - kLast} * kPage, PayloadPace::kLeast);
  sender.answered();
  for (int i = 0; i < 5; i++) {
    const uint64_t start = now_ns();
    sender.begin(kCmdWrite, 0, kPages * kPage);
    CHECK(write_all(sender.fd, data.data(), data.size()));
    sender.answered();
    // An eighth less each time.
    CHECK(now_ns() - start >= PayloadPace::kLongest / 2);
  }
  sender.expect_noise(0, kPages * kPage, 1);
}

// A sender that stops costs no processor, and goes on when it likes, or never.
void stops() {
  Sender sender(WaitMode::event);
  std::vector<uint8_t> data(size_t{kPages} * kPage);
  fill_noise(data.data(), data.size(), 1);
  const auto begin = [&] {
    sender.begin(kCmdWrite, 0, kPages * kPage);
    sender.send(data.data(), kPage);
    uint64_t sleeps = 0;
    await([&] {
      const uint64_t before = std::exchange(sleeps, sender.statistics.sleeps.get());
      if (before != sleeps) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      return before == sleeps;
    });
  };
  begin();
  CHECK(write_all(sender.fd, data.data() + kPage, data.size() - kPage));
  sender.answered();
  sender.expect_noise(0, kPages * kPage, 1);
  begin();
  CHECK(shutdown(sender.fd, SHUT_RDWR) == 0);
  const Event closed = sender.volume.wait_for(Event::Type::connection_closed);
  CHECK(std::string_view(closed.reason.data()) == "closed by the client in the middle of a WRITE");
}

// A connection is given away when the request is complete whose payload is held back.
void hands_over() {
  for (const uint32_t cut : {1u, 5u, kPages - 1}) {
    Sender sender(WaitMode::event);
    std::vector<uint8_t> data(size_t{kPages} * kPage);
    fill_noise(data.data(), data.size(), cut);
    sender.begin(kCmdWrite, 0, kPages * kPage);
    sender.send(data.data(), size_t{cut} * kPage);
    CHECK(sender.volume.engine->yield_lane(0) == 0);
    sender.volume.synchronize();
    CHECK(write_all(sender.fd, data.data() + size_t{cut} * kPage, data.size() - size_t{cut} * kPage));
    sender.answered();
    const int given = sender.volume.wait_for(Event::Type::lane_yielded).descriptor;
    CHECK(given >= 0);
    close(given);
    SocketClient next(sender.volume.attach(0));
    CHECK(next.read(0, data.data(), kPages * kPage) == kOk && is_noise(data.data(), data.size(), cut));
  }
}

STRESS(lane_payload) {
  timed("pace", pace);
  timed("few writes, asleep", [] { few_writes(WaitMode::event); });
  timed("few writes, awake", [] { few_writes(WaitMode::poll); });
  timed("fills memory", fills_memory);
  timed("pauses", pauses);
  timed("stops", stops);
  timed("hands over", hands_over);
  return 0;
}

}  // namespace lane_payload_stress
