#include "software/completion_queue.h"

#include <cstddef>

namespace rdmakit::software {

// ibv_cq_ex_to_cq() depends on this.
static_assert(offsetof(ibv_cq_ex, context) == offsetof(ibv_cq, context));
static_assert(offsetof(ibv_cq_ex, channel) == offsetof(ibv_cq, channel));
static_assert(offsetof(ibv_cq_ex, cq_context) == offsetof(ibv_cq, cq_context));
static_assert(offsetof(ibv_cq_ex, cqe) == offsetof(ibv_cq, cqe));
static_assert(offsetof(ibv_cq_ex, comp_events_completed) == offsetof(ibv_cq, comp_events_completed));

CompletionQueueBase::CompletionQueueBase(ibv_context* context, void* cq_context, ibv_comp_channel* channel)
    : ibv_cq_ex{} {
  this->context = context;
  this->channel = channel;
  this->cq_context = cq_context;
  pthread_mutex_init(&mutex, nullptr);
  pthread_cond_init(&cond, nullptr);
}

CompletionQueueBase::~CompletionQueueBase() {
  pthread_cond_destroy(&cond);
  pthread_mutex_destroy(&mutex);
}

void CompletionQueueBase::wait_for_acknowledgements() {
  pthread_mutex_lock(&mutex);
  while (comp_events_completed != events_taken) pthread_cond_wait(&cond, &mutex);
  pthread_mutex_unlock(&mutex);
}

void CompletionQueueBase::acknowledge(unsigned count) {
  pthread_mutex_lock(&mutex);
  comp_events_completed += count;
  pthread_cond_signal(&cond);
  pthread_mutex_unlock(&mutex);
}

void CompletionQueueBase::set_readers(uint64_t flags) {
  using Self = ibv_cq_ex*;
  static constexpr auto current = [](Self self) -> const ibv_wc& {
    return static_cast<CompletionQueueBase*>(self)->current_;
  };
  read_opcode = [](Self self) { return current(self).opcode; };
  read_vendor_err = [](Self self) { return current(self).vendor_err; };
  read_wc_flags = [](Self self) { return current(self).wc_flags; };
  // Fields that were not requested stay null, as in libibverbs.
  if (flags & IBV_WC_EX_WITH_BYTE_LEN) read_byte_len = [](Self self) { return current(self).byte_len; };
  if (flags & IBV_WC_EX_WITH_IMM) read_imm_data = [](Self self) { return current(self).imm_data; };
  if (flags & IBV_WC_EX_WITH_QP_NUM) read_qp_num = [](Self self) { return current(self).qp_num; };
  if (flags & IBV_WC_EX_WITH_SRC_QP) read_src_qp = [](Self self) { return current(self).src_qp; };
  // Fields of InfiniBand's addressing: 0 here.
  if (flags & IBV_WC_EX_WITH_SLID) read_slid = [](Self self) { return uint32_t{current(self).slid}; };
  if (flags & IBV_WC_EX_WITH_SL) read_sl = [](Self self) { return current(self).sl; };
  if (flags & IBV_WC_EX_WITH_DLID_PATH_BITS)
    read_dlid_path_bits = [](Self self) { return current(self).dlid_path_bits; };
}

// Hot path of who sleeps for events.
CompletionQueueBase* EventList::take() {
  CompletionQueueBase* taken = first_;
  if (taken == nullptr) return nullptr;
  taken->events--;
  taken->events_taken++;
  first_ = taken->next_with_events;
  if (first_ == nullptr) last_ = nullptr;
  if (taken->events > 0) append(taken);  // to the end: queues take turns
  return taken;
}
// End of hot path.

void EventList::remove(CompletionQueueBase* queue) {
  CompletionQueueBase* before = nullptr;
  for (CompletionQueueBase* at = first_; at != nullptr; before = at, at = at->next_with_events) {
    if (at != queue) continue;
    (before == nullptr ? first_ : before->next_with_events) = queue->next_with_events;
    if (last_ == queue) last_ = before;
    break;
  }
  queue->events = 0;
}

}  // namespace rdmakit::software
