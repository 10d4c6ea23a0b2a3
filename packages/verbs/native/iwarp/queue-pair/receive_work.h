// A posted receive, in a queue pair's own queue or in a shared one.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace rdmakit::iwarp {

struct ReceiveWork {
  uint64_t wr_id;
  uint64_t length;
  uint32_t sge_count;

  // Takes over `request`; `sges` has room for all of its scatter list.
  void fill(const ibv_recv_wr& request, ibv_sge* sges) {
    wr_id = request.wr_id;
    length = 0;
    sge_count = 0;
    for (int i = 0; i < request.num_sge; i++) {
      if (request.sg_list[i].length == 0) continue;
      sges[sge_count++] = request.sg_list[i];
      length += request.sg_list[i].length;
    }
  }
};

}  // namespace rdmakit::iwarp
