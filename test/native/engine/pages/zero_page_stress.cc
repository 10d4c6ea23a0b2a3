// Pages of zeros in what a client writes: they cost no network, wherever in a request they are.
#include "../fixture/workers.h"

namespace engine_zero_page_stress {

using namespace fixture;

constexpr uint64_t kSlab = 1 << 20;

uint64_t sent(const TestVolume& volume) { return volume.engine->lane(0).statistics().rdma_writes.get(); }
uint64_t zeroes(const TestVolume& volume) { return volume.engine->lane(0).statistics().zero_pages.get(); }

// 1. All zeros, never written and written before.
void whole() {
  TestVolume volume(Shape{});
  Client client(volume.attach(0));
  std::vector<uint8_t> data(256 << 10);
  std::vector<uint8_t> got(256 << 10, 1);
  CHECK(client.write(0, data.data(), 256 << 10) == 0);
  CHECK(sent(volume) == 0 && zeroes(volume) == 64);
  const std::vector<uint8_t> noise(256 << 10, 0x6d);
  CHECK(client.write(0, noise.data(), 256 << 10) == 0);
  CHECK(sent(volume) > 0 && zeroes(volume) == 64);
  CHECK(client.write(0, data.data(), 256 << 10) == 0 && zeroes(volume) == 128);
  CHECK(client.read(0, got.data(), 256 << 10) == 0 && got == data);
  CHECK(volume.engine->volume().pages().count(PageState::written) == 0);
  std::printf("whole requests of zeros\n");
}

// 2. Among data, at every place, and with bytes that only look like zeros.
void among_data() {
  TestVolume volume(Shape{});
  Client client(volume.attach(0));
  std::mt19937_64 random(8);
  std::vector<uint8_t> known(4 * kSlab, 0);
  std::vector<uint8_t> got(4 * kSlab);
  for (int n = 0; n < effort(400); n++) {
    const uint32_t length = 1 + static_cast<uint32_t>(random() % 200'000);
    const uint64_t offset = random() % (known.size() - length);
    std::vector<uint8_t> data(length);
    for (uint64_t page = 0; page * 4096 < length; page++) {
      const auto begin = data.begin() + static_cast<long>(page * 4096);
      const auto end = data.begin() + static_cast<long>(std::min<uint64_t>(length, (page + 1) * 4096));
      if (random() % 2 == 0) std::fill(begin, end, static_cast<uint8_t>(1 + random() % 255));
      if (random() % 3 == 0) *(begin + static_cast<long>(random() % static_cast<uint64_t>(end - begin))) = 1;
    }
    CHECK(client.write(offset, data.data(), length) == 0);
    std::copy(data.begin(), data.end(), known.begin() + static_cast<long>(offset));
  }
  CHECK(client.read(0, got.data(), 4 * kSlab) == 0 && got == known);
  CHECK(zeroes(volume) > 0);
  std::printf("zeros among data: %llu pages\n", static_cast<unsigned long long>(zeroes(volume)));
}

// 3. A slab that is out of reach takes them, and what was lost is known again.
void out_of_reach() {
  TestVolume volume(Shape{});
  Client client(volume.attach(0));
  std::vector<uint8_t> page(4096, 3);
  CHECK(client.write(0, page.data(), 4096) == 0);
  volume.engine->fail_server(0, "test");
  CHECK(client.read(0, page.data(), 4096) == EIO);
  std::fill(page.begin(), page.end(), 0);
  CHECK(client.write(0, page.data(), 4096) == 0);
  page[0] = 9;
  CHECK(client.read(0, page.data(), 4096) == 0 && page[0] == 0);
  std::printf("out of reach\n");
}

STRESS(engine_zero_page) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  whole();
  among_data();
  out_of_reach();
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_zero_page_stress
