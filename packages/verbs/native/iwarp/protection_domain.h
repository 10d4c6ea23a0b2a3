// ibv_pd and ibv_mr.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>

namespace rdmakit::iwarp {

struct ProtectionDomain : ibv_pd {
  std::atomic<int> users{0};  // regions and queue pairs
};

struct MemoryRegion : ibv_mr {};

}  // namespace rdmakit::iwarp
