// Requests while a server dies, hangs, or is declared failed, and on a lane that stands still.
#include <signal.h>

#include "fixture/damage.h"
#include "fixture/workers.h"

namespace engine_requests_failures_stress {

using namespace fixture;

const int kOperationsOfAWorker = effort(150);

// 2. A server dies, or hangs, while requests are under way.
void server_failure(Server::Mode how, bool keeps_flushes) {
  Shape shape;
  shape.lanes = 2;
  shape.servers = 3;
  shape.behaviour.delay_ns = 20'000;
  shape.behaviour.jitter_ns = 50'000;
  shape.behaviour.keeps_flushes = keeps_flushes;
  shape.options.operation_timeout_ns = 300'000'000;
  TestVolume volume(shape);
  {
    Workers workers(volume, 6);
    std::thread killer([&] {
      await([&] { return workers.done >= static_cast<uint64_t>(kOperationsOfAWorker); });
      volume.servers[1]->set_mode(how);
    });
    workers.run(kOperationsOfAWorker, true, 300'000);
    killer.join();
    CHECK(workers.errors > 0);
    const Event event = volume.wait_for(Event::Type::server_failed);
    CHECK(event.server == 1);
  }
  // Requests were answered all the same, but memory that the device may still touch is not used again.
  if (!keeps_flushes) {
    // Slabs of the others go on.
    Client client(volume.attach(0));
    std::vector<uint8_t> page(4096, 1);
    CHECK(client.write(0, page.data(), 4096) == 0 && client.read(0, page.data(), 4096) == 0);
    CHECK(client.write(shape.slab_size, page.data(), 4096) == EIO);
  }
  CHECK(volume.count(Event::Type::server_failed) == 1);
  CHECK(volume.engine->volume().failed(1) && !volume.engine->volume().failed(0));
  const int error = volume.engine->close(keeps_flushes ? 100'000'000 : kCloseTime);
  CHECK(error == (keeps_flushes ? ETIMEDOUT : 0));
  // Its lanes must stay; somebody must know them, or the leak checker speaks up.
  static TestVolume::Engine* stuck;
  if (keeps_flushes) stuck = volume.engine.release();
  CHECK(!keeps_flushes || stuck != nullptr);
}

// A driver forgets what it takes of a broken connection: nothing waits for that longer than for a completion,
// a sleeping lane neither.
void forgotten() {
  Shape shape;
  shape.servers = shape.replicas = 2;
  shape.behaviour.iwarp = true;
  shape.options.wait_mode = WaitMode::event;
  shape.options.operation_timeout_ns = 300'000'000;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  std::vector<uint8_t> page(4096, 7);
  CHECK(client.write(0, page.data(), 4096) == 0);
  volume.servers[1]->set_mode(Server::Mode::forgets);
  CHECK(client.write(0, page.data(), 4096) == 0);
  CHECK(volume.wait_for(Event::Type::server_failed).server == 1);
  volume.synchronize();
  CHECK(client.read(0, page.data(), 4096) == 0 && page[0] == 7);
  CHECK(volume.engine->close(kCloseTime) == 0);
}

// 3. failServer from outside: answered at once, not at the operation timeout.
void declared_failure() {
  Shape shape;
  shape.servers = 1;
  shape.options.operation_timeout_ns = kNever;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  std::vector<uint8_t> page(4096, 7);
  CHECK(client.write(0, page.data(), 4096) == 0);
  volume.servers[0]->set_mode(Server::Mode::hung);
  std::atomic<bool> answered{false};
  std::thread reader([&] {
    CHECK(client.read(0, page.data(), 4096) == EIO);
    answered = true;
  });
  await([&] { return volume.engine->lane(0).statistics().outstanding_operations.get() == 1; });
  CHECK(volume.engine->fail_server(0, "heartbeat lost") == 0);
  await([&] { return answered.load(); });
  reader.join();
  CHECK(client.read(8192, page.data(), 4096) == 0);  // never written: zeros without network
  CHECK(page[0] == 0);
  CHECK(client.write(8192, page.data(), 4096) == 0);  // zeros need no server
  std::fill(page.begin(), page.end(), 7);
  CHECK(client.write(8192, page.data(), 4096) == EIO);
  CHECK(volume.wait_for(Event::Type::server_failed).lane == kMaxLanes);
}

// 13. A lane takes requests together with completions while many operations are under way, but not if those
// do not come: then it hears of them all the same.
void hung_operations_hold_up_no_request(WaitMode mode) {
  Shape shape;
  shape.servers = 1;
  shape.options.wait_mode = mode;
  shape.options.operation_timeout_ns = kNever;
  shape.options.read_ahead = 0;  // an operation for each READ
  TestVolume volume(shape);
  Client client(volume.attach(0));
  std::vector<uint8_t> pages(16 * 4096, 7);
  CHECK(client.write(0, pages.data(), 16 * 4096) == 0);
  volume.servers[0]->set_mode(Server::Mode::hung);
  std::vector<std::thread> readers;
  for (uint32_t i = 0; i < 16; i++)
    readers.emplace_back([&, i] { CHECK(client.read(i * 4096, &pages[i * 4096], 4096) == EIO); });
  await([&] { return volume.engine->lane(0).statistics().outstanding_operations.get() == 16; });
  std::atomic<bool> answered{false};
  std::thread asker([&] {
    for (int i = 0; i < 100; i++) CHECK(client.flush() == 0);
    answered = true;
  });
  await([&] { return answered.load(); });
  asker.join();
  CHECK(volume.engine->fail_server(0, "heartbeat lost") == 0);
  for (auto& reader : readers) reader.join();
}

std::atomic<bool> stands{false}, stands_on{false};

// 14. A lane's thread that does not run for longer than the operation timeout, as in a process that is
// stopped: what completed meanwhile, more than one look takes, counts. False: the machine was so slow that
// the timeout was over before the lane stood.
bool lane_stands_still(uint64_t timeout_ns) {
  constexpr uint32_t kReads = 60;
  Shape shape;
  shape.servers = 1;
  shape.options.read_ahead = 0;  // an operation for each READ
  shape.options.operation_timeout_ns = timeout_ns;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  std::vector<uint8_t> pages(kReads * 4096, 3);
  CHECK(client.write(0, pages.data(), kReads * 4096) == 0);
  struct sigaction stand {};
  stand.sa_handler = [](int) {
    stands = true;
    while (stands_on) usleep(1'000);
  };
  struct sigaction before {};
  // One of the few that our threads do not block (rdmakit/thread.h).
  CHECK(sigaction(SIGSYS, &stand, &before) == 0);
  volume.servers[0]->set_mode(Server::Mode::hung);
  std::atomic<uint32_t> failed{0};
  std::vector<std::thread> readers;
  for (uint32_t i = 0; i < kReads; i++)
    readers.emplace_back([&, i] { failed += client.read(i * 4096, &pages[i * 4096], 4096) != 0; });
  const auto late = [&] { return volume.count(Event::Type::server_failed) > 0; };
  const auto& outstanding = volume.engine->lane(0).statistics().outstanding_operations;
  await([&] { return outstanding.get() == kReads || late(); });
  stands = false;
  stands_on = true;
  CHECK(tgkill(getpid(), volume.lane_thread(0), SIGSYS) == 0);
  await([&] { return stands.load(); });
  const bool in_time = !late();
  if (in_time) {
    // What is waited for is time itself.
    usleep(static_cast<useconds_t>(timeout_ns / 1'000 + timeout_ns / 10'000));
    volume.servers[0]->set_mode(Server::Mode::healthy);
  }
  stands_on = false;
  for (auto& reader : readers) reader.join();
  CHECK(!in_time || (failed == 0 && !late()));
  CHECK(sigaction(SIGSYS, &before, nullptr) == 0);
  return in_time;
}

STRESS(engine_requests_failures) {
  side_by_side({
      {"a failure that is declared", declared_failure},
      {"forgotten", forgotten},
      {"a lane stands still",
       [] {
         for (uint64_t timeout = 500'000'000; !lane_stands_still(timeout);) timeout *= 2;
       }},
      {"requests beside hung operations, event", [] { hung_operations_hold_up_no_request(WaitMode::event); }},
      {"requests beside hung operations, adaptive",
       [] { hung_operations_hold_up_no_request(WaitMode::adaptive); }},
      {"requests beside hung operations, poll", [] { hung_operations_hold_up_no_request(WaitMode::poll); }},
  });
  side_by_side({
      {"a server dies", [] { server_failure(Server::Mode::dead, false); }},
      {"a server hangs", [] { server_failure(Server::Mode::hung, false); }},
      {"a server hangs, a device keeps its requests", [] { server_failure(Server::Mode::hung, true); }},
  });
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_requests_failures_stress
