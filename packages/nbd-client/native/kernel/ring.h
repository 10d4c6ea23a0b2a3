// An io_uring(7) and its life.
#pragma once

#include <liburing.h>

#include <cstdint>

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace rdmakit::nbd {

class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (!open_) return;
    release();
    io_uring_queue_exit(&ring_);
  }
  // 0 or an errno value.
  int open(uint32_t entries, uint32_t flags) {
    const int error = -io_uring_queue_init(entries, &ring_, flags);
    open_ = error == 0;
    if (open_) acquire();
    return error;
  }
  io_uring* get() { return &ring_; }
  const io_uring* get() const { return &ring_; }

 private:
  // liburing maps and unmaps by system calls that ThreadSanitizer does not see: a ring in the place of one
  // that is gone comes after it, as the kernel has it.
#if defined(__SANITIZE_THREAD__)
  static inline char places_;
  static void acquire() { __tsan_acquire(&places_); }
  static void release() { __tsan_release(&places_); }
#else
  static void acquire() {}
  static void release() {}
#endif

  io_uring ring_{};
  bool open_ = false;
};

}  // namespace rdmakit::nbd
