#include "ibverbs/shared_receive_queues.h"

#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "ibverbs/result.h"

namespace rdmakit::ibverbs {
namespace {

struct KnownQueues {
  std::mutex mutex;
  std::map<ibv_srq*, ibv_srq_attr> queues;
};

KnownQueues& known_queues() {
  static auto* all = new KnownQueues;  // lives until exit: threads use it
  return *all;
}

}  // namespace

ibv_srq* create_srq(const Libraries& lib, ibv_pd* pd, ibv_srq_init_attr* attributes) {
  ibv_srq* srq = lib.create_srq(pd, attributes);
  if (srq == nullptr) return nullptr;
  const std::lock_guard lock(known_queues().mutex);
  known_queues().queues[srq] = {attributes->attr.max_wr, attributes->attr.max_sge, 0};
  return srq;
}

int modify_srq(const Libraries& lib, ibv_srq* srq, ibv_srq_attr* attributes, int mask) {
  // Locked meanwhile: the event that a new limit raises must not be noted before the limit.
  const std::lock_guard lock(known_queues().mutex);
  const int error = errno_of(lib.modify_srq(srq, attributes, mask));
  if (error != 0) return error;
  ibv_srq_attr& kept = known_queues().queues[srq];
  if ((mask & IBV_SRQ_LIMIT) != 0) kept.srq_limit = attributes->srq_limit;
  if ((mask & IBV_SRQ_MAX_WR) != 0) kept.max_wr = attributes->max_wr;
  return 0;
}

int query_srq(const Libraries& lib, ibv_srq* srq, ibv_srq_attr* attributes) {
  const int error = errno_of(lib.query_srq(srq, attributes));
  if (error != EOPNOTSUPP) return error;
  const std::lock_guard lock(known_queues().mutex);
  *attributes = known_queues().queues[srq];
  return 0;
}

int destroy_srq(const Libraries& lib, ibv_srq* srq) {
  // Forgotten first: another thread may be given the same address as soon as this one is destroyed.
  std::unique_lock lock(known_queues().mutex);
  auto kept = known_queues().queues.extract(srq);
  lock.unlock();
  const int error = errno_of(lib.destroy_srq(srq));
  if (error == 0 || kept.empty()) return error;
  lock.lock();
  known_queues().queues.insert(std::move(kept));
  return error;
}

void note_limit_reached(ibv_srq* srq) {
  const std::lock_guard lock(known_queues().mutex);
  if (const auto found = known_queues().queues.find(srq); found != known_queues().queues.end())
    found->second.srq_limit = 0;
}

}  // namespace rdmakit::ibverbs
