#include "binding/completion/completion_entry.h"

#include <arpa/inet.h>

#include <algorithm>

namespace rdmakit::binding {

namespace {

uint32_t immediate_of(unsigned flags, uint32_t data) {
  return (flags & IBV_WC_WITH_INV) ? data : ntohl(data);
}

int poll_plain(ibv_cq* cq, int max, CompletionEntry* entries) {
  constexpr int kAtOnce = 32;
  ibv_wc completions[kAtOnce];
  int taken = 0;
  while (taken < max) {
    const int wanted = std::min(max - taken, kAtOnce);
    const int count = ibv_poll_cq(cq, wanted, completions);
    if (count < 0) return taken > 0 ? taken : count;
    for (int i = 0; i < count; i++) {
      const ibv_wc& from = completions[i];
      CompletionEntry& to = entries[taken++];
      // ibv_poll_cq(3): after an error all but these four mean nothing.
      const bool done = from.status == IBV_WC_SUCCESS;
      to.work_request_id = from.wr_id;
      to.status = from.status;
      to.queue_pair = from.qp_num;
      to.vendor_error = from.vendor_err;
      to.opcode = done ? from.opcode : 0;
      to.byte_length = done ? from.byte_len : 0;
      to.flags = done ? from.wc_flags : 0;
      to.immediate = immediate_of(to.flags, from.imm_data);
      to.source = done ? from.src_qp : 0;
      to.timestamp = 0;
    }
    if (count < wanted) break;
  }
  return taken;
}

// ibv_create_cq_ex(3): fields are read one by one from the queue's current completion.
int poll_extended(ibv_cq_ex* cq, Timestamps timestamps, int max, CompletionEntry* entries) {
  ibv_poll_cq_attr attributes{};
  const int started = ibv_start_poll(cq, &attributes);
  if (started == ENOENT) return 0;
  if (started != 0) return -1;
  int taken = 0;
  do {
    CompletionEntry& to = entries[taken++];
    to = {};
    to.work_request_id = cq->wr_id;
    to.status = cq->status;
    to.vendor_error = ibv_wc_read_vendor_err(cq);
    to.queue_pair = ibv_wc_read_qp_num(cq);
    if (cq->status == IBV_WC_SUCCESS) {
      to.opcode = ibv_wc_read_opcode(cq);
      to.byte_length = ibv_wc_read_byte_len(cq);
      to.flags = ibv_wc_read_wc_flags(cq);
      if (to.flags & IBV_WC_WITH_INV) {
        to.immediate = ibv_wc_read_invalidated_rkey(cq);
      } else if (to.flags & IBV_WC_WITH_IMM) {
        to.immediate = ntohl(ibv_wc_read_imm_data(cq));
      }
      to.source = ibv_wc_read_src_qp(cq);
    }
    to.timestamp = timestamps == Timestamps::wallclock ? ibv_wc_read_completion_wallclock_ns(cq)
                                                       : ibv_wc_read_completion_ts(cq);
  } while (taken < max && ibv_next_poll(cq) == 0);
  ibv_end_poll(cq);
  return taken;
}

}  // namespace

int poll_into(CqObject& queue, int max, CompletionEntry* entries) {
  max = std::clamp(max, 1, kMaxPoll);
  if (queue.timestamps() == Timestamps::none) return poll_plain(queue.cq(), max, entries);
  return poll_extended(reinterpret_cast<ibv_cq_ex*>(queue.cq()), queue.timestamps(), max, entries);
}

}  // namespace rdmakit::binding
