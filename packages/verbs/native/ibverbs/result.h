// The results of libibverbs' functions, as errno values.
#pragma once

#include <cerrno>

namespace rdmakit::ibverbs {

// Drivers differ: most answer an errno value, some -1 with errno, siw a negative errno value.
inline int errno_of(int result) {
  if (result == -1) return errno != 0 ? errno : EIO;
  return result < 0 ? -result : result;
}

}  // namespace rdmakit::ibverbs
