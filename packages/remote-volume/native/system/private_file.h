// Files that decide the contents of a volume's pages, or who may use it: no other user may read, write or
// replace one. All checks are of the opened file, because its path may name another one a moment later.
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace rdmakit::volume {

// Opens `path` with the flags of open(2), mode 0600 when it is made, and never what a symbolic link leads to.
// 0 or an errno value: ELOOP it is a link.
int open_private(const std::string& path, int flags, UniqueFd& file);

// Whether only root and the user of this process have access to the file. 0, or EPERM with `why`: the problem
// with `path`, and the command that fixes it. A block device may be open to its group, as udev makes it.
int check_private(int file, const std::string& path, std::string& why);

// The same for a file that others may read, but not write.
int check_unwritable(int file, const std::string& path, std::string& why);

// The same for the folder of `path`: others may not rename its files, unless it is sticky, as /tmp is.
int check_folder(const std::string& path, std::string& why);

}  // namespace rdmakit::volume
