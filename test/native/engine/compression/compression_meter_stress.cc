// Whether a lane compresses what it writes: where it pays, and for as long.
#include "../fixture/damage.h"
#include "compressed_pages.h"
#include "compression/compression_meter.h"

namespace engine_compression_meter_stress {

using namespace fixture;

constexpr uint32_t kTrial =
    CompressionMeter::kTurns * (CompressionMeter::kSettle + CompressionMeter::kMeasure);

// The meter, with a clock of its own: a lane on which a page takes so long (ns) with and without
// compression, and so many bytes go. Returns after how many pages of `count` it is on.
struct Simulated {
  CompressionMeter meter{Compression::measured};
  uint64_t now = 1'000'000;
  uint64_t compressed = 0;
  void write(uint32_t pages, uint64_t with, uint64_t without, uint32_t gone) {
    for (uint32_t i = 0; i < pages; i++) {
      const bool compresses = meter.compresses();
      compressed += compresses;
      meter.posted();
      meter.wrote(1, compresses ? gone : 0);
      now += compresses ? with : without;
      meter.turn(now, false);
      now += 5'000;  // the client thinks
      meter.turn(now, false);
    }
  }
};
void meter() {
  Simulated pays;
  pays.write(kTrial, 3'000, 4'000, 2'500);
  CHECK(pays.meter.compresses() && pays.compressed == kTrial / 2);
  pays.write(CompressionMeter::kStay, 3'000, 4'000, 2'500);
  CHECK(pays.compressed == kTrial / 2 + CompressionMeter::kStay);
  pays.write(kTrial, 4'100, 4'000, 2'500);  // not any more
  CHECK(!pays.meter.compresses());
  pays.compressed = 0;
  pays.write(CompressionMeter::kStay - 1, 4'100, 4'000, 2'500);
  CHECK(pays.compressed == 0);
  pays.write(kTrial + 1, 3'000, 4'000, 2'500);  // again
  CHECK(pays.meter.compresses());
  pays.write(CompressionMeter::kGlance, 3'000, 4'000, 511);  // the data change
  CHECK(!pays.meter.compresses());
  pays.compressed = 0;
  pays.write(CompressionMeter::kShortRest, 3'000, 4'000, 2'500);
  CHECK(pays.compressed == 0 && pays.meter.compresses());
  Simulated hardly;
  hardly.write(kTrial, 3'800, 4'000, 2'500);
  CHECK(!hardly.meter.compresses());
  CompressionMeter always(Compression::always), off(Compression::off);
  for (int i = 0; i < 1000; i++) {
    always.wrote(1, 0);
    off.wrote(1, 0);
  }
  CHECK(always.compresses() && !off.compresses());
  std::printf("the meter\n");
}

// Nothing to be gained: off within 64 pages, and each RDMA WRITE is a long one again.
void no_gain() {
  TestVolume volume(compressed(1, Compression::measured));
  Client client(volume.attach(0));
  const LaneStatistics& statistics = volume.engine->lane(0).statistics();
  CHECK(statistics.compressing.get() == 1);
  const auto data = pages_of(256, [](uint64_t i) { return 2 * i + 1; });
  for (int i = 0; i < 4; i++) CHECK(client.write(0, data.data(), 1 << 20) == 0);
  CHECK(statistics.compressing.get() == 0 && statistics.bytes_spared.get() == 0);
  all_right(client, data);
  std::printf("random data\n");
}

// A slow wire: after the trial it is on, and stays so.
void slow_wire() {
  Shape shape = compressed(1, Compression::measured);
  shape.behaviour.ns_per_byte = 100;  // slower than any processor is busy
  TestVolume volume(shape);
  Client client(volume.attach(0));
  const auto data = pages_of(256, [](uint64_t i) { return 2 * i; });
  uint64_t pages = 0;
  const auto write = [&](uint64_t count) {
    const uint64_t packed = sum(volume, &LaneStatistics::pages_packed);
    for (const uint64_t end = pages + count; pages < end; pages += 256)
      CHECK(client.write(0, data.data(), 1 << 20) == 0);
    return sum(volume, &LaneStatistics::pages_packed) - packed;
  };
  const uint64_t tried = write(kTrial);
  CHECK(tried > kTrial / 3 && tried < kTrial / 3 * 2);
  CHECK(write(2048) == 2048 && volume.engine->lane(0).statistics().compressing.get() == 1);
  all_right(client, data);
  std::printf("a slow wire\n");
}

STRESS(engine_compression_meter) {
  meter();
  no_gain();
  slow_wire();
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_compression_meter_stress
