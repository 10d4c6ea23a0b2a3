// ibv_pd and ibv_mw.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>

namespace rdmakit::iwarp {

struct ProtectionDomain : ibv_pd {
  std::atomic<int> users{0};  // regions, windows, shared receive queues and queue pairs
};

struct MemoryWindow : ibv_mw {};

}  // namespace rdmakit::iwarp
