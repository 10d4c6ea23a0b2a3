// Programs by others against our export: nbdinfo, nbdcopy, qemu-img, qemu-io and fio, each where it is
// installed. The slabs are on memory devices.
//
//   nbd_stress nbd_interop                              all of it
//   nbd_stress nbd_interop --serve PATH [LANES] [MODE]  an export to play with, until standard input ends
#include <sys/stat.h>
#include <sys/wait.h>

#include "../engine/fixture/nbd_fixture.h"

namespace nbd_interop_stress {

using namespace fixture;

bool installed(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}

// In CI a missing program is a failure, elsewhere a skip that says why.
bool require(const std::string& program) {
  if (installed(program)) return true;
  std::printf("SKIPPED: %s is not installed\n", program.c_str());
  CHECK(std::getenv("CI") == nullptr);
  return false;
}

void must(const std::string& command) {
  static const std::string output = fresh_path("/tmp/nbd_interop.out");
  const int status = std::system((command + " >" + output + " 2>&1").c_str());
  if (status != 0) std::system(("cat " + output + " >&2").c_str());
  unlink(output.c_str());
  if (status != 0) std::fprintf(stderr, "command: %s\n", command.c_str());
  CHECK(status == 0);
}
void must_fail(const std::string& command) {
  CHECK(std::system((command + " >/dev/null 2>&1").c_str()) != 0);
}

NbdShape shape_of(uint32_t lanes, WaitMode mode) {
  NbdShape shape;
  shape.size = 128 << 20;
  shape.slab_size = 32 << 20;
  shape.lanes = lanes;
  shape.options.wait_mode = mode;
  shape.options.exports = {{.name = "volume", .description = "remote memory"}};
  return shape;
}

int serve(const std::string& path, uint32_t lanes, const std::string& mode) {
  NbdVolume volume(shape_of(lanes, mode == "poll"    ? WaitMode::poll
                                   : mode == "event" ? WaitMode::event
                                                     : WaitMode::adaptive));
  std::string why;
  if (volume.engine->bind_unix(path, why) != 0) {
    std::fprintf(stderr, "%s\n", why.c_str());
    return 1;
  }
  volume.engine->accept_clients();
  while (std::getchar() != EOF) {
  }
  for (uint32_t i = 0; i < lanes; i++) {
    const LaneStatistics& lane = volume.engine->lane(i).statistics();
    std::printf(
        "lane %u: %llu reads, %llu writes, %llu spins, %llu sleeps, spin limit %llu ns\n", i,
        static_cast<unsigned long long>(lane.reads.get()), static_cast<unsigned long long>(lane.writes.get()),
        static_cast<unsigned long long>(lane.spins.get()), static_cast<unsigned long long>(lane.sleeps.get()),
        static_cast<unsigned long long>(lane.spin_limit.get()));
  }
  return 0;
}

STRESS(nbd_interop) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (count >= 3 && std::string(arguments[1]) == "--serve")
    return serve(arguments[2], count > 3 ? static_cast<uint32_t>(std::atoi(arguments[3])) : 4,
                 count > 4 ? arguments[4] : "adaptive");

  const std::string base = "/tmp/nbd_interop." + std::to_string(getpid());
  const std::string uri = "'nbd+unix:///volume?socket=" + base + "'";
  NbdVolume volume(shape_of(4, WaitMode::adaptive));
  std::string why;
  CHECK(volume.engine->bind_unix(base, why) == 0);
  volume.engine->accept_clients();
  {
    std::vector<uint8_t> data(8 << 20);
    for (size_t at = 0; at < data.size(); at += 32 << 10) fill_noise(&data[at], 16 << 10, at);
    FILE* file = std::fopen((base + ".data").c_str(), "w");
    CHECK(file != nullptr && std::fwrite(data.data(), data.size(), 1, file) == 1);
    std::fclose(file);
    CHECK(truncate((base + ".data").c_str(), 128 << 20) == 0);
  }
  if (require("nbdinfo")) {
    must("nbdinfo " + uri + " | grep -q 'export-size: 134217728'");
    must("nbdinfo " + uri + " | grep -q 'can_multi_conn: true'");
    must("nbdinfo --list 'nbd+unix:///?socket=" + base + "' | grep -q 'remote memory'");
    must_fail("nbdinfo 'nbd+unix:///other?socket=" + base + "'");
    std::printf("nbdinfo\n");
  }
  if (require("nbdcopy")) {
    must("nbdcopy " + base + ".data " + uri);
    must("nbdcopy " + uri + " " + base + ".back");
    must("cmp " + base + ".data " + base + ".back");
    std::printf("nbdcopy\n");
  }
  if (require("qemu-img")) {
    must("qemu-img compare -f raw -F raw " + base + ".data " + uri);
    must("qemu-img convert -n -f raw -O raw " + base + ".data " + uri);
    must("qemu-img compare -f raw -F raw " + base + ".data " + uri);
    std::printf("qemu-img\n");
  }
  if (require("qemu-io")) {
    must(
        "qemu-io -f raw -c 'write -P 0xab 4k 64k' -c 'read -P 0xab 4k 64k' -c 'write -z 8k 8k' -c 'read -P 0 "
        "8k 8k' "
        "-c 'discard 1M 1M' -c 'read -P 0 1M 1M' -c 'write -P 0xcd 1234567 7654321' "
        "-c 'read -P 0xcd 1234567 7654321' -c flush " +
        uri);
    std::printf("qemu-io\n");
  }
  if (require("qemu-nbd")) {
    must("qemu-nbd --list --socket=" + base + " | grep -q volume");
    std::printf("qemu-nbd --list\n");
  }
  if (require("fio")) {
    must("fio --name=verify --ioengine=nbd --uri=" + uri +
         " --rw=randwrite --bs=4k-64k --iodepth=16 --size=32M --verify=crc32c --do_verify=1 --verify_fatal=1 "
         "--verify_state_save=0 --randseed=7");
    std::printf("fio with verify=crc32c\n");
  }
  for (const char* end : {".data", ".back"}) unlink((base + end).c_str());
  CHECK(volume.count(Event::Type::server_failed) == 0);
  CHECK(volume.engine->close(kCloseTime) == 0);
  std::printf("ok\n");
  return 0;
}

}  // namespace nbd_interop_stress
