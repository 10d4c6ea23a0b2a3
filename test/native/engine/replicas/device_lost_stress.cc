// A device that goes away: its queue cannot be armed any more, or its channel cannot be read. Outstanding
// requests are answered, and the lane neither spins nor sleeps for ever.
#include "../fixture/one_slab.h"

namespace engine_device_lost_stress {

using namespace fixture;

constexpr uint32_t kNext = 3;  // an index that no server had

Shape sleepy() {
  Shape shape = one_slab(1);
  shape.options.wait_mode = WaitMode::event;
  shape.options.operation_timeout_ns = 100'000'000'000;  // only the device tells
  return shape;
}

void told(OneSlab& with, const char* call) {
  const Event event = with.volume.wait_for(Event::Type::server_failed);
  CHECK(std::strstr(event.reason.data(), "its device is gone") != nullptr);
  CHECK(std::strstr(event.reason.data(), call) != nullptr, "%s", event.reason.data());
}

// A server that is connected afterwards fails at once, without an operation, and the slab has it for nothing.
void next_one_fails(OneSlab& with) {
  CHECK(!with.slabs.failed(kNext));
  std::string why;
  const QpRef qp = with.volume.queue_pair(0, *with.volume.servers[0]);
  CHECK(with.volume.engine->connect_server(0, kNext, qp, MrRef(), why) == 0, "%s", why.c_str());
  with.volume.synchronize();  // until the lane knows it
  CHECK(with.slabs.failed(kNext));
  const Event event = with.volume.wait_until(
      [](const Event& told) { return told.type == Event::Type::server_failed && told.server == kNext; });
  CHECK(std::strcmp(event.reason.data(), "its device is gone") == 0, "%s", event.reason.data());
  Replica back = with.volume.replica(0, 0);
  back.server = kNext;
  CHECK(with.slabs.move_replica(0, 0, back) == 0);
  const uint64_t posted = with.posted();
  CHECK(with.write(0x44) == EIO);
  CHECK(with.posted() == posted);
}

void cannot_be_armed() {
  OneSlab with(sleepy());
  with.volume.queue(0).arm_error = ENODEV;
  with.hang(0);
  CHECK(with.write(0x22) == EIO);
  told(with, "ibv_req_notify_cq");
  next_one_fails(with);
}

void cannot_be_read() {
  OneSlab with(sleepy());
  memory_device::Channel& channel = with.volume.channel(0);
  with.hang(0);
  with.begin(0x22, 1);
  const uint64_t before = channel.looks;
  channel.event_error = EIO;
  // Arming puts the timer back, which is the channel, so once is not enough.
  await([&] {
    const itimerspec now{{0, 0}, {0, 1}};
    CHECK(timerfd_settime(channel.fd, 0, &now, nullptr) == 0);
    return channel.looks > before;
  });
  CHECK(with.end() == EIO);
  told(with, "ibv_get_cq_event");
  // It stays readable, and is not polled.
  CHECK(with.write(0x33) == EIO);
  CHECK(channel.looks == before + 1);
  next_one_fails(with);
  CHECK(channel.looks == before + 1);
}

STRESS(engine_device_lost) {
  side_by_side({{"cannot be armed", cannot_be_armed}, {"cannot be read", cannot_be_read}});
  return 0;
}

}  // namespace engine_device_lost_stress
