#include "kernel/swap_safety.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstring>

#include "engine/descriptor.h"

namespace rdmakit::nbd {

namespace {

Safety outcome(const char* name, int error, const char* hint) {
  Safety safety;
  safety.name = name;
  safety.granted = error == 0;
  if (error != 0) safety.reason = std::string(strerror(error)) + " (" + hint + ")";
  return safety;
}

}  // namespace

Safety lock_memory() {
  const int error = mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0 ? 0 : errno;
  return outcome("mlockall", error, "needs CAP_IPC_LOCK or a larger memlock limit");
}

Safety spare_from_oom_killer() {
  const Descriptor file(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  const char score[] = "-1000";
  const bool written = file && write(file.get(), score, sizeof score - 1) == sizeof score - 1;
  return outcome("oom_score_adj -1000", written ? 0 : errno, "needs CAP_SYS_RESOURCE");
}

Safety mark_io_flusher() {
  const int error = prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0 ? 0 : errno;
  return outcome("PR_SET_IO_FLUSHER", error, "needs CAP_SYS_RESOURCE and Linux 5.6");
}

std::vector<Safety> protect_process() { return {lock_memory(), spare_from_oom_killer()}; }

void touch_stack() {
  constexpr size_t kBytes = 128 << 10;
  char stack[kBytes];
  std::memset(stack, 0, sizeof stack);
  asm volatile("" : : "r"(stack) : "memory");  // or the compiler would leave it out
}

}  // namespace rdmakit::nbd
