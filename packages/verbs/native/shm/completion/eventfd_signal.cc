#include "shm/completion/eventfd_signal.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <mutex>

#include "base/unique_fd.h"

namespace rdmakit::shm {
namespace {

// The kernel leaves a result of each operation in a ring. Who finds it full fetches them.
constexpr unsigned kOperations = 128;
constexpr int kMostAttempts = 16;

class Operations {
 public:
  void prepare() {
    const std::lock_guard lock(mutex_);
    const pid_t process = getpid();
    if (process_.load(std::memory_order_relaxed) == process) return;
    if (!source_) source_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
    // A child of fork() has no operations of its parent's.
    context_ = 0;
    if (!source_ || syscall(SYS_io_setup, kOperations, &context_) != 0) return;
    const UniqueFd tried(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    uint64_t count;
    if (submit(tried.get()) && read(tried.get(), &count, sizeof count) == sizeof count) {
      process_.store(process, std::memory_order_release);
    } else {
      syscall(SYS_io_destroy, context_);
    }
  }

  // Hot path.
  // False where there are no such operations.
  bool signal(int fd) {
    return process_.load(std::memory_order_acquire) != 0 && (submit(fd) || errno == EINVAL);
  }

 private:
  bool submit(int fd) {
    iocb read{};
    read.aio_lio_opcode = IOCB_CMD_PREAD;
    read.aio_fildes = static_cast<uint32_t>(source_.get());
    read.aio_flags = IOCB_FLAG_RESFD;
    read.aio_resfd = static_cast<uint32_t>(fd);
    iocb* const all[] = {&read};
    for (int attempt = 0; attempt < kMostAttempts; attempt++) {
      if (syscall(SYS_io_submit, context_, 1, all) == 1) return true;
      if (errno != EAGAIN) return false;
      fetch_results();
    }
    return false;
  }

  void fetch_results() {
    std::array<io_event, kOperations> results;
    timespec none{};
    while (syscall(SYS_io_getevents, context_, 0, results.size(), results.data(), &none) ==
           static_cast<long>(results.size())) {
    }
  }
  // End of hot path.

  std::mutex mutex_;
  UniqueFd source_;
  aio_context_t context_ = 0;
  std::atomic<pid_t> process_{0};  // whose context_ is
};

Operations& operations() {
  static auto* made = new Operations;
  return *made;
}

}  // namespace

void prepare_eventfd_signals() { operations().prepare(); }

// Hot path.
void signal_eventfd(int fd) {
  if (operations().signal(fd)) return;
  if ((fcntl(fd, F_GETFL) & O_NONBLOCK) == 0) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t done = write(fd, &one, sizeof one);
}
// End of hot path.

}  // namespace rdmakit::shm
