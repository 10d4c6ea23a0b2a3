// The file of a local backup: which it takes, and whether what is in it counts.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "backed_up.h"
#include "backup/backup_file.h"
#include "backup/backup_map.h"
#include "pages/page_map.h"

using namespace fixture;

namespace {

// A volume without checksums, whose backup is `file` and whose maps outlive it.
struct Kept {
  Kept(const std::string& what, const Path& file)
      : map("map." + what), pages("pages." + what), shape(backed_up(file, Acknowledge::backup, kPlain)) {
    shape.options.backup.map_file = map.name();
    shape.options.volume.page_map_file = pages.name();
    shape.options.volume.checksums = false;
    shape.refill_lane = false;  // nothing is caught up
  }
  // A process of its own writes `byte` to the first page. `stamps`: as versions since there are headers do.
  void write(uint8_t byte, bool stamps = true) {
    TestVolume volume(shape);
    if (stamps) stamped(volume);
    Client client(volume.attach(0));
    const std::vector<uint8_t> page(4096, byte);
    CHECK(client.write(0, page.data(), 4096) == 0);
    CHECK(volume.engine->close(kCloseTime) == 0);
  }
  // Another one has nothing but the file. What it reads in the first page; -1: EIO.
  int read(bool stamps = true) {
    TestVolume volume(shape);
    for (const auto& server : volume.servers) server->set_mode(Server::Mode::dead);
    warned = !volume.engine->backup_warnings().empty();
    if (stamps) stamped(volume);
    Client client(volume.attach(0));
    std::vector<uint8_t> page(4096);
    const int error = client.read(0, page.data(), 4096);
    CHECK(volume.engine->close(kCloseTime) == 0);
    return error == 0 ? page[4095] : -1;
  }
  static void stamped(TestVolume& volume) {
    volume.engine->stamp_backup();
    const Backup& backup = *volume.engine->backup();
    await([&] { return backup.stamps() == 1; });
  }

  const Path map;
  const Path pages;
  Shape shape;
  bool warned = false;
};

std::vector<uint8_t> contents(const Path& file) {
  std::vector<uint8_t> bytes;
  const int descriptor = open(file.name().c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status;
  CHECK(fstat(descriptor, &status) == 0);
  bytes.resize(static_cast<size_t>(status.st_size));
  CHECK(::read(descriptor, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  close(descriptor);
  return bytes;
}

void put(const Path& file, const std::vector<uint8_t>& bytes, size_t from = 0) {
  const int descriptor = open(file.name().c_str(), O_WRONLY | O_CLOEXEC);
  CHECK(pwrite(descriptor, bytes.data() + from, bytes.size() - from, static_cast<off_t>(from)) ==
        static_cast<ssize_t>(bytes.size() - from));
  close(descriptor);
}

// 7. A file that was another volume's meanwhile, an older copy in its place, and a damaged header: nothing
// counts.
void not_as_it_was_left() {
  const Path file("left");
  Kept ours("ours", file);
  ours.write(1);
  const std::vector<uint8_t> older = contents(file);
  CHECK(older.size() == ours.shape.size + 4096);
  CHECK(ours.read() == 1 && !ours.warned);
  ours.write(2);
  const std::vector<uint8_t> newer = contents(file);
  put(file, older);
  CHECK(ours.read() == -1 && ours.warned);
  // It is another one's by now, also when what it should be is put back.
  put(file, newer);
  CHECK(ours.read() == -1 && ours.warned);
  ours.write(3);
  CHECK(ours.read() == 3 && !ours.warned);
  Kept other("other", file);
  other.write(4);
  CHECK(ours.read() == -1 && ours.warned);
  // Of the generation, and of the checksum.
  for (const uint64_t damaged : {24, 32}) {
    ours.write(5);
    std::vector<uint8_t> torn = contents(file);
    torn[ours.shape.size + damaged] ^= 1;
    put(file, torn, ours.shape.size);
    CHECK(ours.read() == -1 && ours.warned);
  }
}

// 8. What a version left that knows no header is believed, and the file is as it was until it is stamped.
void older_version() {
  const Path file("older");
  Kept ours("ours", file);
  const int descriptor = open(file.name().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  CHECK(ftruncate(descriptor, static_cast<off_t>(ours.shape.size)) == 0);
  close(descriptor);
  ours.write(1, false);
  CHECK(contents(file).size() == ours.shape.size);
  CHECK(ours.read(false) == 1 && contents(file).size() == ours.shape.size);
  CHECK(ours.read() == 1 && !ours.warned && contents(file).size() == ours.shape.size + 4096);
  CHECK(ours.read() == 1 && !ours.warned);
}

// 9. Whenever a process is killed while it stamps, the next one believes its map.
void killed_while_it_stamps() {
  const Path name("stamps");
  const uint64_t pages = 64;
  const auto open_map = [&](BackupMap& map, const BackupStamp& of_file) {
    CHECK(map.open(pages, name.name(), {1, 2, 3}, of_file, false, false) == 0);
  };
  BackupStamp of_file;
  for (uint64_t round = 0; round < 4; round++) {
    for (const bool written : {false, true}) {
      BackupMap map;
      open_map(map, of_file);
      if (round > 0 || written) CHECK(!map.outdated() && map.get(7) == BackupState::held);
      map.queue(7);
      map.finish(7, true);
      // It does not come back from the file: what it would do then is left out.
      CHECK(map.stamp(42, [&](const BackupStamp& next) {
        if (written) of_file = next;
        return EIO;
      }) == EIO);
    }
    CHECK(of_file == (BackupStamp{42, round + 1}));
  }
  BackupMap map;
  open_map(map, {42, 2});
  CHECK(map.outdated() && map.get(7) == BackupState::stale);
}

// 10. What a killed process was writing is told from what it had answered and the file lacks.
void killed_while_it_writes() {
  constexpr uint64_t kPages = 128;
  const Path name("lacking");
  const Path claims("claims");
  // Pages 8 to 10 are held, and 16 to 31 are not.
  const auto open_both = [&](BackupMap& map, PageMap& pages, std::vector<uint64_t>& claimed) {
    CHECK(map.open(kPages, name.name(), {1, 2, 3}, {}, false, false) == 0);
    CHECK(pages.open(kPages, claims.name(), false, [&](uint64_t page) {
      claimed.push_back(page);
      return PageState::written;
    }) == 0);
  };
  const auto write = [](BackupMap& map, PageMap& pages, uint64_t page) {
    CHECK(pages.claim(page, 1, pages.get(page)) == 1);
    map.queue(page);
  };
  enum class Also { nothing, brings, brings_no_more, fails };
  for (const Also also : {Also::nothing, Also::brings, Also::brings_no_more, Also::fails}) {
    const bool told = also == Also::nothing || also == Also::brings_no_more;
    {
      BackupMap map;
      PageMap pages;
      std::vector<uint64_t> claimed;
      open_both(map, pages, claimed);
      for (uint64_t page = 8; page < 32; page = page == 10 ? 16 : page + 1) {
        write(map, pages, page);
        map.finish(page, page <= 10);
        pages.settle(page, 1, PageState::written);
      }
      // The catch-up reads some. A WRITE holds one that the file has by now, and one that is under way.
      CHECK(pages.claim(20, 12, PageState::written) == 12);
      write(map, pages, 9);
      map.finish(9, true);
      write(map, pages, 10);
      map.mark(10);
      write(map, pages, 100);
      if (also != Also::nothing) map.begin_bringing();
      // Behind a failure a page may stay queued that was answered.
      if (also == Also::fails) map.fail();
      if (also == Also::fails || also == Also::brings_no_more) map.end_bringing();
    }
    BackupMap map;
    PageMap pages;
    std::vector<uint64_t> claimed;
    open_both(map, pages, claimed);
    CHECK(claimed.size() == 15 && map.get(100) == BackupState::stale);
    CHECK(map.count_missing(pages, 0, 32) == 17 && map.count_missing(pages, 96, 32) == 1);
    CHECK(map.count_lacking(pages, 0, 32, claimed) == (told ? 16u : 17u));
    CHECK(map.count_lacking(pages, 96, 32, claimed) == (told ? 0u : 1u));
  }
}

// 12. Files that it does not take.
void refused() {
  const Path file("bad");
  Shape shape = backed_up(file, Acknowledge::all, kPlain);
  shape.options.volume.size = shape.size;
  shape.options.volume.slab_size = shape.slab_size;
  const auto opens = [&](int expected) {
    int error = 0;
    std::string why;
    CHECK(TestVolume::Engine::open(
              shape.options, [](const Event&) {}, error, why) == nullptr);
    CHECK(error == expected && !why.empty());
  };
  const int other = open(file.name().c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  CHECK(ftruncate(other, 4096) == 0);
  opens(EINVAL);
  // As long as one with a header, of something else.
  CHECK(ftruncate(other, static_cast<off_t>(shape.size + 4096)) == 0);
  CHECK(pwrite(other, "else", 4, static_cast<off_t>(shape.size)) == 4);
  opens(EINVAL);
  close(other);
  shape.options.backup.path = "/dev/null";
  opens(EINVAL);
  shape.options.backup.path = "/no/such/folder";
  opens(ENOENT);
  shape.options.backup.path = file.name();
  shape.options.backup.buffers = 1;
  opens(EINVAL);
  shape.options.backup.path = "";
  shape.options.acknowledge = Acknowledge::backup;
  opens(EINVAL);
}

// A file that it makes, and cannot make as long as the volume, goes again.
void too_long() {
  const Path path("too-long");
  rlimit limit;
  CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit low{4096, limit.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  CHECK(setrlimit(RLIMIT_FSIZE, &low) == 0);
  BackupFile file;
  std::vector<std::string> warnings;
  std::string why;
  CHECK(file.open(path.name(), 1 << 20, false, warnings, why) == EFBIG);
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  signal(SIGXFSZ, handler);
  CHECK(why.starts_with(path.name()) && access(path.name().c_str(), F_OK) != 0);
}

}  // namespace

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  timed("files that it does not take", refused);
  timed("a file that it cannot make", too_long);
  timed("a file that is not as it was left", not_as_it_was_left);
  timed("a file of an older version", older_version);
  timed("killed while it stamps", killed_while_it_stamps);
  timed("killed while it writes", killed_while_it_writes);
  std::printf("ok\n");
  return 0;
}
