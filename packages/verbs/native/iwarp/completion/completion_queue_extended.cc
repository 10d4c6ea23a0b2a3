// ibv_cq_ex: one completion after another, read field by field, and when it was added.
#include <cerrno>
#include <new>

#include "base/clock.h"
#include "base/null_with_errno.h"
#include "iwarp/completion/completion_channel.h"
#include "iwarp/completion/completion_queue.h"

namespace rdmakit::iwarp {
namespace {

CompletionQueue* self(ibv_cq_ex* cq) { return static_cast<CompletionQueue*>(cq); }

}  // namespace

std::unique_ptr<CompletionQueue> CompletionQueue::create_extended(ibv_context* context,
                                                                  const ibv_cq_init_attr_ex& attributes,
                                                                  Progress progress) {
  constexpr uint64_t kKnown = IBV_WC_STANDARD_FLAGS | kStampFlags;
  const bool has_flags = attributes.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS;
  if (attributes.cqe < 1 || attributes.cqe > static_cast<uint32_t>(kMaxCompletions))
    return null_with_errno(EINVAL);
  if ((attributes.wc_flags & ~kKnown) || (attributes.comp_mask & ~uint32_t{IBV_CQ_INIT_ATTR_MASK_FLAGS}) ||
      (has_flags && (attributes.flags & ~uint32_t{IBV_CREATE_CQ_ATTR_SINGLE_THREADED}))) {
    return null_with_errno(EOPNOTSUPP);
  }
  try {
    auto queue = std::make_unique<CompletionQueue>(
        context, static_cast<int>(attributes.cqe), attributes.cq_context,
        static_cast<CompletionChannel*>(attributes.channel), progress, attributes.wc_flags & kStampFlags);
    queue->extend(attributes.wc_flags);
    return queue;
  } catch (const std::bad_alloc&) {
    return null_with_errno(ENOMEM);
  }
}

// Hot path of who reads extended completions.
void CompletionQueue::stamp(Stamp& stamp) const {
  if (monotonic_wanted_) stamp.monotonic_ns = now_ns();
  if (wallclock_wanted_) stamp.wallclock_ns = now_ns(CLOCK_REALTIME);
}

// 0, ENOENT when there is none, EIO after an overrun.
int CompletionQueue::read_one() {
  const int count = poll(1, &current_, &current_stamp_);
  if (count <= 0) return count == 0 ? ENOENT : EIO;
  wr_id = current_.wr_id;
  status = current_.status;
  return 0;
}

void CompletionQueue::extend(uint64_t flags) {
  set_readers(flags);
  start_poll = [](ibv_cq_ex* cq, ibv_poll_cq_attr* attributes) {
    if (attributes != nullptr && attributes->comp_mask != 0) return EINVAL;
    CompletionQueue* own = self(cq);
    own->reader_mutex_.lock();  // until end_poll, unless there is nothing to read
    const int error = own->read_one();
    if (error != 0) own->reader_mutex_.unlock();
    return error;
  };
  next_poll = [](ibv_cq_ex* cq) { return self(cq)->read_one(); };
  end_poll = [](ibv_cq_ex* cq) { self(cq)->reader_mutex_.unlock(); };
  if (flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
    read_completion_ts = [](ibv_cq_ex* cq) { return self(cq)->current_stamp_.monotonic_ns; };
  if (flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
    read_completion_wallclock_ns = [](ibv_cq_ex* cq) { return self(cq)->current_stamp_.wallclock_ns; };
}
// End of hot path.

}  // namespace rdmakit::iwarp
