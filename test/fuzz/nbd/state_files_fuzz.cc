// The files of a state folder and the header of a backup, with any bytes changed: one that is taken says
// nothing that the engine would trip over, its pages are of the volume, its slabs are on servers that may be,
// and what a lane or control does with it next breaks none of the engine's invariants.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "../fuzz_check.h"
#include "backup/backup_header.h"
#include "backup/backup_map.h"
#include "pages/page_checksums.h"
#include "pages/page_lengths.h"
#include "pages/page_map.h"
#include "volume/slab_map.h"

using namespace rdmakit::volume;

namespace {

constexpr uint64_t kPages = 40;  // not all of a word
constexpr uint32_t kSlabs = 5;
constexpr BackupIdentity kAbout{1, 2, 3};
constexpr BackupStamp kStamp{4, 5};

// One file for all inputs, on tmpfs.
const std::string& path() {
  static const std::string name = [] {
    std::string made = "/dev/shm/rdmakit_state_fuzz." + std::to_string(getpid());
    atexit([] { unlink(path().c_str()); });
    return made;
  }();
  return name;
}

std::vector<uint8_t> contents() {
  const int fd = open(path().c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status;
  CHECK(fd >= 0 && fstat(fd, &status) == 0);
  std::vector<uint8_t> bytes(static_cast<size_t>(status.st_size));
  CHECK(read(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  close(fd);
  return bytes;
}

void put(const std::vector<uint8_t>& bytes) {
  const int fd = open(path().c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  CHECK(fd >= 0 && write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  close(fd);
}

// Mostly where the entries are: the files are larger.
void damage(std::vector<uint8_t>& bytes, fuzz::Input& input) {
  if (const uint8_t length = input.byte(); length > 250) bytes.resize(bytes.size() + length - 253);
  while (!input.empty() && !bytes.empty()) {
    const uint16_t where = input.two();
    const size_t at = where % 8 == 0 ? where : where % 8 == 1 ? where / 8 % 160 : kPage + where / 8 % 700;
    const auto run = input.take(input.byte() % 8 + 1);
    for (size_t i = 0; i < run.size(); i++) bytes[(at + i) % bytes.size()] = run[i];
  }
}

// The file that `make` leaves, damaged.
template <typename Make>
void prepare(fuzz::Input& input, Make make) {
  unlink(path().c_str());
  make();
  std::vector<uint8_t> bytes = contents();
  damage(bytes, input);
  put(bytes);
}

// Returns whether an object could be opened.
bool opened(int error) {
  CHECK(error == 0 || error == EINVAL);
  return error == 0;
}

void page_map(fuzz::Input& input) {
  prepare(input, [] {
    PageMap map;
    CHECK(map.open(kPages, path(), false, [](uint64_t) { return PageState::written; }) == 0);
    CHECK(map.claim(3, 9, PageState::unset) == 9);
    map.settle(3, 5, PageState::written);
  });
  PageMap map;
  std::vector<uint64_t> kept;
  const auto left_claimed = [&kept](uint64_t page) {
    CHECK(page < kPages);
    if (page % 3 == 0) kept.push_back(page);
    return page % 3 == 0 ? PageState::claimed : page % 2 == 0 ? PageState::written : PageState::unset;
  };
  if (!opened(map.open(kPages, path(), false, left_claimed))) return;
  CHECK(map.count(PageState::claimed) == kept.size());
  for (const uint64_t page : kept) map.begin_resync(page);
  map.end_resync();
  CHECK(map.count(PageState::claimed) == 0);
  CHECK(map.in_state(1, PageState::unset) >> 2 * (kPages - 32) ==
        0x5555'5555'5555'5555u >> 2 * (kPages - 32));
  for (uint64_t page = 0; page < kPages; page++) {
    const PageState before = map.get(page);
    CHECK(map.claim(page, 1, before) == 1);
    map.settle(page, 1, before);
  }
  map.lose(0, kPages);
  CHECK(map.clear_until_claimed(0, kPages) == kPages && map.all_unset(0, kPages));
}

void slab_map(fuzz::Input& input) {
  prepare(input, [] {
    SlabMap map;
    CHECK(map.open(kSlabs, path()) == 0);
    for (uint32_t slab = 0; slab < 3; slab++) {
      SlabPlace place;
      place.generation = 7;
      place.count = 2;
      place.replicas[0] = {0x1000, 1, static_cast<uint16_t>(slab), true, false};
      place.replicas[1] = {0x2000, 2, static_cast<uint16_t>(slab + 1), true, false};
      CHECK(map[slab].begin_mapping());
      map[slab].publish(place);
      map[slab].end_mapping(true);
    }
  });
  SlabMap map;
  if (!opened(map.open(kSlabs, path()))) return;
  map.settle(kSlabs, [](uint32_t slab) { CHECK(slab < kSlabs); });
  for (uint32_t slab = 0; slab < kSlabs; slab++) {
    SlabPlace place = map[slab].read();
    CHECK(place.count <= kMaxReplicas && map[slab].generation() == place.generation);
    CHECK(map[slab].phase() == SlabPhase::mapped || map[slab].phase() == SlabPhase::vacant);
    CHECK(!place.mapped() || map[slab].phase() == SlabPhase::mapped);
    for (uint32_t i = 0; i < place.count; i++) CHECK(place.replicas[i].server < kMaxServers);
    // Like control, which does so with each record sooner or later.
    place.generation++;
    map[slab].publish(place);
  }
}

void page_table(fuzz::Input& input, bool lengths) {
  static uint8_t page[kPage];
  prepare(input, [lengths] {
    PageChecksums sums;
    PageLengths packed;
    CHECK((lengths ? packed.open(kPages, path(), false, false) : sums.open(kPages, path(), false, false)) ==
          0);
    if (lengths) packed.set(2, 7, 100);
    if (!lengths) sums.note(3 * kPage, kPage, page);
  });
  PageChecksums sums;
  PageLengths packed;
  if (!opened(lengths ? packed.open(kPages, path(), false, false) : sums.open(kPages, path(), false, false)))
    return;
  for (uint64_t each = 0; each < kPages; each++) {
    CHECK(packed.get(each) <= kMaxPacked && packed.run(each, kPages - each) >= 1);
    sums.right(each, page);
  }
}

void backup_map(fuzz::Input& input) {
  prepare(input, [] {
    BackupMap map;
    CHECK(map.open(kPages, path(), kAbout, {}, false, false) == 0);
    for (uint64_t page = 1; page < 6; page++) map.queue(page);
    map.finish(1, true);
    map.finish(2, true);
    CHECK(map.stamp(kStamp.file, [](const BackupStamp&) { return 0; }) == 0);
  });
  BackupMap map;
  if (!opened(map.open(kPages, path(), kAbout, {kStamp.file, 1}, false, false))) return;
  for (uint64_t page = 0; page < kPages; page++) {
    CHECK(map.get(page) == BackupState::stale || map.get(page) == BackupState::held);
    CHECK(!map.outdated() || map.get(page) == BackupState::stale);
    map.queue(page);
    map.finish(page, true);
    CHECK(map.get(page) == BackupState::held);
  }
}

// A header that counts is byte for byte one that would be written.
void backup_header(fuzz::Input& input) {
  std::vector<uint8_t> page(kPage);
  write_header(page.data(), kPages, kStamp);
  const size_t size = page.size();
  damage(page, input);
  page.resize(size);
  may_be_header(page.data());
  const BackupStamp stamp = read_header(page.data(), kPages);
  if (stamp.file == 0) return;
  std::vector<uint8_t> again(kPage);
  write_header(again.data(), kPages, stamp);
  CHECK(std::memcmp(page.data(), again.data(), 36) == 0);
  CHECK(next_stamp(stamp, 0).file == stamp.file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  switch (input.byte() % 6) {
    case 0:
      page_map(input);
      break;
    case 1:
      slab_map(input);
      break;
    case 2:
    case 3:
      page_table(input, data[0] % 6 == 3);
      break;
    case 4:
      backup_map(input);
      break;
    default:
      backup_header(input);
  }
  return 0;
}
