#include "system/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "system/error_reason.h"

namespace rdmakit::volume {

namespace {

bool is_ours(const struct stat& status) { return status.st_uid == geteuid() || status.st_uid == 0; }

std::string octal(mode_t mode) {
  char text[8];
  snprintf(text, sizeof text, "%03o", mode & 0777u);
  return text;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_not_of('/', path.rfind('/'));
  if (path.find('/') == std::string::npos) return ".";
  return slash == std::string::npos ? "/" : path.substr(0, slash + 1);
}

int belongs_to_another(const std::string& path, const struct stat& status, std::string& why) {
  return with_reason(why, EPERM,
                     path + " belongs to user " + std::to_string(status.st_uid) + "; run chown " +
                         std::to_string(geteuid()) + " " + path);
}

}  // namespace

int open_private(const std::string& path, int flags, UniqueFd& file) {
  file.reset(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600));
  return file ? 0 : errno;
}

int check_private(int file, const std::string& path, std::string& why) {
  struct stat status;
  if (fstat(file, &status) != 0) return with_reason(why, errno, path + ": " + strerror(errno));
  if (!is_ours(status)) return belongs_to_another(path, status, why);
  if ((status.st_mode & (S_ISBLK(status.st_mode) ? 0007u : 0077u)) == 0) return 0;
  return with_reason(why, EPERM,
                     path + " is open to others (mode " + octal(status.st_mode) + "); run chmod 600 " + path);
}

int check_unwritable(int file, const std::string& path, std::string& why) {
  struct stat status;
  if (fstat(file, &status) != 0) return with_reason(why, errno, path + ": " + strerror(errno));
  if (!is_ours(status)) return belongs_to_another(path, status, why);
  if ((status.st_mode & 0022u) == 0) return 0;
  return with_reason(
      why, EPERM,
      path + " can be written by others (mode " + octal(status.st_mode) + "); run chmod go-w " + path);
}

int check_folder(const std::string& path, std::string& why) {
  const std::string folder = folder_of(path);
  struct stat status;
  if (stat(folder.c_str(), &status) != 0) return with_reason(why, errno, folder + ": " + strerror(errno));
  if (!is_ours(status)) return belongs_to_another(folder, status, why);
  if ((status.st_mode & 0022u) == 0 || (status.st_mode & S_ISVTX) != 0) return 0;
  return with_reason(why, EPERM,
                     folder + ", the folder of " + path + ", can be written by others (mode " +
                         octal(status.st_mode) + "); run chmod go-w " + folder);
}

}  // namespace rdmakit::volume
