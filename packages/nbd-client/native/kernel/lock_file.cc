#include "kernel/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "engine/descriptor.h"

namespace rdmakit::nbd {

int lock_file(const std::string& path, int& descriptor) {
  Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return errno;
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK ? EBUSY : errno;
  descriptor = file.release();
  return 0;
}

}  // namespace rdmakit::nbd
