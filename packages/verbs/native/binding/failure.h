// Errors as src/errors.ts expects them: code (errno name), verb, detail.
#pragma once

#include <napi.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "rdmakit/errno_name.h"
#include "rdmakit/thread.h"

namespace rdmakit::binding {

// Verbs return errno values, but some drivers of libibverbs (siw's, as a post's result) negative ones.
inline const char* errno_name(int error) {
  const char* name = rdmakit::errno_name(std::abs(error));
  return name == nullptr ? "EIO" : name;
}

inline Napi::Error failure(Napi::Env env, int error, const char* verb, const std::string& detail) {
  Napi::Error made =
      Napi::Error::New(env, std::string(verb) + ": " + detail + " (" + errno_name(error) + ")");
  made.Set("code", errno_name(error));
  made.Set("verb", verb);
  made.Set("detail", detail);
  return made;
}

// The system's text for `error`, in lower case like our other messages.
inline std::string reason(int error) {
  std::string text = strerror(std::abs(error));
  if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return text;
}

inline Napi::Error failure(Napi::Env env, int error, const char* verb) {
  return failure(env, error, verb, reason(error));
}

// The same for a call that starts a thread of ours, which is the only one that fails with EAGAIN.
inline std::string reason_of_start(int error) {
  return error == EAGAIN || error == ENOMEM ? why_no_thread(error) : reason(error);
}

// The failure of a call that not every device knows. `lacking`: what is said of one that does not.
inline Napi::Error device_failure(Napi::Env env, int error, const char* verb, const char* lacking) {
  return failure(env, error, verb, error == EOPNOTSUPP ? lacking : reason(error));
}

// Throws when a verb returned an errno value.
inline void check(Napi::Env env, int error, const char* verb) {
  if (error != 0) throw failure(env, error, verb);
}

}  // namespace rdmakit::binding
