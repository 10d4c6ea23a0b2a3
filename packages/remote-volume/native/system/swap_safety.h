// Kernel settings of a process that serves swap, so that it never waits for the memory that only it can
// provide. Each function returns whether the setting was granted and, if not, why: the caller prints that and
// continues.
#pragma once

#include <string>
#include <vector>

namespace rdmakit::volume {

struct Safety {
  std::string name;
  bool granted = false;
  std::string reason;  // when not granted
};

// Locks the memory of this process as it is touched (mlock2(2), MLOCK_ONFAULT): program text, malloc's
// heaps, thread stacks, the page map, the arenas. Not V8's heap, which no lane touches: mlockall(2)
// makes V8 abort, for it gives code pages back with madvise(MADV_DONTNEED), which fails on locked memory
// and which V8 takes for a fatal error. V8 marks all that it maps MADV_DONTFORK ("dc" in
// /proc/PID/smaps), and that is what we leave out: a cgroup without swap covers it. This covers what exists
// now: call it once the lanes are made, and again after more memory came.
Safety lock_memory();
// The same for one range, whoever mapped it.
Safety lock_range(void* memory, size_t bytes);
// oom_score_adj of proc(5): killed last.
Safety spare_from_oom_killer();
// PR_SET_IO_FLUSHER of prctl(2) for the calling thread: its allocations never start I/O, hence never
// wait for the device that it serves. Threads that it starts inherit this, and so does a program that it
// executes. Needs CAP_SYS_RESOURCE.
Safety mark_io_flusher();
// True when the calling thread becomes one by this: those that it has started before are none.
bool become_io_flusher();
// The calling thread may take memory below the limit at which others wait for some to be freed: the kernel
// lets a real-time thread have a quarter or half of that reserve (gfp_to_alloc_flags of mm/page_alloc.c).
// A TCP socket needs a page to send, and a file one to be written. If none is free, because each reclaimable
// page waits for this thread, an I/O flusher searches for one endlessly, because it may write nothing out
// itself. The lowest priority, and not inherited. Needs CAP_SYS_NICE.
Safety admit_to_reserve();
// All of the process-wide ones, and of those of a thread the calling one's.
std::vector<Safety> protect_process();

// Touches the part of the calling thread's stack that it will use, so that no fault comes later.
void touch_stack();

}  // namespace rdmakit::volume
