#include "kernel/descriptor_transfer.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/descriptor.h"

namespace rdmakit::nbd {

int take_descriptor(pid_t process, int theirs, int& ours, std::string& why) {
  const Descriptor target(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (!target) {
    why = std::string("pidfd_open: ") + std::strerror(errno);
    return errno;
  }
  ours = static_cast<int>(syscall(SYS_pidfd_getfd, target.get(), theirs, 0));
  if (ours >= 0) return 0;
  const int error = errno;
  why = std::string("pidfd_getfd: ") + std::strerror(error);
  return error;
}

}  // namespace rdmakit::nbd
