#include "kernel/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "system/private_file.h"

namespace rdmakit::nbd {

using namespace volume;

int lock_file(const std::string& path, int& descriptor) {
  UniqueFd file;
  if (const int error = open_private(path, O_RDWR | O_CREAT, file); error != 0) return error;
  std::string why;
  if (const int error = check_private(file.get(), path, why); error != 0) return error;
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK ? EBUSY : errno;
  descriptor = file.release();
  return 0;
}

}  // namespace rdmakit::nbd
