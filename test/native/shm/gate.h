// A page at whose first byte a copy stands still, until it is opened. One at a time in a process.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include "fixture.h"

namespace fixture {

struct Gate {
  static constexpr size_t kSize = 4096;
  static inline std::atomic<bool> reached, opened;
  uint8_t* data;

  Gate() {
    reached = opened = false;
    void* at = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    data = static_cast<uint8_t*>(at);
    struct sigaction action {};
    action.sa_handler = [](int) {
      reached = true;
      while (!opened) sched_yield();
    };
    CHECK(sigaction(SIGSEGV, &action, &before_) == 0);
  }
  ~Gate() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(data, kSize);
  }
  uint64_t address() const { return reinterpret_cast<uint64_t>(data); }
  void close() const { CHECK(mprotect(data, kSize, PROT_NONE) == 0); }
  void open() const {
    CHECK(mprotect(data, kSize, PROT_READ | PROT_WRITE) == 0);
    opened = true;
  }

 private:
  struct sigaction before_ {};
};

}  // namespace fixture
