// The part of a software provider that only finds the object behind an ibv_* struct and calls it. Memory,
// devices and the particulars of each object are the provider's own.
#pragma once

#include <cerrno>
#include <functional>
#include <memory>
#include <new>
#include <utility>

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

template <typename CompletionChannel, typename CompletionQueue, typename QueuePair>
class ProviderBase : public Provider {
 public:
  int close_device(ibv_context*) override { return 0; }

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
        }};
    return &verbs;
  }
  void tear_down(std::function<void()> work, bool wait) override { teardown_.run(std::move(work), wait); }

 protected:
  // `teardown`: how long its callers wait, and how many may be late (teardown.h).
  template <typename... Patience>
  explicit ProviderBase(Patience... patience) : teardown_(patience...) {}

 private:
  Teardown teardown_;
};

}  // namespace rdmakit::software
