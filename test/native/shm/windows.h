// Memory windows, as the shm tests bind, use and end them.
#pragma once

#include "traffic.h"

namespace fixture {

struct Window {
  ibv_mw* mw;
  explicit Window(ibv_pd* pd) : mw(provider().alloc_mw(pd, IBV_MW_TYPE_2)) {
    CHECK(mw != nullptr && mw->type == IBV_MW_TYPE_2 && mw->pd == pd);
  }
  Window(const Window&) = delete;
  ~Window() { release(); }
  void release() {
    if (mw != nullptr) CHECK(provider().dealloc_mw(std::exchange(mw, nullptr)) == 0);
  }
};

inline int post_request(End& end, ibv_send_wr& request) {
  ibv_send_wr* bad = nullptr;
  request.send_flags |= IBV_SEND_SIGNALED;
  return ibv_post_send(end.qp, &request, &bad);
}

inline constexpr unsigned kAll = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// The key under which the window is bound when the status is as wanted.
inline uint32_t bind(End& end, Window& window, const Memory& memory, size_t offset, size_t length,
                     unsigned access = kAll, ibv_wc_status status = IBV_WC_SUCCESS, uint32_t wrong = 0) {
  ibv_send_wr request{};
  request.wr_id = 77;
  request.opcode = IBV_WR_BIND_MW;
  request.bind_mw.mw = window.mw;
  request.bind_mw.rkey = ibv_inc_rkey(window.mw->rkey) ^ wrong;
  request.bind_mw.bind_info = {memory.mr, memory.address(offset), length, access};
  CHECK(post_request(end, request) == 0);
  const ibv_wc wc = end.expect(77, status);
  if (status != IBV_WC_SUCCESS) return 0;
  CHECK(wc.opcode == IBV_WC_BIND_MW);
  return window.mw->rkey = request.bind_mw.rkey;
}

inline void invalidate(End& end, uint32_t key, ibv_wc_status status = IBV_WC_SUCCESS) {
  ibv_send_wr request{};
  request.wr_id = 78;
  request.opcode = IBV_WR_LOCAL_INV;
  request.invalidate_rkey = key;
  CHECK(post_request(end, request) == 0);
  const ibv_wc wc = end.expect(78, status);
  if (status == IBV_WC_SUCCESS) CHECK(wc.opcode == IBV_WC_LOCAL_INV);
}

inline void send_with_invalidate(End& end, uint32_t key, const ibv_sge& sge) {
  ibv_send_wr request{};
  ibv_sge copy = sge;
  request.wr_id = 79;
  request.opcode = IBV_WR_SEND_WITH_INV;
  request.invalidate_rkey = key;
  request.sg_list = &copy;
  request.num_sge = 1;
  CHECK(post_request(end, request) == 0);
}

// The peer's request to the window ends so.
inline void use(Pair& pair, const Memory& near, ibv_wr_opcode opcode, uint64_t address, uint32_t key,
                size_t length, ibv_wc_status status = IBV_WC_SUCCESS) {
  Send send{.wr_id = 5, .opcode = opcode, .remote_address = address, .remote_key = key};
  post(*pair.client, send, {near.sge(0, length)});
  pair.client->expect(5, status);
}

}  // namespace fixture
