// Volumes whose pages are compressed, and pages that tell whether they are whole.
#pragma once

#include <unistd.h>

#include "../fixture/workers.h"

namespace fixture {

inline constexpr Behaviour kSlow{.delay_ns = 20'000, .jitter_ns = 50'000};
inline constexpr Behaviour kIwarp{.delay_ns = 20'000, .jitter_ns = 50'000, .iwarp = true};

inline Shape compressed(uint32_t replicas, Compression mode = Compression::always) {
  Shape shape;
  shape.size = 8 << 20;
  shape.servers = 3;
  shape.lanes = 2;
  shape.replicas = replicas;
  shape.refill_lane = true;
  shape.roomy = true;
  shape.options.volume.compression = mode;
  return shape;
}

// A page of a kind that LZ4 packs to some 800 bytes, or (odd kinds) not at all, of which each 8 bytes depend
// on the number: half of one page and half of another are no page.
inline void fill_page(uint8_t* page, uint64_t number) {
  uint64_t words[512];
  fill_noise(words, sizeof words, number);
  for (size_t i = 0; number % 2 == 0 && i < std::size(words); i++)
    if (i % 8 != 0) words[i] = number;
  words[0] = number;
  std::memcpy(page, words, sizeof words);
}
inline bool is_page(const uint8_t* page) {
  uint64_t number;
  std::memcpy(&number, page, 8);
  uint8_t expected[4096];
  fill_page(expected, number);
  return std::memcmp(page, expected, 4096) == 0;
}
inline std::vector<uint8_t> pages_of(uint64_t count, const std::function<uint64_t(uint64_t)>& number) {
  std::vector<uint8_t> data(count * 4096);
  for (uint64_t i = 0; i < count; i++) fill_page(data.data() + i * 4096, number(i));
  return data;
}
// Runs of both kinds and single ones.
inline uint64_t mixed(uint64_t i) { return 1000 + 2 * i + (i % 11 < 5 || i % 7 == 3 ? 1 : 0); }

inline uint64_t bytes_of(const TestVolume& volume, Counter ServerStatistics::*counter) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < volume.shape.lanes; i++)
    for (uint32_t server = 0; server < volume.shape.servers; server++)
      total += (volume.engine->lane(i).statistics(server).*counter).get();
  return total;
}
inline void all_right(Client& client, const std::vector<uint8_t>& data) {
  std::vector<uint8_t> got(data.size());
  CHECK(client.read(0, got.data(), static_cast<uint32_t>(got.size())) == 0 && got == data);
  for (uint64_t page = 0; page < data.size() / 4096; page++) {
    CHECK(client.read(page * 4096, got.data(), 4096) == 0);
    CHECK(std::memcmp(got.data(), data.data() + page * 4096, 4096) == 0);
  }
}

// A unique file name; the file is removed with it.
class File {
 public:
  explicit File(const char* what) : name_("/var/tmp/nbd_compress." + std::to_string(getpid()) + "." + what) {}
  ~File() { unlink(name_.c_str()); }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

}  // namespace fixture
