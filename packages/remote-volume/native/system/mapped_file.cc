#include "system/mapped_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "system/private_file.h"

namespace rdmakit::volume {

MappedFile::~MappedFile() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

namespace {

// With `flags` of open(2), and locked. 0 or an errno value.
int open_locked(const std::string& file, int flags, UniqueFd& opened, struct stat& status) {
  if (const int error = open_private(file, flags, opened); error != 0) return error;
  std::string why;
  if (const int error = check_private(opened.get(), file, why); error != 0) return error;
  if (flock(opened.get(), LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK ? EBUSY : errno;
  return fstat(opened.get(), &status) == 0 ? 0 : errno;
}

int allocate(int file, size_t bytes, bool sparse) {
  if (ftruncate(file, 0) != 0) return errno;  // of what a process has left that died here
  if (sparse) return ftruncate(file, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  // Real blocks now: a write to a hole on a full tmpfs would be SIGBUS on the page path.
  return posix_fallocate(file, 0, static_cast<off_t>(bytes));
}

}  // namespace

int MappedFile::open(const std::string& file, std::span<const uint64_t> header, size_t bytes, bool sparse,
                     bool& fresh) {
  struct stat status = {};
  const int there = open_locked(file, O_RDWR, file_, status);
  fresh = there == ENOENT || (there == 0 && status.st_size == 0);
  if (!fresh && there != 0) return there;
  if (fresh) {
    if (const int error = make(file, header, bytes, sparse); error != 0) return error;
  } else if (static_cast<size_t>(status.st_size) != bytes) {
    return EINVAL;
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (memory == MAP_FAILED) return errno;
  memory_ = memory;
  bytes_ = bytes;
  return 0;
}

// Whoever has the lock of the file that is made is the only one who makes it. It is `file` by now if another
// process has made it since the caller looked.
int MappedFile::make(const std::string& file, std::span<const uint64_t> header, size_t bytes, bool sparse) {
  const std::string name = file + ".new";
  UniqueFd made;
  struct stat opened;
  struct stat named;
  if (const int error = open_locked(name, O_RDWR | O_CREAT, made, opened); error != 0) return error;
  if (stat(name.c_str(), &named) != 0 || named.st_dev != opened.st_dev || named.st_ino != opened.st_ino)
    return EBUSY;
  if (stat(file.c_str(), &named) == 0 && named.st_size != 0) {
    unlink(name.c_str());
    return EBUSY;
  }
  int error = allocate(made.get(), bytes, sparse);
  if (error == 0) {
    const ssize_t written = pwrite(made.get(), header.data(), header.size_bytes(), 0);
    if (written != static_cast<ssize_t>(header.size_bytes())) error = written < 0 ? errno : EIO;
  }
  if (error == 0 && rename(name.c_str(), file.c_str()) != 0) error = errno;
  if (error != 0) unlink(name.c_str());
  file_ = std::move(made);
  return error;
}

// Closing alone would not do: the mapping holds the open file too, and with it the lock.
void MappedFile::unlock() {
  if (!file_) return;
  flock(file_.get(), LOCK_UN);
  file_.reset();
}

std::string mapping_failure(const char* what, const std::string& file, int error) {
  const std::string named = file.empty() ? what : std::string(what) + " " + file;
  const auto because = [&](const char* text) { return named + text; };
  if (file.empty()) return named + ": " + strerror(error);
  if (error == EBUSY) return because(" is in use by another process");
  if (error == EINVAL) return because(" is of another volume, or damaged");
  if (error == ELOOP)
    return because(" is a symbolic link; nothing that it leads to is used: remove the link");
  if (error == EPERM) return because(" is open to others, or another user's: it must be yours with mode 600");
  return named + ": " + strerror(error);
}

}  // namespace rdmakit::volume
