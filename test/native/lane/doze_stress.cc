// A lane waits for the kernel's next request in recv(2), and in ppoll(2) only when that takes longer.
#include <poll.h>
#include <sys/syscall.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "../engine/fixture/nbd_fixture.h"

namespace {
std::atomic<uint64_t> ppolls{0};
}

// In place of the library's: counted.
extern "C" int ppoll(pollfd* descriptors, nfds_t count, const timespec* limit, const sigset_t* mask) {
  ppolls++;
  ppolls.notify_all();
  timespec left{};  // the system call writes to it
  if (limit != nullptr) left = *limit;
  return static_cast<int>(
      syscall(SYS_ppoll, descriptors, count, limit == nullptr ? nullptr : &left, mask, _NSIG / 8));
}

using namespace fixture;

namespace {

const uint64_t kRequests = effort(2'000);

NbdShape sleepy() {
  NbdShape shape;
  shape.options.wait_mode = WaitMode::event;  // no spin takes a request before the lane would wait for it
  return shape;
}

void after_each_other() {
  NbdVolume volume(sleepy());
  SocketClient client(volume.attach(0));
  std::vector<uint8_t> page(kPage);
  CHECK(client.read(0, page.data(), kPage) == kOk);
  const uint64_t before = ppolls;
  // Between two requests the lane waits for less time than passes from the answer before the first to that to
  // the second. Where this is more than it waits in recv(2), which counts in the kernel's ticks, it may have
  // been in ppoll(2), too.
  uint64_t late = 0, quick = 0;
  uint64_t last = 0;
  for (uint64_t i = 0; quick < kRequests; i++) {
    const uint64_t start = now_ns();
    // Never written, so that there are no completions to wait for.
    CHECK(client.read(i % 8192 * kPage, page.data(), kPage) == kOk);
    const uint64_t took = now_ns() - start;
    (i > 0 && took + last < NbdFront::kBlockTime / 4 ? quick : late)++;
    last = took;
  }
  const uint64_t slept = ppolls - before;
  const uint64_t requests = quick + late;
  std::printf("%llu requests one after the other: %llu late, %llu times in ppoll\n",
              static_cast<unsigned long long>(requests), static_cast<unsigned long long>(late),
              static_cast<unsigned long long>(slept));
  CHECK(slept <= 2 * late);
}

// Waits until the lane has waited without success for the request behind `request`.
template <typename Request>
void then_silence(Request request) {
  uint64_t now = ppolls;
  const uint64_t before = now;
  request();
  for (; now == before; now = ppolls) ppolls.wait(now);
}

// Each after a silence: a request, the client's end, control.
void after_a_silence() {
  NbdVolume volume(sleepy());
  auto client = std::make_unique<SocketClient>(volume.attach(0));
  std::vector<uint8_t> page(kPage, 0x5a), back(kPage), zeroes(kPage);
  for (uint64_t i = 0; i < 20; i++) {
    CHECK(client->write(i * kPage, page.data(), kPage) == kOk);
    then_silence([&] { CHECK(client->read((i + 1) * kPage, back.data(), kPage) == kOk && back == zeroes); });
    then_silence([&] { CHECK(client->read(i * kPage, back.data(), kPage) == kOk && back == page); });
  }
  then_silence([&] { CHECK(client->read(kPage * 100, back.data(), kPage) == kOk); });
  client.reset();
  volume.wait_for(Event::Type::connection_closed);

  int socket = -1;
  then_silence([&] { socket = volume.attach(0); });
  CHECK(volume.engine->yield_lane(0) == 0);
  const Event yielded = volume.wait_for(Event::Type::lane_yielded);
  CHECK(yielded.descriptor >= 0);
  close(yielded.descriptor);
  close(socket);
}

// What control says while the lane is in recv(2), or about to be.
void control_at_once() {
  std::vector<uint8_t> page(kPage);
  for (int i = 0; i < 20; i++) {
    NbdVolume volume(sleepy());
    SocketClient client(volume.attach(0));
    CHECK(client.read(0, page.data(), kPage) == kOk);
    CHECK(volume.engine->yield_lane(0) == 0);
    const Event yielded = volume.wait_for(Event::Type::lane_yielded);
    CHECK(yielded.descriptor >= 0);
    close(yielded.descriptor);
  }
}

// A lane that stands still while servers come can be told to yield, and that it need not.
void told_while_it_stands() {
  NbdShape shape;
  shape.options.wait_mode = WaitMode::poll;
  shape.options.operation_timeout_ns = kNever;
  NbdVolume volume(shape);
  SocketClient client(volume.attach(0));
  std::vector<uint8_t> page(kPage, 0x5a), back(kPage);
  Server& server = *volume.servers[0];
  // More than its mailbox holds twice: it may take all that is there once more before it stands.
  std::vector<QpRef> queue_pairs;
  for (int i = 0; i < 300; i++) queue_pairs.push_back(volume.queue_pair(0, server));
  // While a WRITE is under way the lane polls, which is where it is held.
  server.set_mode(Server::Mode::hung);
  std::thread writes([&] { CHECK(client.write(0, page.data(), kPage) == kOk); });
  await([&] { return volume.engine->volume().pages().get(0) == PageState::claimed; });
  {
    const std::lock_guard stands(volume.queue(0).lock);
    std::string why;
    int error = 0;
    uint32_t index = shape.servers;
    for (const QpRef& qp : queue_pairs) {
      error = volume.engine->connect_server(0, index++, qp, MrRef(), why);
      if (error != 0) break;
    }
    CHECK(error == EAGAIN, "%s", why.c_str());
    for (int i = 0; i < 4; i++)
      CHECK(volume.engine->yield_lane(0) == 0 && volume.engine->resume_lane(0) == 0);
  }
  CHECK(volume.wait_for(Event::Type::lane_yielded).descriptor < 0);
  server.set_mode(Server::Mode::healthy);
  writes.join();
  CHECK(client.read(0, back.data(), kPage) == kOk && back == page);
}

}  // namespace

int main() {
  timed("after each other", after_each_other);
  timed("each after a silence", after_a_silence);
  timed("control at once", control_at_once);
  timed("told while it stands", told_while_it_stands);
  std::printf("ok\n");
}
