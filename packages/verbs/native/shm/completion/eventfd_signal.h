// Signals an eventfd that others have too, and never sleeps in it.
#pragma once

namespace rdmakit::shm {

// Both may be called by any thread at any time, and allocate nothing of this process.

// What signal_eventfd() needs: once a process is enough, and no harm more often.
void prepare_eventfd_signals();

// Adds 1 to the counter, or leaves a full one as it is, and wakes in either case who waits for it. A write(2)
// sleeps while the counter is full, if O_NONBLOCK is not set, and every process that has the descriptor may
// change that. The completion of an asynchronous operation of the kernel's does not (IOCB_FLAG_RESFD of
// io_submit(2)): a read of 0 bytes from /dev/null is such a one. What is not an eventfd is left alone.
// Where the process has none of these (a filter of system calls, fs.aio-max-nr), it is a write, unless the
// flag is seen to be gone, which misses a change at that very instant.
void signal_eventfd(int fd);

}  // namespace rdmakit::shm
