// The part of a software provider that only finds the object behind an ibv_* struct and calls it. Memory,
// devices and the particulars of each object are the provider's own.
#pragma once

#include <cerrno>
#include <functional>
#include <memory>
#include <new>
#include <utility>

#include "base/null_with_errno.h"
#include "provider/provider.h"
#include "provider/teardown.h"

namespace rdmakit::software {

// Null and ENOMEM where there is no memory.
template <typename Object, typename... Arguments>
Object* make(Arguments&&... arguments) {
  try {
    return std::make_unique<Object>(std::forward<Arguments>(arguments)...).release();
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return nullptr;
  }
}

template <typename Object>
void destroy(Object* object) {
  std::unique_ptr<Object>(object).reset();
}

struct MemoryRegion : ibv_mr {
  int access = 0;
};

inline bool may_register(const void* address, size_t length, int access) {
  constexpr int kRemoteChange = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  constexpr int kKnown = IBV_ACCESS_LOCAL_WRITE | kRemoteChange | IBV_ACCESS_REMOTE_READ |
                         IBV_ACCESS_MW_BIND | IBV_ACCESS_RELAXED_ORDERING;
  const bool wraps = reinterpret_cast<uintptr_t>(address) + length < length;
  // ibv_reg_mr(3): remote write and remote atomic need local write.
  const bool unwritable = (access & kRemoteChange) && !(access & IBV_ACCESS_LOCAL_WRITE);
  return !(access & ~kKnown) && !wraps && !unwritable;
}

template <typename CompletionChannel, typename CompletionQueue, typename QueuePair, typename ProtectionDomain>
class ProviderBase : public Provider {
 public:
  int close_device(ibv_context*) override { return 0; }

  int dealloc_pd(ibv_pd* pd) override {
    ProtectionDomain* own = static_cast<ProtectionDomain*>(pd);
    if (own->users != 0) return EBUSY;
    destroy(own);
    return 0;
  }

  ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, int access) override {
    if (!may_register(address, length, access)) return null_with_errno(EINVAL);
    MemoryRegion* mr = make<MemoryRegion>();
    if (mr == nullptr) return nullptr;
    const uint32_t key = add_key(pd, address, length, access);
    if (key == 0) {
      const int error = errno;
      destroy(mr);
      return null_with_errno(error);
    }
    mr->context = pd->context;
    describe(*mr, pd, address, length, access, key);
    static_cast<ProtectionDomain*>(pd)->users++;
    return mr;
  }

  // A new key, then the end of the old one, whose holders lose access: there is no moment without one of the
  // two, and when the new one cannot be had nothing has changed.
  int rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t length, int access) override {
    constexpr int kKnown =
        IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    MemoryRegion* own = static_cast<MemoryRegion*>(mr);
    if (flags == 0 || (flags & ~kKnown) || ((flags & IBV_REREG_MR_CHANGE_PD) && pd == nullptr)) return EINVAL;
    if (!(flags & IBV_REREG_MR_CHANGE_TRANSLATION)) {
      address = own->addr;
      length = own->length;
    }
    if (!(flags & IBV_REREG_MR_CHANGE_PD)) pd = own->pd;
    if (!(flags & IBV_REREG_MR_CHANGE_ACCESS)) access = own->access;
    if (!may_register(address, length, access)) return EINVAL;
    const uint32_t key = add_key(pd, address, length, access);
    if (key == 0) return errno;
    const int error = remove_key(own->pd, own->lkey);
    if (error != 0 && error != ETIMEDOUT) {
      remove_key(pd, key);
      return error;
    }
    static_cast<ProtectionDomain*>(own->pd)->users--;
    static_cast<ProtectionDomain*>(pd)->users++;
    describe(*own, pd, address, length, access, key);
    return error;
  }

  ibv_comp_channel* create_comp_channel(ibv_context* context) override {
    CompletionChannel* channel = make<CompletionChannel>(context);
    if (channel == nullptr || channel->ok()) return channel;
    destroy(channel);
    errno = EMFILE;
    return nullptr;
  }
  int destroy_comp_channel(ibv_comp_channel* channel) override {
    CompletionChannel* own = static_cast<CompletionChannel*>(channel);
    if (own->in_use()) return EBUSY;
    destroy(own);
    return 0;
  }
  int destroy_cq(ibv_cq* cq) override {
    CompletionQueue* own = CompletionQueue::of(cq);
    if (own->users != 0) return EBUSY;
    destroy(own);
    return 0;
  }

  ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) override {
    return QueuePair::create(pd, attributes).release();
  }
  int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override {
    return static_cast<QueuePair*>(qp)->modify(attributes, mask);
  }
  int query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int, ibv_qp_init_attr* init) override {
    static_cast<QueuePair*>(qp)->query(attributes, init);
    return 0;
  }

  const DataPathVerbs* data_path_verbs() const override {
    static constexpr DataPathVerbs verbs{
        [](ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
          return static_cast<CompletionChannel*>(channel)->take(cq, cq_context);
        },
        [](ibv_cq* cq, unsigned int count) { CompletionQueue::of(cq)->acknowledge(count); },
        [](ibv_qp* qp) {
          static_cast<QueuePair*>(qp)->fail({});
          return 0;
        },
        [](ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad, const LentBytes& lent) {
          return static_cast<QueuePair*>(qp)->post_send(request, bad, &lent);
        }};
    return &verbs;
  }
  void tear_down(std::function<void()> work, bool wait) override { teardown_.run(std::move(work), wait); }

 protected:
  // `teardown`: how long its callers wait, and how many may be late (teardown.h).
  template <typename... Patience>
  explicit ProviderBase(Patience... patience) : teardown_(patience...) {}

  // The key of a region (lkey and rkey are the same), or 0 and errno; and its end: 0, or ETIMEDOUT when it
  // has ended and a stopped peer may still be copying, or another error while windows are bound to the
  // region.
  virtual uint32_t add_key(ibv_pd* pd, void* address, size_t length, int access) = 0;
  virtual int remove_key(ibv_pd* pd, uint32_t key) = 0;

 private:
  static void describe(MemoryRegion& mr, ibv_pd* pd, void* address, size_t length, int access, uint32_t key) {
    mr.pd = pd;
    mr.addr = address;
    mr.length = length;
    mr.access = access;
    mr.lkey = mr.rkey = key;
  }

  Teardown teardown_;
};

}  // namespace rdmakit::software
