// Files that say what a volume's pages are: one that others have access to, or that a link leads to, is not
// used, and stays as it was.
#include <fcntl.h>
#include <sys/stat.h>

#include "../fixture/fixture.h"
#include "backup/backup_file.h"
#include "kernel/lock_file.h"
#include "system/mapped_file.h"

namespace engine_private_stress {

using namespace fixture;

constexpr uint64_t kSize = 4 << 20;

// A folder of its own, gone with all that is in it.
class Folder {
 public:
  Folder() : path_(fresh_path("/var/tmp/nbd_private")) { CHECK(mkdir(path_.c_str(), 0700) == 0); }
  ~Folder() {
    for (const char* name : {"file", "link", "aim"}) unlink((*this / name).c_str());
    rmdir(path_.c_str());
  }
  std::string operator/(const char* name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

void make(const std::string& path, mode_t mode, uint64_t size) {
  const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  CHECK(fd >= 0 && fchmod(fd, mode) == 0 && ftruncate(fd, static_cast<off_t>(size)) == 0);
  close(fd);
}

struct Outcome {
  int error;
  std::string why;
};

Outcome backup(const std::string& path) {
  BackupFile file;
  std::vector<std::string> warnings;
  Outcome outcome;
  outcome.error = file.open(path, kSize, true, warnings, outcome.why);
  return outcome;
}

Outcome map(const std::string& path) {
  MappedFile file;
  bool fresh;
  const int error = file.open(path, {}, kSize, true, fresh);
  return {error, error == 0 ? "" : mapping_failure("page map", path, error)};
}

Outcome lock(const std::string& path) {
  UniqueFd file;
  int fd = -1;
  const int error = nbd::lock_file(path, fd);
  file.reset(fd);
  return {error, ""};
}

using Open = Outcome (*)(const std::string& path);

void open_to_others(Open open) {
  const Folder folder;
  const std::string path = folder / "file";
  for (const mode_t mode : {0666, 0644, 0640, 0620, 0602}) {
    make(path, mode, 0);
    const Outcome outcome = open(path);
    CHECK(outcome.error == EPERM);
    struct stat status;
    CHECK(stat(path.c_str(), &status) == 0 && status.st_size == 0 && (status.st_mode & 0777) == mode);
    CHECK(chmod(path.c_str(), 0600) == 0 && open(path).error == 0);
    unlink(path.c_str());
  }
}

// Of another user: only root can make one.
void of_another(Open open) {
  if (geteuid() != 0) return;
  const Folder folder;
  const std::string path = folder / "file";
  make(path, 0600, 0);
  CHECK(chown(path.c_str(), 4242, 4242) == 0 && open(path).error == EPERM);
}

void link_to(Open open, int expected) {
  const Folder folder;
  const std::string link = folder / "link";
  const std::string aim = folder / "aim";
  CHECK(symlink(aim.c_str(), link.c_str()) == 0);
  CHECK(open(link).error == expected && access(aim.c_str(), F_OK) != 0);
  make(aim, 0600, 0);
  CHECK(open(link).error == expected);
  struct stat status;
  CHECK(stat(aim.c_str(), &status) == 0 && status.st_size == 0);
}

// What is said names the option and what to do.
void said() {
  const Folder folder;
  const std::string path = folder / "file";
  make(path, 0666, 0);
  CHECK(backup(path).why == "--backup " + path + " is open to others (mode 666); run chmod 600 " + path);
  CHECK(map(path).why.ends_with("it must be yours with mode 600"));
  CHECK(symlink(path.c_str(), (folder / "link").c_str()) == 0);
  CHECK(backup(folder / "link").why.ends_with("is a symbolic link; name the file that it leads to"));
  CHECK(map(folder / "link").why.ends_with("remove the link"));
  // A user who can write to its folder can replace it.
  CHECK(chmod(path.c_str(), 0600) == 0 && backup(path).error == 0);
  CHECK(chmod(folder.path().c_str(), 0777) == 0 && backup(path).error == EPERM);
  CHECK(backup(path).why.ends_with("run chmod go-w " + folder.path()));
  CHECK(chmod(folder.path().c_str(), 01777) == 0 && backup(path).error == 0);
}

STRESS(engine_private) {
  for (const Open open : {backup, map, lock}) {
    open_to_others(open);
    of_another(open);
    link_to(open, open == backup ? EPERM : ELOOP);
  }
  said();
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_private_stress
