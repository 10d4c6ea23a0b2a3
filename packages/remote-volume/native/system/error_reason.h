// How a call that may fail says why: `return with_reason(why, EINVAL, "…")`.
#pragma once

#include <string>
#include <string_view>

namespace rdmakit::volume {

// Returns `error`, with `text` for people in `why`.
inline int with_reason(std::string& why, int error, std::string_view text) {
  why = text;
  return error;
}

}  // namespace rdmakit::volume
