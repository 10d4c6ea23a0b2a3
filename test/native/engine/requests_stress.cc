// The block engine on memory devices: verified random I/O over several lanes, page states, servers that
// hang and die, connections that end in the middle, and what a hostile client may send once it is in.
#include <linux/sockios.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>

#include "fixture/damage.h"
#include "fixture/nbd_fixture.h"
#include "fixture/workers.h"

namespace engine_requests_stress {

using namespace fixture;

const int kOperationsOfAWorker = effort(150);

// 1. Verified random I/O over several lanes, until some of it has met at pages that lanes share.
void random_io(WaitMode mode, Behaviour behaviour, int operations) {
  NbdShape shape;
  shape.size = 24 << 20;
  shape.lanes = 3;
  shape.servers = 3;
  shape.behaviour = behaviour;
  shape.options.wait_mode = mode;
  NbdVolume volume(shape);
  {
    WorkersOf<SocketClient> workers(volume, 6);
    do workers.run(operations, false, 3 << 20);
    while (sum(volume, &LaneStatistics::pages_waited_for) == 0);
  }
  CHECK(volume.count(Event::Type::server_failed) == 0);
  CHECK(sum(volume, &LaneStatistics::errors) == 0);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// 4. Partial writes to untouched pages show no stale bytes (the memory device holds 0xdb).
void page_states() {
  NbdShape shape;
  NbdVolume volume(shape);
  SocketClient client(volume.attach(0));
  std::vector<uint8_t> data(3 << 20, 0x55);
  std::vector<uint8_t> got(3 << 20);
  CHECK(client.read(0, got.data(), 3 << 20) == kOk && is_filled(got.data(), got.size(), 0));
  CHECK(volume.engine->lane(0).statistics().rdma_reads.get() == 0);
  CHECK(client.write(100, data.data(), 1) == kOk);
  CHECK(client.read(0, got.data(), 4096) == kOk);
  CHECK(got[100] == 0x55 && got[99] == 0 && got[101] == 0 && got[4095] == 0);
  // Across a slab boundary and from the middle of one page to the middle of another.
  CHECK(client.write((1 << 20) - 5000, data.data(), 10'000) == kOk);
  CHECK(client.read((1 << 20) - 8192, got.data(), 16384) == kOk);
  for (int i = 0; i < 16384; i++) CHECK(got[i] == (i >= 3192 && i < 13192 ? 0x55 : 0));
  // Zeros in the middle of written pages; whole pages become unset.
  CHECK(client.write(2 << 20, data.data(), 16384) == kOk);
  const uint64_t written = volume.engine->volume().pages().count(PageState::written);
  CHECK(client.call(kCmdWriteZeroes, (2 << 20) + 100, 10'000) == kOk);
  CHECK(volume.engine->volume().pages().count(PageState::written) == written - 1);
  CHECK(client.read(2 << 20, got.data(), 16384) == kOk);
  for (int i = 0; i < 16384; i++) CHECK(got[i] == (i >= 100 && i < 10'100 ? 0 : 0x55));
  CHECK(client.call(kCmdWriteZeroes, (2 << 20) + 200, 50) == kOk);  // within one page
  CHECK(client.call(kCmdTrim, 0, 32 << 20) == kOk);
  CHECK(volume.engine->volume().pages().count(PageState::written) == 0);
}

// 5. Every error of validate_request, and that the connection survives it.
void request_errors() {
  NbdShape shape;
  NbdVolume volume(shape);
  SocketClient client(volume.attach(0));
  std::vector<uint8_t> data(1 << 20);
  const uint64_t size = shape.size;
  CHECK(client.read(size, data.data(), 1) == kEinval);
  CHECK(client.read(size - 1, data.data(), 2) == kEinval);
  CHECK(client.read(UINT64_MAX, data.data(), 2) == kEinval);
  CHECK(client.read(UINT64_MAX - 4095, data.data(), 4096) == kEinval);  // the sum wraps
  CHECK(client.write(size, data.data(), 4096) == kEnospc);
  CHECK(client.write(size - 1, data.data(), 1 << 20) == kEnospc);
  CHECK(client.write(UINT64_MAX, data.data(), 4096) == kEnospc);
  CHECK(client.call(kCmdTrim, size, 4096) == kEinval);
  CHECK(client.call(kCmdWriteZeroes, size - 4096, 8192) == kEnospc);
  CHECK(client.call(kCmdRead, 0, 0) == kEinval);
  CHECK(client.call(kCmdWrite, 0, 0) == kEinval);
  CHECK(client.call(kCmdRead, 0, kMaxPayload + 1) == kEinval);
  CHECK(client.call(kCmdFlush, 4096, 0) == kEinval);
  CHECK(client.call(kCmdCache, 0, 4096) == kOk);
  CHECK(client.call(kCmdCache, size, 4096) == kEinval);
  CHECK(client.call(kCmdBlockStatus, 0, 4096) == kEinval);  // no context was negotiated
  CHECK(client.call(99, 0, 4096) == kEinval);
  CHECK(client.call(kCmdRead, 0, 4096, nullptr, nullptr, 1 << 9) == kEinval);
  CHECK(client.call(kCmdRead, 0, 4096, nullptr, nullptr, kCmdFlagDf) == kEinval);  // no structured replies
  CHECK(client.call(kCmdWriteZeroes, 0, 4096, nullptr, nullptr, kCmdFlagFastZero) == kOk);
  CHECK(client.call(kCmdWriteZeroes, 1, 4096, nullptr, nullptr, kCmdFlagFastZero) == kEnotsup);
  CHECK(client.call(kCmdWriteZeroes, 1, 4096) == kOk);
  CHECK(client.call(kCmdWriteZeroes, 0, 4096, nullptr, nullptr, kCmdFlagReqOne) == kEinval);
  CHECK(client.call(kCmdTrim, 0, 4096, nullptr, nullptr, kCmdFlagNoHole) == kEinval);
  CHECK(client.write(0, data.data(), 4096, kCmdFlagFua) == kOk);
  CHECK(client.call(kCmdFlush, 0, 0) == kOk);
  // The payload of a refused WRITE is dropped up to a bound, and then the stream is in step again.
  std::vector<uint8_t> large(kMaxPayload + 4096);
  CHECK(client.write(0, large.data(), kMaxPayload + 4096) == kEinval);
  CHECK(client.read(0, data.data(), 4096) == kOk);
  CHECK(client.call(kCmdWrite, 0, kMaxDrainedPayload + 1) == SocketClient::kGone);

  NbdShape read_only;
  read_only.options.volume.read_only = true;
  NbdVolume sealed(read_only);
  SocketClient reader(sealed.attach(0));
  CHECK(reader.write(0, data.data(), 4096) == kEperm);
  CHECK(reader.call(kCmdTrim, 0, 4096) == kEperm);
  CHECK(reader.call(kCmdWriteZeroes, 0, 4096) == kEperm);
  CHECK(reader.read(0, data.data(), 4096) == kOk);
}

// 6. 32 MiB in one READ and one WRITE, and several READs at once that each need more than all chunks of their
// lane, which hold 8 MiB.
void large_requests() {
  NbdShape shape;
  shape.size = 36 << 20;
  shape.behaviour.delay_ns = 5'000;
  NbdVolume volume(shape);
  SocketClient client(volume.attach(0));
  std::vector<uint8_t> data(kMaxPayload);
  fill_noise(data.data(), data.size(), 1);
  CHECK(client.write(777, data.data(), kMaxPayload) == kOk);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 4; i++) {
    threads.emplace_back([&, i] {
      const uint32_t length = i == 0 ? kMaxPayload : (9 << 20) - i * 12345;
      const auto got = std::make_unique_for_overwrite<uint8_t[]>(length);
      CHECK(client.read(777, got.get(), length) == kOk);
      CHECK(std::memcmp(got.get(), data.data(), length) == 0);
    });
  }
  for (auto& thread : threads) thread.join();
  // A failure after the reply began can only end the connection.
  volume.servers[1]->set_mode(Server::Mode::dead);
  const uint32_t error = client.read(777, data.data(), kMaxPayload);
  CHECK(error == kEio || error == SocketClient::kGone);
}

// 7. A client goes away with requests in flight; the lane serves the next one with its data right.
void client_leaves() {
  NbdShape shape;
  shape.behaviour.delay_ns = 2'000'000;
  NbdVolume volume(shape);
  std::vector<uint8_t> page(4096);
  for (int round = 0; round < 20; round++) {
    const int fd = volume.attach(0);
    for (uint64_t i = 0; i < 40; i++) {
      const auto write = header(kCmdWrite, i, i * 4096, 4096);
      std::fill(page.begin(), page.end(), static_cast<uint8_t>(round + 1));
      CHECK(write_all(fd, &write, sizeof write) && write_all(fd, page.data(), page.size()));
      const auto read = header(kCmdRead, 100 + i, i * 4096, 4096);
      CHECK(write_all(fd, &read, sizeof read));
    }
    // Sometimes in the middle of a payload.
    const auto half = header(kCmdWrite, 999, 0, 4096);
    if (round % 2 == 0) CHECK(write_all(fd, &half, sizeof half) && write_all(fd, page.data(), 1000));
    usleep(static_cast<useconds_t>(round * 200));
    close(fd);
    SocketClient next(volume.attach(0));
    CHECK(next.write(1 << 20, page.data(), 4096) == kOk);
    std::vector<uint8_t> got(4096);
    CHECK(next.read(1 << 20, got.data(), 4096) == kOk && got == page);
  }
}

// 8. DISC and a half-closed socket still get every answer.
void goodbyes() {
  NbdShape shape;
  shape.behaviour.delay_ns = 1'000'000;
  NbdVolume volume(shape);
  for (const bool disc : {true, false}) {
    const int fd = volume.attach(0);
    std::vector<uint8_t> page(4096, 3);
    for (uint64_t i = 0; i < 30; i++) {
      const auto write = header(kCmdWrite, i, i * 4096, 4096);
      CHECK(write_all(fd, &write, sizeof write) && write_all(fd, page.data(), page.size()));
    }
    const auto goodbye = header(kCmdDisconnect, 0, 0, 0);
    if (disc) CHECK(write_all(fd, &goodbye, sizeof goodbye));
    if (!disc) shutdown(fd, SHUT_WR);
    SimpleReply reply;
    for (int i = 0; i < 30; i++) CHECK(read_all(fd, &reply, sizeof reply) && reply.error == kOk);
    CHECK(!read_all(fd, &reply, 1));
    close(fd);
  }
  // Bad magic ends the connection at once.
  const int fd = volume.attach(0);
  const std::vector<uint8_t> noise(64, 0x5a);
  CHECK(write_all(fd, noise.data(), noise.size()));
  uint8_t byte;
  CHECK(!read_all(fd, &byte, 1));
  close(fd);
}

// 9. A client that sends and never reads costs its own lane only, and memory stays bounded.
void client_that_never_reads() {
  NbdShape shape;
  shape.lanes = 2;
  NbdVolume volume(shape);
  const int fd = volume.attach(0);
  SocketClient good(volume.attach(1));
  std::vector<uint8_t> page(4096, 9);
  CHECK(good.write(0, page.data(), 4096) == kOk);
  const auto read = header(kCmdRead, 1, 0, 1 << 20);
  for (int i = 0; i < 20'000; i++) {
    pollfd ready{fd, POLLOUT, 0};
    if (poll(&ready, 1, 200) == 0) break;
    if (send(fd, &read, sizeof read, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) break;
  }
  CHECK(good.read(0, page.data(), 4096) == kOk && page[0] == 9);
  close(fd);
  SocketClient again(volume.attach(0));
  CHECK(again.read(0, page.data(), 4096) == kOk && page[0] == 9);
}

// 10. close() while everything is busy: answers, ESHUTDOWN or the end, and never a hang.
void close_under_load(Server::Mode mode) {
  NbdShape shape;
  shape.lanes = 2;
  shape.behaviour.delay_ns = 100'000;
  NbdVolume volume(shape);
  WorkersOf<SocketClient> workers(volume, 4);
  std::thread closer([&] {
    await([&] { return workers.done >= 100; });
    volume.servers[0]->set_mode(mode);
    CHECK(volume.engine->close(mode == Server::Mode::hung ? 300'000'000 : kCloseTime) == 0);
  });
  workers.run(1'000'000, true, 100'000);
  closer.join();
}

// 11. A slab moves to another server: kept or lost.
void replaced_slabs() {
  NbdShape shape;
  shape.servers = 2;
  NbdVolume volume(shape);
  SocketClient client(volume.attach(0));
  std::vector<uint8_t> page(8192, 4);
  CHECK(client.write(0, page.data(), 8192) == kOk);
  volume.servers[0]->set_mode(Server::Mode::dead);
  CHECK(client.read(0, page.data(), 4096) == kEio);
  CHECK(volume.wait_for(Event::Type::server_failed).server == 0);
  Server& other = *volume.servers[1];
  // The last slab of server 1 stands in.
  const uint64_t address = other.address() + 15 * shape.slab_size;
  CHECK(volume.engine->volume().replace_slab(0, 1, other.key(), address, true) == 0);
  CHECK(volume.engine->volume().pages().count(PageState::lost) == 2);
  CHECK(client.read(0, page.data(), 4096) == kEio);    // lost
  CHECK(client.write(100, page.data(), 100) == kEio);  // a part of a lost page
  CHECK(client.read(8192, page.data(), 4096) == kOk);  // was never written
  CHECK(client.write(0, page.data(), 4096) == kOk);    // whole: it is good again
  CHECK(client.read(0, page.data(), 4096) == kOk);
  CHECK(client.call(kCmdTrim, 4096, 4096) == kOk);
  CHECK(client.read(4096, page.data(), 4096) == kOk && page[0] == 0);
  CHECK(volume.engine->volume().pages().count(PageState::lost) == 0);
  CHECK(volume.engine->volume().map_slab(0, 1, 1, 1) == EEXIST);
}

// 12. The page map outlives the process.
void page_map_file() {
  const std::string file = "/tmp/nbd_page_map." + std::to_string(getpid());
  const auto none = [](uint64_t) {
    CHECK(false);
    return PageState::lost;
  };
  NbdShape shape;
  shape.options.volume.page_map_file = file;
  {
    NbdVolume volume(shape);
    SocketClient client(volume.attach(0));
    std::vector<uint8_t> page(4096, 4);
    CHECK(client.write(4096, page.data(), 4096) == kOk);
    PageMap second;
    CHECK(second.open(shape.size / kPage, file, false, none) == EBUSY);
  }
  {
    PageMap killed;  // in a WRITE
    CHECK(killed.open(shape.size / kPage, file, false, none) == 0);
    CHECK(killed.claim(5, 1, PageState::unset) == 1);
  }
  PageMap successor;
  std::vector<uint64_t> left;
  // A process that dies while it opens the map leaves what it has not dealt with to the next one.
  CHECK(successor.open(shape.size / kPage, file, true, [&](uint64_t page) {
    CHECK(successor.get(page) == PageState::claimed);
    left.push_back(page);
    return PageState::written;
  }) == 0);
  CHECK(left == std::vector<uint64_t>{5});
  CHECK(successor.get(1) == PageState::written && successor.get(0) == PageState::unset);
  CHECK(successor.get(5) == PageState::written);
  PageMap other;
  CHECK(other.open(shape.size / kPage + 1, file, false, none) != 0);
  unlink(file.c_str());
}

// 13. A lane that is to give its connection away takes the rest of the request that it is in, and nothing
// behind it: the client may always have the next one begun.
void yields_within_a_request() {
  const RequestHeader write = header(kCmdWrite, 1, 0, kPage);
  const RequestHeader read = header(kCmdRead, 2, 0, kPage);
  for (const size_t cut : {sizeof write / 2, sizeof write + 1000}) {
    NbdShape shape;
    NbdVolume volume(shape);
    const int fd = volume.attach(0);
    std::vector<uint8_t> bytes(sizeof write + kPage + sizeof read, 5);
    std::memcpy(bytes.data(), &write, sizeof write);
    std::memcpy(bytes.data() + sizeof write + kPage, &read, sizeof read);
    CHECK(write_all(fd, bytes.data(), cut));
    await([fd] {
      int unread = -1;
      CHECK(ioctl(fd, SIOCOUTQ, &unread) == 0);
      return unread == 0;
    });
    CHECK(volume.engine->yield_lane(0) == 0);
    volume.synchronize();  // it has heard of it
    CHECK(write_all(fd, bytes.data() + cut, bytes.size() - cut));
    const int given = volume.wait_for(Event::Type::lane_yielded).descriptor;
    CHECK(given >= 0);
    SimpleReply reply;
    CHECK(read_all(fd, &reply, sizeof reply) && reply.cookie == 1 && reply.error == kOk);
    RequestHeader next;
    CHECK(recv(given, &next, sizeof next, MSG_DONTWAIT) == sizeof next && next.cookie == 2);
    close(given);
    close(fd);
  }
}

STRESS(engine_requests) {
  side_by_side({
      {"page states", page_states},
      {"request errors", request_errors},
      {"clients that leave", client_leaves},
      {"goodbyes", goodbyes},
      {"a client that never reads", client_that_never_reads},
      {"replaced slabs", replaced_slabs},
      {"page map file", page_map_file},
      {"yields within a request", yields_within_a_request},
  });
  timed("large requests", large_requests);
  side_by_side({
      {"close under load, a healthy server", [] { close_under_load(Server::Mode::healthy); }},
      {"close under load, a hung server", [] { close_under_load(Server::Mode::hung); }},
  });
  timed("random I/O, adaptive", [] {
    random_io(WaitMode::adaptive, {.delay_ns = 3'000, .jitter_ns = 20'000}, kOperationsOfAWorker);
  });
  timed("random I/O, event",
        [] { random_io(WaitMode::event, {.delay_ns = 30'000, .jitter_ns = 200'000}, kOperationsOfAWorker); });
  timed("random I/O, poll", [] { random_io(WaitMode::poll, {}, kOperationsOfAWorker / 3); });
  timed("random I/O, iWARP completions", [] {
    random_io(WaitMode::adaptive, {.delay_ns = 20'000, .jitter_ns = 300'000, .iwarp = true},
              kOperationsOfAWorker);
  });
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_requests_stress
