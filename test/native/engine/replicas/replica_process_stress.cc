// Volumes with replicas over the real software providers, with servers in processes of their own that are
// killed at random moments under verified load, and replaced.
//
//   engine_stress engine_replica_process [SEED]

#include "process_volume.h"

namespace engine_replica_process_stress {

using namespace fixture;

constexpr uint32_t kWorkers = 4;
const int kOperations = effort(120);

// Round after round: one of the two servers that hold everything is killed at a random moment, a fresh one
// takes its part, filled while the load goes on. No request fails and no byte is wrong.
void kill_and_replace(const std::string& name, Acknowledge acknowledge, int rounds, std::mt19937_64& random) {
  ProcessVolume volume(name, 2, acknowledge);
  const bool lossy = acknowledge == Acknowledge::one;
  uint64_t errors = 0;
  {
    Workers workers(kSlabs * kSlab, volume.attach(), kWorkers);
    std::atomic<bool> over{false};
    std::thread killer([&, seed = random()] {
      std::mt19937_64 chance(seed);
      std::array<uint32_t, 2> alive{0, 1};
      for (int round = 0; round < rounds; round++) {
        const uint64_t target = workers.done + 20 + chance() % (kOperations * kWorkers / 2);
        await([&] { return workers.done >= target; });
        usleep(static_cast<useconds_t>(chance() % 3000));
        uint32_t& victim = alive[chance() % 2];
        volume.kill(victim);
        const uint32_t fresh = volume.add_server();
        volume.repair(victim, fresh);
        victim = fresh;
      }
      over = true;
    });
    while (!over) workers.run(kOperations, lossy, 100'000);
    killer.join();
    workers.run(0, lossy, 300'000);
    errors = workers.errors;
  }
  for (uint32_t i = 0; i < kLanes && !lossy; i++)
    CHECK(volume.engine().lane(i).statistics().errors.get() == 0);
  CHECK(volume.engine().close(kCloseTime) == 0);
  std::printf("%d servers killed and replaced, %llu errors\n", rounds,
              static_cast<unsigned long long>(errors));
}

// One lane reads in order, and so ahead of its client, what another one then writes.
void read_ahead_and_written(const std::string& name) {
  ProcessVolume volume(name, 2, Acknowledge::all);
  const auto attachments = volume.attach();
  Client reader(attachments[0]), writer(attachments[1]);
  constexpr uint32_t kBytes = 512 << 10;
  std::vector<uint8_t> bytes(kBytes), page(kPage);
  fill_noise(bytes.data(), kBytes, 0);
  CHECK(writer.write(0, bytes.data(), kBytes) == 0);
  // Reading ahead begins at one of these places, some of the time behind the last answer.
  for (uint32_t pages = 3; pages < 60; pages++) {
    for (uint32_t i = 0; i < pages; i++) {
      CHECK(reader.read(i * kPage, page.data(), kPage) == 0);
      CHECK(std::memcmp(page.data(), &bytes[size_t{i} * kPage], kPage) == 0);
    }
    fill_noise(bytes.data(), kBytes, pages);
    CHECK(writer.write(0, bytes.data(), kBytes) == 0);
  }
  CHECK(volume.engine().close(kCloseTime) == 0);
}

STRESS(engine_replica_process) {
  if (count == 5 && std::string(arguments[1]) == "--serve")
    return serve(arguments[2], arguments[3], std::atoi(arguments[4]));
  const uint64_t seed = count > 1 ? std::strtoull(arguments[1], nullptr, 0) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  timed("iwarp", [&] { kill_and_replace("iwarp", Acknowledge::all, std::max(2, effort(3)), random); });
  timed("shm", [&] { kill_and_replace("shm", Acknowledge::all, std::max(2, effort(3)), random); });
  timed("iwarp, --ack one",
        [&] { kill_and_replace("iwarp", Acknowledge::one, std::max(2, effort(2)), random); });
  for (const char* const name : {"iwarp", "shm"})
    timed(std::string("read ahead and written, ").append(name).c_str(),
          [=] { read_ahead_and_written(name); });
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_replica_process_stress
