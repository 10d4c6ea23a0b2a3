// A descriptor of another process (pidfd_getfd(2), Linux 5.6).
#pragma once

#include <sys/types.h>

#include <string>

namespace rdmakit::nbd {

// A duplicate of `theirs`, closed on exec. 0 or an errno value with `why`: ESRCH no such process, EBADF it has no
// such descriptor, EPERM it is not ours to take from, ENOSYS the kernel is too old.
int take_descriptor(pid_t process, int theirs, int& ours, std::string& why);

}  // namespace rdmakit::nbd
