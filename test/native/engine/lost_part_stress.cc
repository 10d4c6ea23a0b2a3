// A WRITE of two parts: the first is done, the second hangs, and meanwhile the server of the first fails. The
// answer says whether the volume has all of it.
#include <unistd.h>

#include "fixture/one_slab.h"

namespace engine_lost_part_stress {

using namespace fixture;

// Its first page is the last one of slab 0, on server 0; its second one is on server 1, or where that slab
// is.
class TwoParts : public OneSlab {
 public:
  static constexpr uint64_t kFirst = 255;

  explicit TwoParts(const Shape& shape = one_slab(1)) : OneSlab(shape) {}
  void begin_both() {
    hang(1);
    begin(0x22, 2, kFirst, 8192);
    left(1);
  }
  void lose_first() {
    CHECK(slabs.fail(0));
    CHECK(drop(0) == 0 && dropped.live_left == 0);
  }
  int end_second() {
    CHECK(!answered);
    set(1, Server::Mode::healthy);
    return end();
  }
  void both_are_there() {
    reads(0x22, kFirst);
    reads(0x22, kFirst + 1);
  }
};

// Nobody waits for a server, and control has not heard of the failure.
void server_failed() {
  TwoParts with;
  with.begin_both();
  CHECK(with.slabs.fail(0));
  CHECK(with.end_second() == EIO);
}

void dropped() {
  TwoParts with;
  with.begin_both();
  with.lose_first();
  CHECK(with.end_second() == EIO);
  with.reads(0x22, TwoParts::kFirst + 1);
}

void replaced() {
  TwoParts with;
  with.begin_both();
  with.lose_first();
  const Replica empty = with.volume.replica(0, 2);
  CHECK(with.slabs.replace_slab(0, 2, empty.remote_key, empty.address, true) == 0);
  CHECK(with.end_second() == EIO);
  CHECK(with.write(0x33, TwoParts::kFirst, 4096) == 0);
  with.reads(0x33, TwoParts::kFirst);
}

// A server that is waited for has the part.
void away() {
  TwoParts with;
  with.slabs.set_waits();
  with.begin_both();
  CHECK(with.slabs.fail(0));
  CHECK(with.end_second() == 0);
  CHECK(with.come_back(0, 5) == 0);
  with.both_are_there();
}

// What was trimmed meanwhile, or was zeros, needs no copy; nor does a failure elsewhere matter.
void needs_no_copy() {
  TwoParts with;
  with.begin_both();
  with.lose_first();
  CHECK(with.client.trim(TwoParts::kFirst * 4096, 4096) == 0);
  CHECK(with.end_second() == 0);
  with.reads(0, TwoParts::kFirst);

  TwoParts other;
  other.begin_both();
  CHECK(other.slabs.fail(2));
  CHECK(other.end_second() == 0);
  other.both_are_there();
}

// The first part of a WRITE of zeros is its edge.
void edge_of_zeroes() {
  TwoParts with;
  CHECK(with.write(0x11, TwoParts::kFirst, 8192) == 0);
  with.hang(1);
  const uint64_t before = with.posted();
  std::atomic<int> outcome{-1};
  std::thread writer([&] { outcome = with.client.write_zeroes(TwoParts::kFirst * 4096 + 512, 4096); });
  await([&] { return with.posted() == before + 2; });
  with.left(1);
  with.lose_first();
  CHECK(outcome == -1);
  with.set(1, Server::Mode::healthy);
  writer.join();
  CHECK(outcome == EIO);
}

class BackedUp {
 public:
  BackedUp() : file_(fresh_path("/var/tmp/nbd_backup")) {}
  ~BackedUp() { unlink(file_.c_str()); }
  Shape shape() const {
    Shape shape = one_slab(1);
    shape.options.backup.path = file_;
    return shape;
  }

 private:
  const std::string file_;
};

void in_backup(bool has_it) {
  const BackedUp file;
  TwoParts with(file.shape());
  with.begin_both();
  auto* const backup = const_cast<Backup*>(with.volume.engine->backup());
  await([&] { return backup->map().get(TwoParts::kFirst) == BackupState::held; });
  if (!has_it) backup->map().mark(TwoParts::kFirst);
  with.lose_first();
  CHECK(with.end_second() == (has_it ? 0 : EIO));
  if (has_it) with.both_are_there();
}

// The backup had the only copy, and fails: no server does.
void backup_failed() {
  const BackedUp file;
  TwoParts with(file.shape());
  with.lose_first();
  with.hang(1);
  with.begin(0x22, 1, TwoParts::kFirst, 8192);
  await([&] { return with.slabs.pages().get(TwoParts::kFirst) == PageState::written; });
  const_cast<Backup*>(with.volume.engine->backup())->fail("a test");
  CHECK(with.end_second() == EIO);
}

STRESS(engine_lost_part) {
  side_by_side({
      {"its server failed", server_failed},
      {"dropped", dropped},
      {"replaced", replaced},
      {"away", away},
      {"needs no copy", needs_no_copy},
      {"an edge of zeros", edge_of_zeroes},
      {"the backup has it", [] { in_backup(true); }},
      {"the backup lacks it", [] { in_backup(false); }},
      {"the backup failed", backup_failed},
  });
  return 0;
}

}  // namespace engine_lost_part_stress
