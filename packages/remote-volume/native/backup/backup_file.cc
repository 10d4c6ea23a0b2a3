#include "backup/backup_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "system/error_reason.h"
#include "system/private_file.h"
#include "volume/limits.h"

namespace rdmakit::volume {

namespace {

// A write that stops short says why when it is tried again: a full disk, a limit of the process.
constexpr int kShortWrites = 3;

uint64_t born(int fd) {
  struct statx status {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &status) != 0 || (status.stx_mask & STATX_BTIME) == 0)
    return 0;
  return static_cast<uint64_t>(status.stx_btime.tv_sec) * 1'000'000'000 + status.stx_btime.tv_nsec;
}

}  // namespace

int BackupFile::open(const std::string& path, uint64_t size, bool sparse, std::vector<std::string>& warnings,
                     std::string& why) {
  struct stat status;
  const bool exists = stat(path.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode))
    return with_reason(why, EINVAL, path + " is neither a regular file nor a block device");
  // For a block device O_EXCL means that it is neither mounted nor used for swap. Its path may be a link,
  // like those in /dev/disk; at the path of a file, a link would let another user choose which file is
  // overwritten.
  const bool device = exists && S_ISBLK(status.st_mode);
  const int flags = O_RDWR | O_CLOEXEC | (device ? O_EXCL : O_CREAT | O_NOFOLLOW);
  fd_.reset(::open(path.c_str(), flags | O_DIRECT, 0600));
  if (!fd_ && errno == EINVAL) {
    fd_.reset(::open(path.c_str(), flags, 0600));
    warnings.push_back(
        path +
        ": this file system has no O_DIRECT; the backup goes through the page cache, which needs "
        "memory of its own");
  }
  if (!fd_ && errno == ELOOP)
    return with_reason(why, EPERM,
                       "--backup " + path + " is a symbolic link; name the file that it leads to");
  if (!fd_) return with_reason(why, errno, path + ": " + strerror(errno));
  if (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0)
    return with_reason(why, EBUSY, path + " is in use by another process");
  if (fstat(fd_.get(), &status) != 0) return with_reason(why, errno, path + ": " + strerror(errno));
  if (device ? !S_ISBLK(status.st_mode) : !S_ISREG(status.st_mode))
    return with_reason(why, EINVAL, path + " was replaced while it was opened");
  identity_ = device ? BackupIdentity{status.st_rdev, 0, 0}
                     : BackupIdentity{status.st_dev, status.st_ino, born(fd_.get())};
  empty_ = !device && status.st_size == 0;
  size_ = size;
  device_ = device;
  if (device) {
    if (const int error = check_safe(path, why); error != 0) return error;
    if (const int error = open_device(size, why); error != 0)
      return with_reason(why, error, path + ": " + why);
    if (!has_room_)
      warnings.push_back(path + ": this device has no room for a header behind the volume (" +
                         std::to_string(kPage) + " bytes); what others write to it is not noticed");
    return 0;
  }
  const int error = open_regular(path, static_cast<uint64_t>(status.st_size), sparse, warnings, why);
  // Removes the file that this call has made: on a full disk it has all space that was free.
  if (error != 0 && !exists) unlink(path.c_str());
  return error;
}

// A user who can write to it can change the pages of a volume that has lost its servers; one who can read it
// has them.
int BackupFile::check_safe(const std::string& path, std::string& why) const {
  int error = check_private(fd_.get(), path, why);
  if (error == 0 && !device_) error = check_folder(path, why);
  return error == 0 ? 0 : with_reason(why, error, "--backup " + why);
}

int BackupFile::open_device(uint64_t size, std::string& why) {
  uint64_t bytes = 0;
  if (ioctl(fd_.get(), BLKGETSIZE64, &bytes) != 0) return with_reason(why, errno, strerror(errno));
  if (bytes < size) return with_reason(why, EINVAL, "the device is smaller than the volume");
  has_room_ = bytes - size >= kPage;
  alignas(kPage) uint8_t page[kPage];
  if (!has_room_) return 0;
  if (const int error = read(page, kPage, size); error != 0) return with_reason(why, error, strerror(error));
  stamp_ = read_header(page, size / kPage);
  return 0;
}

int BackupFile::open_regular(const std::string& path, uint64_t present, bool sparse,
                             std::vector<std::string>& warnings, std::string& why) {
  has_room_ = present != size_;  // one of a version that knew no header gets it with put_stamp()
  bool ours = present == 0 || present == size_;
  if (present == size_ + kPage) {
    alignas(kPage) uint8_t page[kPage];
    if (const int error = read(page, kPage, size_); error != 0)
      return with_reason(why, error, path + ": " + strerror(error));
    stamp_ = read_header(page, size_ / kPage);
    ours = may_be_header(page);
  }
  if (!ours)
    return with_reason(why, EINVAL,
                       path + " exists and has " + std::to_string(present) + " bytes, the volume has " +
                           std::to_string(size_) + "; if it is an old backup, remove it");
  if (const int error = check_safe(path, why); error != 0) return error;
  const uint64_t bytes = size_ + (has_room_ ? kPage : 0);
  if (ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0)
    return with_reason(why, errno, path + ": " + strerror(errno));
  if (sparse || fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)) == 0) return 0;
  if (errno != EOPNOTSUPP)
    return with_reason(why, errno, path + ": no room for the whole volume: " + strerror(errno));
  warnings.push_back(path + ": this file system reserves no room; a full disk will end the backup");
  return 0;
}

int BackupFile::put_stamp(const BackupStamp& stamp) {
  if (!has_room_) {
    // If the disk is full, the volume's pages are on it already.
    if (device_ || fallocate(fd_.get(), 0, static_cast<off_t>(size_), kPage) != 0) return ENOSPC;
    has_room_ = true;
  }
  alignas(kPage) uint8_t page[kPage];
  write_header(page, size_ / kPage, stamp);
  iovec segment{page, kPage};
  if (const int error = write(&segment, 1, size_); error != 0) return error == ENOSPC ? EIO : error;
  stamp_ = stamp;
  return 0;
}

int BackupFile::read(uint8_t* memory, size_t length, uint64_t offset) const {
  while (length > 0) {
    const ssize_t bytes = pread(fd_.get(), memory, length, static_cast<off_t>(offset));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return errno;
    // A part of a page can only be read again from the page's start.
    const size_t whole = static_cast<size_t>(bytes) / kPage * kPage;
    if (whole == 0) return EIO;
    memory += whole;
    offset += whole;
    length -= whole;
  }
  return 0;
}

int BackupFile::write(iovec* segments, int count, uint64_t offset) const {
  for (int short_writes = 0; count > 0;) {
    const ssize_t bytes = pwritev(fd_.get(), segments, count, static_cast<off_t>(offset));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return errno;
    size_t whole = static_cast<size_t>(bytes) / kPage * kPage;
    offset += whole;
    for (; count > 0 && whole >= segments->iov_len; segments++, count--) whole -= segments->iov_len;
    if (whole > 0) {
      segments->iov_base = static_cast<uint8_t*>(segments->iov_base) + whole;
      segments->iov_len -= whole;
    }
    if (count > 0 && ++short_writes > kShortWrites) return EIO;
  }
  return 0;
}

}  // namespace rdmakit::volume
