// What a process that serves swap asks of the kernel, so that it never waits for the memory that only
// it can provide. Each function says whether it was granted and, if not, why: the caller prints that
// and goes on.
#pragma once

#include <string>
#include <vector>

namespace rdmakit::nbd {

struct Safety {
  std::string name;
  bool granted = false;
  std::string reason;  // when not granted
};

// mlockall(2): pages are locked as they are touched.
Safety lock_memory();
// oom_score_adj of proc(5): killed last.
Safety spare_from_oom_killer();
// PR_SET_IO_FLUSHER of prctl(2) for the calling thread: its allocations never start I/O, hence never
// wait for the device that it serves. Needs CAP_SYS_RESOURCE.
Safety mark_io_flusher();
// All of the process-wide ones.
std::vector<Safety> protect_process();

// Touches the part of the calling thread's stack that it will use, so that no fault comes later.
void touch_stack();

}  // namespace rdmakit::nbd
