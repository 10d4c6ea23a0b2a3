#include "system/mapped_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "system/private_file.h"

namespace rdmakit::volume {

MappedFile::~MappedFile() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

int MappedFile::open(const std::string& file, size_t bytes, bool sparse, bool& fresh) {
  if (const int error = open_private(file, O_RDWR | O_CREAT, file_); error != 0) return error;
  std::string why;
  if (const int error = check_private(file_.get(), file, why); error != 0) return error;
  if (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK ? EBUSY : errno;
  struct stat status;
  if (fstat(file_.get(), &status) != 0) return errno;
  fresh = status.st_size == 0;
  if (fresh && sparse) {
    if (ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0) return errno;
  } else if (fresh) {
    // Real blocks now: a write to a hole on a full tmpfs would be SIGBUS on the page path.
    const int error = posix_fallocate(file_.get(), 0, static_cast<off_t>(bytes));
    if (error != 0) return error;
  } else if (static_cast<size_t>(status.st_size) != bytes) {
    return EINVAL;
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (memory == MAP_FAILED) return errno;
  memory_ = memory;
  bytes_ = bytes;
  return 0;
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
