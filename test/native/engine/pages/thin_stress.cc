// Thin volumes: slabs that get their places by the first WRITE, and give them back when they are empty, while
// others write, trim and read, on more than one lane.
#include <algorithm>
#include <chrono>
#include <map>
#include <random>

#include "../fixture/fixture.h"

namespace engine_thin_stress {

using namespace fixture;

constexpr uint64_t kSlab = 1 << 20;

Shape thin(uint32_t lanes = 1, uint32_t replicas = 1) {
  Shape shape;
  shape.size = 8 * kSlab;
  shape.servers = replicas + 1;
  shape.lanes = lanes;
  shape.replicas = replicas;
  shape.thin = true;
  shape.options.operation_timeout_ns = kNever;
  return shape;
}

int spare(TestVolume& volume, uint32_t id) {
  const Replica place = volume.replica(id, id % volume.shape.servers);
  return volume.engine->add_spare(id, {&place, 1});
}

int write(Client& client, uint64_t offset, uint8_t value, uint32_t length = 4096) {
  const std::vector<uint8_t> data(length, value);
  return client.write(offset, data.data(), length);
}

// What each byte of the range is; -1: they differ, or an error.
int value_at(Client& client, uint64_t offset, uint32_t length = 4096) {
  std::vector<uint8_t> data(length, 0xaa);
  if (client.read(offset, data.data(), length) != 0) return -1;
  return is_filled(data.data(), length, data[0]) ? data[0] : -1;
}

// 1. Nothing is used before it is written, all of it is given back when it is trimmed.
void by_and_by() {
  TestVolume volume(thin());
  Volume& slabs = volume.engine->volume();
  Client client(volume.attach(0));
  CHECK(value_at(client, 0, 2 << 20) == 0 && client.trim(0, 4 << 20) == 0);
  CHECK(write(client, 3 * kSlab, 0, 2 << 20) == 0);  // zeros
  CHECK(client.write_zeroes(100, 50) == 0);
  CHECK(slabs.mapped() == 0 && volume.count(Event::Type::slabs_changed) == 0);

  for (uint32_t id = 0; id < 3; id++) CHECK(spare(volume, id) == 0);
  CHECK(write(client, 2 * kSlab - 4096, 7, 8192) == 0);  // two slabs
  CHECK(slabs.mapped() == 2 && slabs.spares() == 1);
  volume.wait_for(Event::Type::slabs_changed);
  std::vector<PlacePool::Used> used;
  slabs.collect_spares(used);
  CHECK(used.size() == 2 && used[0].slab != used[1].slab && used[0].slab + used[1].slab == 3);
  CHECK(value_at(client, 2 * kSlab - 4096, 8192) == 7 && value_at(client, kSlab, 4096) == 0);
  CHECK(slabs.count_pages(PageState::written) == 2);

  CHECK(slabs.vacate(1) == EBUSY && slabs.vacate(0) == ENOENT && slabs.vacate(8) == EINVAL);
  CHECK(client.trim(kSlab, 2 * kSlab) == 0);
  std::vector<uint32_t> cleared;
  slabs.take_cleared(cleared);
  CHECK((cleared == std::vector<uint32_t>{1, 2}));
  CHECK(slabs.vacate(1) == 0 && slabs.vacate(1) == ENOENT && slabs.mapped() == 1);
  CHECK(value_at(client, 2 * kSlab - 4096, 8192) == 0);
  cleared.clear();
  CHECK(client.trim(kSlab, kSlab) == 0);
  slabs.take_cleared(cleared);
  CHECK(cleared.empty());  // it has nothing to give

  // A part of a page: the rest of it is zeros, whatever the place held.
  CHECK(write(client, kSlab + 100, 9, 50) == 0 && slabs.mapped() == 2 && slabs.spares() == 0);
  CHECK(value_at(client, kSlab, 100) == 0 && value_at(client, kSlab + 100, 50) == 9);
  CHECK(value_at(client, kSlab + 150, 4096 - 150) == 0);
}

// 2. No spare place: a WRITE waits for one until its deadline, and not less.
void nobody_cares() {
  Shape shape = thin();
  shape.options.operation_timeout_ns = 300'000'000;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  const auto start = Clock::now();
  CHECK(write(client, kSlab, 2) == EIO);
  // Not all of it: a lane goes by the time at which its present turn began.
  CHECK(seconds_since(start) > 0.15);
}

// This process stood still for longer than a WRITE may wait for a place, and so did who brings one.
void stood_still() {
  Shape shape = thin();
  shape.options.operation_timeout_ns = 2'000'000'000;
  TestVolume volume(shape);
  Client client(volume.attach(0));
  int error = Client::kGone;
  std::thread writer([&] { error = write(client, kSlab, 2); });
  volume.wait_for(Event::Type::slabs_changed);
  char command[100];
  snprintf(command, sizeof command, "kill -STOP %d; sleep 2.5; kill -CONT %d", getpid(), getpid());
  CHECK(std::system(command) == 0);
  CHECK(value_at(client, 0) == 0);  // so the lane has looked
  CHECK(spare(volume, 0) == 0);
  writer.join();
  CHECK(error == 0 && value_at(client, kSlab) == 2);
}

// It waits for a place that comes, and fails at once when there will be none.
void none_left() {
  TestVolume volume(thin());
  Volume& slabs = volume.engine->volume();
  Client client(volume.attach(0));
  int error = Client::kGone;
  std::thread writer([&] { error = write(client, 0, 1); });
  volume.wait_for(Event::Type::slabs_changed);
  CHECK(value_at(client, 0) == 0);  // a READ does not wait with it
  CHECK(spare(volume, 0) == 0);
  writer.join();
  CHECK(error == 0 && value_at(client, 0) == 1);

  volume.engine->set_exhausted();
  CHECK(write(client, kSlab, 2) == ENOSPC && write(client, kSlab + 5, 2, 6) == ENOSPC);
  CHECK(write(client, 4096, 3) == 0);  // has a place
  CHECK(value_at(client, kSlab) == 0);
  // Control looks at what was discarded before a WRITE fails.
  CHECK(client.trim(4096, 4096) == 0 && !slabs.exhausted());
  volume.engine->set_exhausted();
  CHECK(!slabs.exhausted());
  std::vector<uint32_t> cleared;
  slabs.take_cleared(cleared);
  CHECK(cleared == std::vector<uint32_t>{0});
  volume.engine->set_exhausted();
  CHECK(slabs.exhausted() && write(client, kSlab, 2) == ENOSPC);
  CHECK(spare(volume, 1) == 0 && write(client, kSlab, 2) == 0);

  // A place at a server that has failed is unusable.
  CHECK(spare(volume, 2) == 0 && spare(volume, 2 + 1) == 0);
  CHECK(volume.engine->fail_server(0, "test") == 0);
  CHECK(write(client, 5 * kSlab, 4) == 0 && value_at(client, 5 * kSlab) == 4 && slabs.spares() == 1);
  CHECK(slabs.remove_spare(2) && !slabs.remove_spare(2) && !slabs.remove_spare(3) && slabs.spares() == 0);
}

// A client that keeps discarding pages, but no slab, does not delay another one's error.
void in_vain() {
  TestVolume volume(thin(2));
  Volume& slabs = volume.engine->volume();
  Client client(volume.attach(0));
  Client other(volume.attach(1));
  CHECK(spare(volume, 0) == 0 && write(other, 0, 1) == 0 && write(other, 4096, 1) == 0);
  const auto discard = [&] { return write(other, 4096, 1) == 0 && other.trim(4096, 4096) == 0; };
  CHECK(discard());
  std::atomic<int> error = Client::kGone;
  std::thread writer([&] { error = write(client, kSlab, 2); });
  for (const auto deadline = Clock::now() + kHang; error == Client::kGone;) {
    CHECK(Clock::now() < deadline);
    CHECK(discard());
    volume.engine->set_exhausted();
    CHECK(!slabs.exhausted());
  }
  writer.join();
  CHECK(error == ENOSPC);
  // A scan has been made, and now it is quiet.
  std::vector<uint32_t> cleared;
  slabs.take_cleared(cleared);
  volume.engine->set_exhausted();
  CHECK(slabs.exhausted());
  CHECK(discard() && !slabs.exhausted());
}

// What control does, in a loop: collects, fills the spares, vacates, and uses memory again after an epoch.
class Control {
 public:
  Control(TestVolume& volume, uint32_t places, uint32_t spares)
      : volume_(volume), spares_(spares), scarce_(places < volume.engine->volume().slabs()) {
    for (uint32_t id = 0; id < places; id++) free_.push_back(id);
    thread_ = std::thread([this] {
      while (!stop_) step();
    });
  }
  ~Control() {
    stop_ = true;
    thread_.join();
  }
  std::atomic<uint64_t> vacated{0};
  std::atomic<uint64_t> refused{0};

 private:
  std::vector<Replica> place(uint32_t id) const {
    std::vector<Replica> replicas;
    for (uint32_t i = 0; i < volume_.shape.replicas; i++)
      replicas.push_back(volume_.replica(id, (id + i) % volume_.shape.servers));
    return replicas;
  }
  void step() {
    Volume& slabs = volume_.engine->volume();
    std::vector<PlacePool::Used> used;
    slabs.collect_spares(used);
    for (const auto& each : used) CHECK(held_.emplace(each.slab, each.id).second);
    while (slabs.spares() < spares_ && !free_.empty()) {
      CHECK(volume_.engine->add_spare(free_.back(), place(free_.back())) == 0);
      free_.pop_back();
    }
    std::vector<uint32_t> cleared;
    slabs.take_cleared(cleared);
    std::vector<uint32_t> going;
    for (const uint32_t slab : cleared) {
      const int error = slabs.vacate(slab);
      CHECK(error == 0 || error == EBUSY || error == ENOENT);
      if (error == EBUSY) refused++;
      if (error != 0) continue;
      if (!held_.contains(slab)) {  // used since the last look
        used.clear();
        slabs.collect_spares(used);
        for (const auto& each : used) CHECK(held_.emplace(each.slab, each.id).second);
      }
      CHECK(held_.contains(slab));
      going.push_back(held_[slab]);
      held_.erase(slab);
    }
    if (going.empty()) {
      // Those who wait now may be all there are, so nothing will be given back.
      dry_ = slabs.spares() == 0 && free_.empty() ? dry_ + 1 : 0;
      if (scarce_ && dry_ > 30) volume_.engine->set_exhausted();
      usleep(100);
      return;
    }
    vacated += going.size();
    volume_.synchronize();
    // No operation reads or writes it any more: TSan would see it, and a later reader finds this.
    for (const uint32_t id : going) {
      for (const Replica& each : place(id)) std::memset(reinterpret_cast<void*>(each.address), 0xee, kSlab);
      free_.push_back(id);
    }
  }

  TestVolume& volume_;
  const uint32_t spares_;
  const bool scarce_;
  std::vector<uint32_t> free_;
  int dry_ = 0;
  std::map<uint32_t, uint32_t> held_;  // slab -> id
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

const int kOperations = effort(1200);
const uint64_t kVacated = static_cast<uint64_t>(effort(30));
constexpr uint32_t kWriters = 4;
constexpr uint32_t kPagesEach = 1;

// 3. Few pages in each slab, written and trimmed by writers that each know their own; slabs become empty and
//    full all the time. With fewer places than slabs, WRITEs also wait for places that others give back, and
//    may time out.
void under_load(uint32_t replicas, uint32_t places, uint32_t spares, Behaviour behaviour) {
  Shape shape = thin(3, replicas);
  shape.behaviour = behaviour;
  TestVolume volume(shape);
  const uint64_t slab_count = volume.engine->volume().slabs();
  const bool scarce = places < slab_count;
  std::atomic<uint64_t> errors{0};
  uint64_t vacated = 0;
  uint64_t refused = 0;
  {
    Control control(volume, places, spares);
    std::vector<std::unique_ptr<Client>> clients;
    for (uint32_t i = 0; i < 3; i++) clients.push_back(std::make_unique<Client>(volume.attach(i)));
    const auto work = [&](uint32_t writer) {
      std::mt19937_64 random(writer * 131 + places);
      std::map<uint64_t, int> known;  // value of each page
      const auto page_of = [&](uint64_t slab, uint64_t n) {
        return slab * (kSlab / 4096) + n * kWriters + writer;
      };
      // How often a slab is empty when control looks is a matter of chance.
      for (int n = 0; n < kOperations || control.vacated < kVacated; n++) {
        Client& client = *clients[random() % clients.size()];
        const uint64_t slab = random() % slab_count;
        const uint64_t page = page_of(slab, random() % kPagesEach);
        switch (random() % 4) {
          case 0:
          case 1: {
            const auto value = static_cast<uint8_t>(1 + random() % 0xd0);
            const bool whole = random() % 4 != 0 || known[page] != 0;
            const int error =
                whole ? write(client, page * 4096, value) : write(client, page * 4096, value, 4000);
            if (error != 0) {
              CHECK(scarce && error == ENOSPC && known[page] == 0);
              errors++;
            } else if (whole) {
              known[page] = value;
            } else {
              CHECK(value_at(client, page * 4096, 4000) == value &&
                    value_at(client, page * 4096 + 4000, 96) == 0);
              CHECK(write(client, page * 4096 + 4000, value, 96) == 0);
              known[page] = value;
            }
            break;
          }
          case 2:
            for (uint64_t i = 0; i < kPagesEach; i++) {
              const uint64_t trimmed = page_of(slab, i);
              CHECK((random() % 2 == 0 ? client.trim(trimmed * 4096, 4096)
                                       : client.write_zeroes(trimmed * 4096, 4096)) == 0);
              known[trimmed] = 0;
            }
            break;
          default:
            CHECK(value_at(client, page * 4096) == known[page]);
        }
      }
      for (const auto& [page, value] : known) CHECK(value_at(*clients[0], page * 4096) == value);
    };
    std::vector<std::thread> writers;
    for (uint32_t i = 0; i < kWriters; i++) writers.emplace_back(work, i);
    for (auto& writer : writers) writer.join();
    vacated = control.vacated;
    refused = control.refused;
  }
  std::printf("%llu slabs given back, %llu refused, %llu writes in vain\n",
              static_cast<unsigned long long>(vacated), static_cast<unsigned long long>(refused),
              static_cast<unsigned long long>(errors.load()));
}

// 4. A volume of 1 TiB costs what is used of it.
void large() {
  const auto resident = [] {
    long pages = 0;
    long ignored = 0;
    FILE* const file = std::fopen("/proc/self/statm", "r");
    CHECK(file != nullptr && std::fscanf(file, "%ld %ld", &ignored, &pages) == 2);
    std::fclose(file);
    return static_cast<uint64_t>(pages) * 4096;
  };
  const uint64_t before = resident();
  VolumeOptions options;
  options.size = uint64_t{1} << 40;
  options.slab_size = kSlab;
  options.thin = true;
  Volume volume;
  std::string why;
  const auto start = std::chrono::steady_clock::now();
  CHECK(volume.open(options, why) == 0 && volume.slabs() == 1 << 20);
  CHECK(volume.count_pages(PageState::written) == 0);
  const auto time = std::chrono::steady_clock::now() - start;
  for (uint64_t i = 0; i < 64; i++) {
    const Replica place{0x1000, 1, 0, true};
    CHECK(volume.add_spare(static_cast<uint32_t>(i), {&place, 1}) == 0);
    const uint64_t offset = i * (options.size / 64);
    CHECK(volume.placeless(offset) && volume.place_spare(offset) && !volume.placeless(offset));
    CHECK(volume.pages().claim(offset / 4096, 1, PageState::unset) == 1 && volume.hold(offset));
    const std::vector<uint8_t> page(4096, 1);
    volume.checksums().note(offset, 4096, page.data());
    CHECK(volume.settle(offset / 4096, 1, 0, PageState::written));
    std::vector<PlacePool::Used> used;
    volume.collect_spares(used);
  }
  CHECK(volume.count_pages(PageState::written) == 64 && volume.mapped() == 64);
  const uint64_t after = resident();
  std::printf("1 TiB: %.1f MiB resident with 64 slabs of 1 MiB in use, opened and counted in %.1f ms\n",
              static_cast<double>(after - before) / (1 << 20),
              std::chrono::duration<double, std::milli>(time).count());
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  CHECK(after - before < 16 << 20);
#endif
}

STRESS(engine_thin) {
  static constexpr Behaviour kLate{.delay_ns = 20'000, .jitter_ns = 50'000};
  timed("large", large);
  side_by_side({
      {"slabs come and go", by_and_by},
      {"no spare place", none_left},
      {"no spare place, and nobody cares", nobody_cares},
      {"stood still", stood_still},
      {"a WRITE in vain, among discards", in_vain},
  });
  timed("enough places", [] { under_load(1, 8, 3, {}); });
  timed("enough places, a late device", [] { under_load(1, 8, 1, kLate); });
  timed("two replicas", [] { under_load(2, 8, 2, kLate); });
  timed("fewer places than slabs", [] { under_load(1, 5, 2, {}); });
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_thin_stress
