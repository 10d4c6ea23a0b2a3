// What a failed verb is reported as.
#pragma once

#include <cerrno>

#include "rdmakit/failure.h"
#include "rdmakit/thread.h"

namespace rdmakit::binding {

// The system's text for a call that starts a thread of ours, which is the only one that fails with EAGAIN.
inline std::string reason_of_start(int error) {
  return error == EAGAIN || error == ENOMEM ? why_no_thread(error) : reason(error);
}

// The failure of a call that not every device knows. `lacking`: what is said of one that does not.
inline Napi::Error device_failure(Napi::Env env, int error, const char* verb, const char* lacking) {
  return failure(env, error, verb, error == EOPNOTSUPP ? lacking : reason(error));
}

}  // namespace rdmakit::binding
