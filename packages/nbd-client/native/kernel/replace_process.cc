#include "kernel/replace_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace rdmakit::nbd {

int replace_process(const std::string& program, const std::vector<std::string>& arguments,
                    std::vector<int> kept) {
  std::vector<char*> words{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  // Node.js marks whatever it inherits close-on-exec (uv_disable_stdio_inheritance).
  kept.insert(kept.end(), {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO});
  for (const int descriptor : kept) {
    const int flags = fcntl(descriptor, F_GETFD);
    if (flags >= 0) fcntl(descriptor, F_SETFD, flags & ~FD_CLOEXEC);
  }
  execvp(words.front(), words.data());
  return errno;
}

}  // namespace rdmakit::nbd
