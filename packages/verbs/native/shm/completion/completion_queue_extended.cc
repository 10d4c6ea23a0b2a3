// ibv_cq_ex: the same completions, one at a time, with the time when they came into being. That of a SEND or
// immediate data which arrived is the one at which its sender published it, as the sender's clock says: it is
// the same clock, and never later than now.
#include <cerrno>

#include "base/clock.h"
#include "shm/completion/completion_queue.h"

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
  reader_mutex_.lock();
  const int error = take_next();
  if (error != 0) reader_mutex_.unlock();
  return error;
}

void CompletionQueue::fill_extended(uint64_t flags) {
  using Self = ibv_cq_ex*;
  set_readers(flags);
  start_poll = [](Self self, ibv_poll_cq_attr* attributes) {
    return attributes->comp_mask != 0 ? EINVAL : static_cast<CompletionQueue*>(self)->begin_poll();
  };
  next_poll = [](Self self) { return static_cast<CompletionQueue*>(self)->take_next(); };
  end_poll = [](Self self) { static_cast<CompletionQueue*>(self)->reader_mutex_.unlock(); };
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
