// ibv_cq_ex: the same completions, one at a time, with the time when they came into being. That of a SEND or
// immediate data which arrived is the one at which its sender published it, as the sender's clock says: it is
// the same clock, and never later than now.
#include <cerrno>

#include "base/clock.h"
#include "shm/completion_queue.h"

namespace rdmakit::shm {

int CompletionQueue::take_next() {
  const int count = poll(1, &current_, stamped_ ? &current_time_ : nullptr);
  if (count < 0) return EIO;
  if (count == 0) return ENOENT;
  status = current_.status;
  wr_id = current_.wr_id;
  return 0;
}

// Other threads wait between ibv_start_poll and ibv_end_poll of one.
int CompletionQueue::begin_poll() {
  extended_lock_.lock();
  const int error = take_next();
  if (error != 0) extended_lock_.unlock();
  return error;
}

void CompletionQueue::fill_extended(uint64_t flags) {
  using Self = ibv_cq_ex*;
  static constexpr auto current = [](Self self) -> const ibv_wc& {
    return static_cast<CompletionQueue*>(self)->current_;
  };
  start_poll = [](Self self, ibv_poll_cq_attr* attributes) {
    return attributes->comp_mask != 0 ? EINVAL : static_cast<CompletionQueue*>(self)->begin_poll();
  };
  next_poll = [](Self self) { return static_cast<CompletionQueue*>(self)->take_next(); };
  end_poll = [](Self self) { static_cast<CompletionQueue*>(self)->extended_lock_.unlock(); };
  read_opcode = [](Self self) { return current(self).opcode; };
  read_vendor_err = [](Self self) { return current(self).vendor_err; };
  read_wc_flags = [](Self self) { return current(self).wc_flags; };
  // What was not asked for stays null, as in libibverbs.
  if (flags & IBV_WC_EX_WITH_BYTE_LEN) read_byte_len = [](Self self) { return current(self).byte_len; };
  if (flags & IBV_WC_EX_WITH_IMM) read_imm_data = [](Self self) { return current(self).imm_data; };
  if (flags & IBV_WC_EX_WITH_QP_NUM) read_qp_num = [](Self self) { return current(self).qp_num; };
  if (flags & IBV_WC_EX_WITH_SRC_QP) read_src_qp = [](Self self) { return current(self).src_qp; };
  if (flags & IBV_WC_EX_WITH_SLID) read_slid = [](Self self) { return uint32_t{current(self).slid}; };
  if (flags & IBV_WC_EX_WITH_SL) read_sl = [](Self self) { return current(self).sl; };
  if (flags & IBV_WC_EX_WITH_DLID_PATH_BITS) {
    read_dlid_path_bits = [](Self self) { return current(self).dlid_path_bits; };
  }
  if (flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) {
    read_completion_ts = [](Self self) { return static_cast<CompletionQueue*>(self)->current_time_; };
  }
  if (flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) {
    read_completion_wallclock_ns = [](Self self) {
      return now_ns(CLOCK_REALTIME) - (now_ns() - static_cast<CompletionQueue*>(self)->current_time_);
    };
  }
}

}  // namespace rdmakit::shm
