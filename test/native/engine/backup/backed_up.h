// A volume with a local backup, and a file that stands or takes less than it was given. Only for a program of
// its own: it has a pwritev in the place of the library's.
#pragma once

#include <sys/syscall.h>
#include <sys/uio.h>

#include <array>
#include <atomic>

#include "../fixture/fixture.h"

namespace fixture {

inline std::atomic<bool> file_stands{false};
inline std::atomic<int> file_stands_in{0};  // writes that found it so
// The number of bytes that the file takes of the next write of several pages; 0: all.
inline std::atomic<size_t> file_takes{0};

// While one exists, pages written find no room in a small queue, however fast the file is.
class StandingFile {
 public:
  StandingFile() { file_stands = true; }
  ~StandingFile() {
    file_stands = false;
    file_stands.notify_all();
  }
};

// A name for a file that is gone with the object.
class Path {
 public:
  explicit Path(const std::string& what, const std::string& folder = "/var/tmp")
      : name_(folder + "/nbd_backup." + std::to_string(getpid()) + "." + what) {
    unlink(name_.c_str());
  }
  ~Path() { unlink(name_.c_str()); }
  const std::string& name() const { return name_; }

 private:
  const std::string name_;
};

inline constexpr Behaviour kPlain{.delay_ns = 20'000, .jitter_ns = 50'000};

inline Shape backed_up(const Path& file, Acknowledge acknowledge, Behaviour behaviour,
                       uint32_t replicas = 1) {
  Shape shape;
  shape.size = 12 << 20;
  shape.servers = replicas + 1;
  shape.lanes = 2;
  shape.replicas = replicas;
  shape.refill_lane = shape.roomy = true;
  shape.behaviour = behaviour;
  shape.options.operation_timeout_ns = 300'000'000;
  shape.options.acknowledge = acknowledge;
  shape.options.backup.path = file.name();
  shape.options.backup.buffers = 512;
  return shape;
}

// The first `pages` pages are in the file.
inline void caught_up(TestVolume& volume, uint64_t pages) {
  await([&] { return volume.engine->backup()->map().run(0, pages, BackupState::held) == pages; });
}

}  // namespace fixture

// In place of the library's.
extern "C" ssize_t pwritev(int descriptor, const iovec* segments, int count, off_t offset) {
  if (fixture::file_stands) fixture::file_stands_in++;
  fixture::file_stands.wait(true);
  const size_t takes = count > 1 ? fixture::file_takes.exchange(0) : 0;
  if (takes == 0) return syscall(SYS_pwritev, descriptor, segments, count, offset, 0);
  std::array<iovec, 1024> part;
  size_t used = 0;
  for (size_t left = takes; left > 0 && used < static_cast<size_t>(count); used++) {
    part[used] = {segments[used].iov_base, std::min(left, segments[used].iov_len)};
    left -= part[used].iov_len;
  }
  return syscall(SYS_pwritev, descriptor, part.data(), used, offset, 0);
}
