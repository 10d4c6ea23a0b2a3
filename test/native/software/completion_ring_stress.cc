// The ring of a completion queue beside a plain list, in any order of events; and that it uses few pages.
#include <deque>

#include "../random_values.h"
#include "../stress.h"
#include "software/completion_ring.h"

namespace software_completion_ring_stress {

using namespace fixture;
using rdmakit::software::CompletionRing;
using Ring = CompletionRing<uint64_t>;

ibv_wc completion_of(uint64_t number) {
  ibv_wc completion{};
  completion.wr_id = number;
  return completion;
}

// Adds, takes, forgets and moves, as they come. Each completion has its number for its time as well.
void like_a_list(uint64_t seed, bool stamped) {
  Random random(seed);
  Ring ring(static_cast<int>(1 + random.below(40)), stamped);
  std::array<std::atomic<uint32_t>, 3> polled{};
  struct Known {
    uint64_t number;
    size_t owner;
  };
  std::deque<Known> list;
  uint64_t number = 0;
  const auto take = [&](size_t at_most) {
    std::array<ibv_wc, 64> completions;
    std::array<uint64_t, 64> times;
    const auto count =
        static_cast<size_t>(ring.take(static_cast<int>(at_most), completions.data(), times.data()));
    CHECK(count == std::min(at_most, list.size()));
    for (size_t i = 0; i < count; i++) {
      const Known& known = list.front();
      CHECK(completions[i].wr_id == known.number && times[i] == (stamped ? known.number : 0));
      if (i + 1 == count) CHECK(polled[known.owner].load() == static_cast<uint32_t>(known.number));
      list.pop_front();
    }
  };
  for (int step = effort(3000); step > 0; step--) {
    const uint64_t what = random.below(100);
    if (what < 55) {
      CHECK(ring.full() == (list.size() == static_cast<size_t>(ring.capacity())));
      if (ring.full()) continue;
      const size_t owner = random.below(polled.size());
      number++;
      CHECK((ring.next_stamp() != nullptr) == stamped);
      if (stamped) *ring.next_stamp() = number;
      ring.add(completion_of(number), &polled[owner], static_cast<uint32_t>(number));
      list.push_back({number, owner});
    } else if (what < 95) {
      take(random.below(10));
    } else if (what < 97) {
      const size_t owner = random.below(polled.size());
      ring.forget(&polled[owner]);
      std::erase_if(list, [&](const Known& known) { return known.owner == owner; });
    } else {
      const auto entries = static_cast<uint32_t>(1 + random.below(40));
      Ring other(static_cast<int>(entries), stamped);
      CHECK(ring.move_to(other, entries) == (list.size() <= entries));
    }
    CHECK(ring.empty() == list.empty());
  }
  while (!list.empty()) take(64);
  CHECK(ring.empty());
}

// What is polled soon lies in a few pages, of however many.
void few_pages() {
  constexpr int kEntries = 1 << 16;  // 4 MiB: a thousand pages
  Ring ring(kEntries, false);
  std::atomic<uint32_t> polled{0};
  std::array<ibv_wc, 7> completions;
  const long before = page_faults();
  for (uint32_t round = 0; round < kEntries / 4; round++) {
    for (uint32_t i = 0; i < completions.size(); i++) ring.add(completion_of(i), &polled, round);
    CHECK(ring.take(completions.size(), completions.data(), nullptr) == 7);
  }
  CHECK(page_faults() - before < 100);
}

STRESS(software_completion_ring) {
  for (uint64_t seed = 1; seed <= 20; seed++) like_a_list(seed, seed % 2 == 0);
  few_pages();
  return 0;
}

}  // namespace software_completion_ring_stress
