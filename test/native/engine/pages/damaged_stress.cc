// Files of a state folder that a damage has made impossible: refused, or without a trace where the engine
// reads. What else may be in them is the fuzz target state_files. And those that a process was just making
// when it died.
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>

#include "../fixture/fixture.h"
#include "backup/backup_map.h"
#include "pages/page_checksums.h"
#include "pages/page_map.h"
#include "volume/slab_map.h"

namespace {

// Where the process dies: a file has got its size, and nothing is in it yet.
bool dies_at_the_size = false;

int sized(long outcome, off_t size) {
  if (dies_at_the_size && size > 0) _exit(0);
  return static_cast<int>(outcome);
}

}  // namespace

// In front of the C library's.
extern "C" int ftruncate(int file, off_t size) noexcept {
  return sized(syscall(SYS_ftruncate, file, size), size);
}
extern "C" int posix_fallocate(int file, off_t from, off_t size) {
  return sized(syscall(SYS_fallocate, file, 0, from, size) == 0 ? 0 : errno, size);
}

namespace engine_damaged_stress {

using namespace fixture;

void overwrite(const std::string& path, uint64_t offset, uint64_t value) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  CHECK(pwrite(fd, &value, sizeof value, static_cast<off_t>(offset)) == sizeof value);
  close(fd);
}

// Claimed and written pages behind the last one do not count.
void pages_beyond_the_end() {
  const std::string path = fresh_path("/dev/shm/nbd_damaged");
  constexpr uint64_t kPages = 40;
  const auto none = [](uint64_t) {
    CHECK(false);
    return PageState::lost;
  };
  {
    PageMap map;
    CHECK(map.open(kPages, path, false, none) == 0);
  }
  overwrite(path, kPage + 8, 0xaaaa'5555'5555'0000);
  PageMap map;
  CHECK(map.open(kPages, path, false, none) == 0);
  CHECK(map.in_state(1, PageState::written) == 0 && map.in_state(1, PageState::claimed) == 0);
  unlink(path.c_str());
}

// Records that control could never have published, and that it could not publish again.
void impossible_records() {
  constexpr uint64_t kLive = 1 << 16;
  constexpr uint64_t kLeaving = 1 << 17;
  const auto outcome = [](uint64_t first, uint64_t second) {
    const std::string path = fresh_path("/dev/shm/nbd_damaged");
    SlabPlace place;
    place.count = 2;
    place.replicas[0] = {0x1000, 0x11, 1, true, false};
    place.replicas[1] = {0x2000, 0x22, 2, true, false};
    {
      SlabMap map;
      CHECK(map.open(1, path) == 0 && map[0].begin_mapping());
      map[0].publish(place);
      map[0].end_mapping(true);
    }
    // Where the key of the second replica is: in the copy of version 1.
    std::vector<uint8_t> record(sizeof(SlabRecord));
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    CHECK(pread(fd, record.data(), record.size(), kPage) == static_cast<ssize_t>(record.size()));
    close(fd);
    const uint64_t there = uint64_t{0x22} << 32 | kLive | 2;
    size_t at = 0;
    while (at < record.size() && std::memcmp(record.data() + at, &there, sizeof there) != 0) at += 8;
    CHECK(at >= 8 && at < record.size());
    overwrite(path, kPage + at - 8, uint64_t{0x11} << 32 | first);
    overwrite(path, kPage + at, uint64_t{0x22} << 32 | second);
    SlabMap map;
    const int error = map.open(1, path);
    unlink(path.c_str());
    return error;
  };
  CHECK(outcome(kLive | 1, kLive | 2) == 0 && outcome(kLive | 1, kLeaving | 2) == 0);
  CHECK(outcome(kLive | 1, kLive | 1) == EINVAL);
  CHECK(outcome(kLive | 1, kLive | kLeaving | 2) == EINVAL);
  CHECK(outcome(kLive | 1, kLive | kMaxServers) == EINVAL);
}

// A process that dies while it makes a file leaves none, or one that the next process takes for a new one.
template <typename Open>
void made_by_halves(Open open) {
  const std::string path = fresh_path("/dev/shm/nbd_halves");
  for (int death = 0; death < 2; death++) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      dies_at_the_size = true;
      open(path);
      _exit(1);  // it did not
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  CHECK(open(path) == 0);
  CHECK(open(path) == 0);
  CHECK(access((path + ".new").c_str(), F_OK) != 0);
  unlink(path.c_str());
}

void all_made_by_halves() {
  constexpr uint64_t kPages = 40;
  made_by_halves([](const std::string& path) {
    PageMap map;
    const int error = map.open(kPages, path, false, [](uint64_t) { return PageState::written; });
    CHECK(error != 0 || map.all_unset(0, kPages));
    return error;
  });
  for (const bool sparse : {false, true}) {
    made_by_halves([sparse](const std::string& path) {
      PageChecksums sums;
      return sums.open(kPages, path, sparse, false);
    });
  }
  made_by_halves([](const std::string& path) {
    BackupMap map;
    return map.open(kPages, path, {1, 2, 3}, {}, false, false);
  });
  made_by_halves([](const std::string& path) {
    SlabMap map;
    return map.open(5, path);
  });
}

STRESS(engine_damaged) {
  pages_beyond_the_end();
  impossible_records();
  all_made_by_halves();
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_damaged_stress
