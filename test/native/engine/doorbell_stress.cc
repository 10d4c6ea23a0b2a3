// Events for control are not lost because of too many others: a failed server, the end of a refill, a lane
// that yields, or that is idle. While control receives nothing, the lanes' rings of events are filled.
#include "fixture/damage.h"
#include "fixture/one_slab.h"

namespace engine_doorbell_stress {

using namespace fixture;

STRESS(engine_doorbell) {
  Shape shape = one_slab(2);
  shape.lanes = 2;
  OneSlab with(shape);
  std::vector<uint8_t> data(1 << 20, 0x5a);
  CHECK(with.client.write(0, data.data(), 1 << 20) == 0);
  auto deaf = with.volume.deafen();
  // Each page is wrong at one of the two, so the refill repairs 256.
  for (uint64_t page = 0; page < 256; page++) {
    const uint64_t at = with.volume.replica(0, 0).address + page * 4096;
    uint8_t byte = 0;
    with.volume.servers[0]->copy(at, &byte, 1, false);
    byte ^= 1;
    with.volume.servers[0]->copy(at, &byte, 1, true);
  }
  with.add(2);
  with.refill(2);
  await([&] { return with.find(2)->live; });
  // Each tells three things of a lane.
  for (int i = 0; i < 100; i++) const Client passing(with.volume.attach(1));
  {
    Client other(with.volume.attach(1));
    with.set(1, Server::Mode::dead);
    CHECK(other.write(0, data.data(), 4096) == 0);
    CHECK(with.slabs.failed(1));
  }
  await([&] { return with.volume.engine->yield_lane(1) == 0; });
  deaf.unlock();
  with.wait_for_failure_of(1);
  with.filled(2);
  with.volume.wait_for(Event::Type::lane_yielded);
  // The last of its clients has left, whatever else of that was lost.
  const auto of_lane = [](const Event& event) {
    return event.lane == 1 && event.type != Event::Type::lane_yielded && event.server == 0;
  };
  await([&] { return with.volume.last(of_lane).type == Event::Type::lane_idle; });
  return 0;
}

}  // namespace engine_doorbell_stress
