// Pairs of threads of which one must see what the other did: each stores, then looks at what the other
// stores, and all four are sequentially consistent. Shown here is that the looks are there and in this order;
// where one of them is made weaker, x86 does the same.
//
//   vacated     lane: claim, then phase    control: closing, then the pages again
//   placed      lane: claim, then place    refill: record with the new replica, then the page
#include <random>

#include "../compression/compressed_pages.h"

namespace engine_litmus_stress {

using namespace fixture;

void spin(uint64_t turns) {
  for (volatile uint64_t left = turns; left > 0;) left = left - 1;
}

// A claim that holds its slab has a place as long as it stands. The slab is large, so that a look at all its
// pages takes microseconds, in which the first one is claimed.
void vacated() {
  VolumeOptions options;
  options.size = options.slab_size = 1 << 30;
  options.thin = true;
  Volume volume;
  std::string why;
  CHECK(volume.open(options, why) == 0, "%s", why.c_str());
  const Replica place{0x1000, 1, 0, true};
  const auto map = [&] {
    CHECK(volume.add_spare(1, {&place, 1}) == 0 && volume.place_spare(0));
    std::vector<PlacePool::Used> used;
    volume.collect_spares(used);
  };
  map();
  std::atomic<bool> over{false};
  uint64_t held = 0;
  uint64_t late = 0;
  std::thread lane([&] {
    std::mt19937_64 random(1);
    while (!over) {
      CHECK(volume.pages().claim(0, 1, PageState::unset) == 1);
      const bool holds = volume.hold(0);
      for (uint64_t looks = random() % 64; looks > 0; looks--)
        CHECK(!holds || volume.place(0).mapped(), "after %llu times", static_cast<unsigned long long>(held));
      holds ? held++ : late++;
      volume.settle(0, 1, volume.generation(0), PageState::unset);
      spin(random() % 8192);
    }
  });
  int vacated = 0;
  for (const int times = effort(1'000); vacated < times;) {
    if (const int error = volume.vacate(0); error == 0) {
      vacated++;
      map();
    } else {
      CHECK(error == EBUSY);
    }
  }
  over = true;
  lane.join();
  std::printf("  %d vacated, %llu held, %llu too late\n", vacated, static_cast<unsigned long long>(held),
              static_cast<unsigned long long>(late));
}

// A page that is still unset when a new replica is on record, and written while it is, is written there too.
// Pages that do not compress make it long from a WRITE's first look at the place until its claim.
void placed() {
  constexpr uint64_t kPages = 256;
  TestVolume volume(compressed(1));
  Volume& slabs = volume.engine->volume();
  PageMap& pages = slabs.pages();
  Client client(volume.attach(0));
  std::vector<uint8_t> there(4096);
  uint64_t seen = 0;
  uint64_t round = 0;
  for (const auto wanted = static_cast<uint64_t>(effort(40'000)); seen < wanted; round++) {
    const auto data = pages_of(kPages, [=](uint64_t i) { return 2 * (round * kPages + i) + 1; });
    std::atomic<bool> over{false};
    std::thread writer([&] {
      CHECK(client.write(0, data.data(), kPages * 4096) == 0);
      over = true;
    });
    while (!over) {
      CHECK(slabs.add_replica(0, volume.replica(0, 1)) == 0);
      uint64_t first = kPages;
      while (first > 0 && pages.get(first - 1) == PageState::unset) first--;
      while (!over && first < kPages && pages.get(first) != PageState::written) {
      }
      uint64_t end = first;
      while (end < kPages && pages.get(end) == PageState::written) end++;
      Volume::Dropped dropped;
      CHECK(slabs.drop_replica(0, 1, false, dropped) == 0);
      for (uint64_t page = first; page < end; page++, seen++) {
        volume.servers[1]->copy(volume.replica(0, 1).address + page * 4096, there.data(), 4096, false);
        CHECK(std::memcmp(there.data(), &data[page * 4096], 4096) == 0, "round %llu, page %llu",
              static_cast<unsigned long long>(round), static_cast<unsigned long long>(page));
      }
    }
    writer.join();
    CHECK(client.trim(0, kPages * 4096) == 0);
  }
  std::printf("  %llu pages were written behind a look, in %llu rounds\n",
              static_cast<unsigned long long>(seen), static_cast<unsigned long long>(round));
}

STRESS(engine_litmus) {
  timed("vacated", vacated);
  timed("placed", placed);
  return 0;
}

}  // namespace engine_litmus_stress
