// That a process which is wrong about itself ends at once, and says where and why (rdmakit/invariant.h).
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "stress.h"

namespace fixture {

// Runs `work` in a process of its own, which ends by SIGABRT with all `words` in its last words. No other
// thread may run here.
inline void dies(const std::function<void()>& work, const std::string& words) {
  int pipe_ends[2];
  CHECK(pipe(pipe_ends) == 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    dup2(pipe_ends[1], STDERR_FILENO);
    work();
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string said;
  char bytes[512];
  for (ssize_t got; (got = read(pipe_ends[0], bytes, sizeof bytes)) > 0;)
    said.append(bytes, static_cast<size_t>(got));
  close(pipe_ends[0]);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "status %x: %s", status, said.c_str());
  CHECK(
      said.find("this must hold and does not") != std::string::npos && said.find(words) != std::string::npos,
      "%s", said.c_str());
}

}  // namespace fixture
