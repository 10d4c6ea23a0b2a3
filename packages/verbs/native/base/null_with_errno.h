// How a function fails that makes something.
#pragma once

#include <cerrno>
#include <cstddef>

namespace rdmakit {

inline std::nullptr_t null_with_errno(int error) {
  errno = error;
  return nullptr;
}

}  // namespace rdmakit
