// A file that at most one process has open in this way (flock(2)): the lock ends with the process, however it
// ends.
#pragma once

#include <string>

namespace rdmakit::nbd {

// 0 or an errno value: EBUSY another process has it; ELOOP it is a symbolic link; EPERM others have access to
// it. Closing `descriptor` unlocks it.
int lock_file(const std::string& path, int& descriptor);

}  // namespace rdmakit::nbd
