#include "system/swap_safety.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/unique_fd.h"

namespace rdmakit::volume {

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
  std::ifstream maps("/proc/self/smaps");
  uintptr_t first = 0;
  uintptr_t end = 0;
  bool accessible = false;
  int error = maps ? 0 : ENOENT;
  for (std::string line; std::getline(maps, line);) {
    char permissions[5] = {};
    uintptr_t from = 0;
    uintptr_t to = 0;
    // Into variables of its own: "FilePmdMapped:" begins like a number.
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, permissions) == 3) {
      first = from;
      end = to;
      // Guard pages have nothing to lock, and the kernel's own pages ([vdso] …) cannot be.
      accessible = std::strncmp(permissions, "---", 3) != 0 && line.find("[v") == std::string::npos;
      continue;
    }
    // The last line of each mapping.
    if (!line.starts_with("VmFlags:") || !accessible) continue;
    if (line.find(" dc") != std::string::npos || line.find(" io") != std::string::npos) continue;
    if (mlock2(reinterpret_cast<void*>(first), end - first, MLOCK_ONFAULT) != 0) error = errno;
  }
  return outcome("mlock", error, "needs CAP_IPC_LOCK or a larger memlock limit");
}

Safety spare_from_oom_killer() {
  const UniqueFd file(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  const char score[] = "-1000";
  const bool written = file && write(file.get(), score, sizeof score - 1) == sizeof score - 1;
  return outcome("oom_score_adj -1000", written ? 0 : errno, "needs CAP_SYS_RESOURCE");
}

Safety lock_range(void* memory, size_t bytes) {
  const int error = mlock2(memory, bytes, MLOCK_ONFAULT) == 0 ? 0 : errno;
  return outcome("mlock of the arena", error, "needs CAP_IPC_LOCK or a larger memlock limit");
}

Safety mark_io_flusher() {
  const int error = prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0 ? 0 : errno;
  return outcome("PR_SET_IO_FLUSHER", error, "needs CAP_SYS_RESOURCE and Linux 5.6");
}

Safety admit_to_reserve() {
  sched_param parameter{};
  parameter.sched_priority = sched_get_priority_min(SCHED_RR);
  const int error = sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &parameter) == 0 ? 0 : errno;
  return outcome("SCHED_RR", error, "needs CAP_SYS_NICE");
}

bool become_io_flusher() { return prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0) == 0 && mark_io_flusher().granted; }

std::vector<Safety> protect_process() { return {lock_memory(), spare_from_oom_killer(), mark_io_flusher()}; }

void touch_stack() {
  constexpr size_t kBytes = 128 << 10;
  char stack[kBytes];
  std::memset(stack, 0, sizeof stack);
  asm volatile("" : : "r"(stack) : "memory");  // or the compiler would leave it out
}

}  // namespace rdmakit::volume
