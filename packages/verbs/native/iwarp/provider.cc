// The provider's face: each verb finds the object behind the ibv_* struct and lets it do the work.
#include "provider/provider.h"

#include <cerrno>

#include "base/null_with_errno.h"
#include "iwarp/completion/completion_channel.h"
#include "iwarp/completion/completion_queue.h"
#include "iwarp/device.h"
#include "iwarp/device_events.h"
#include "iwarp/memory/memory_table.h"
#include "iwarp/memory/protection_domain.h"
#include "iwarp/queue-pair/queue_pair.h"
#include "iwarp/queue-pair/shared_receive_queue.h"
#include "iwarp/setup/connection.h"
#include "software/provider_base.h"

namespace rdmakit {
namespace {

using namespace iwarp;
using software::destroy;
using software::make;
using software::MemoryRegion;

using Base = software::ProviderBase<CompletionChannel, CompletionQueue, QueuePair, ProtectionDomain>;

class IwarpProvider final : public Base {
 public:
  IwarpProvider() : Base(std::chrono::milliseconds(20)) {}

  const char* name() const override { return "iwarp"; }
  int available(std::string&) override { return 0; }

  int list_devices(std::vector<DeviceInfo>& devices) override {
    devices.push_back({kDeviceName, "iwarp", "iWARP", 0});
    return 0;
  }
  ibv_context* open_device(const std::string& name) override {
    errno = name == kDeviceName ? ProgressThread::instance().start() : ENODEV;
    return errno == 0 ? device_context() : nullptr;
  }
  int query_device(ibv_context*, ibv_device_attr* attributes) override {
    return describe_device(*attributes);
  }
  int query_port(ibv_context*, uint8_t port, ibv_port_attr* attributes) override {
    return describe_port(port, *attributes);
  }
  int query_gids(ibv_context*, uint8_t port, std::vector<GidEntry>& entries) override {
    return list_gids(port, entries);
  }
  uint32_t capabilities(ibv_context*) override {
    return kCapabilityWriteWithImmediate | kCapabilitySendWithImmediate | kCapabilityAtomics |
           kCapabilityMemoryWindow | kCapabilitySharedReceiveQueue | kCapabilityTimestamps |
           kCapabilityResize | kCapabilityReregister;
  }

  uint64_t watch_async_events(ibv_context*, AsyncSink sink) override {
    return DeviceEvents::instance().watchers().watch(std::move(sink));
  }
  void unwatch_async_events(ibv_context*, uint64_t token) override {
    DeviceEvents::instance().watchers().unwatch(token);
  }

  ibv_pd* alloc_pd(ibv_context* context) override;
  int dereg_mr(ibv_mr* mr) override;
  ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) override;
  int dealloc_mw(ibv_mw* mw) override;

  ibv_cq* create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                    Progress progress) override;
  ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes, Progress progress) override {
    return CompletionQueue::create_extended(context, *attributes, progress).release();
  }
  ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes) override {
    return SharedReceiveQueue::create(pd, attributes).release();
  }
  int modify_srq(ibv_srq* srq, ibv_srq_attr* attributes, int mask) override {
    return static_cast<SharedReceiveQueue*>(srq)->modify(*attributes, mask);
  }
  int query_srq(ibv_srq* srq, ibv_srq_attr* attributes) override {
    static_cast<SharedReceiveQueue*>(srq)->query(*attributes);
    return 0;
  }
  int destroy_srq(ibv_srq* srq) override {
    SharedReceiveQueue* own = static_cast<SharedReceiveQueue*>(srq);
    if (own->in_use()) return EBUSY;
    destroy(own);
    return 0;
  }
  int resize_cq(ibv_cq* cq, int entries) override { return CompletionQueue::of(cq)->resize(entries); }

  int destroy_qp(ibv_qp* qp) override;

  std::shared_ptr<ConnectionId> create_id() override {
    errno = ProgressThread::instance().start();
    return errno == 0 ? Connection::create() : nullptr;
  }

 private:
  uint32_t add_key(ibv_pd* pd, void* address, size_t length, int access) override {
    const uint32_t stag = MemoryTable::instance().add(pd, address, length, access);
    if (stag == 0) errno = ENOMEM;
    return stag;
  }
  int remove_key(ibv_pd*, uint32_t key) override { return MemoryTable::instance().remove(key) ? 0 : EBUSY; }
};

ibv_pd* IwarpProvider::alloc_pd(ibv_context* context) {
  ProtectionDomain* pd = make<ProtectionDomain>();
  if (pd != nullptr) pd->context = context;
  return pd;
}

int IwarpProvider::dereg_mr(ibv_mr* mr) {
  if (const int error = remove_key(mr->pd, mr->lkey); error != 0) return error;
  static_cast<ProtectionDomain*>(mr->pd)->users--;
  destroy(static_cast<MemoryRegion*>(mr));
  return 0;
}

ibv_mw* IwarpProvider::alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (type != IBV_MW_TYPE_2) return null_with_errno(EOPNOTSUPP);
  MemoryWindow* mw = make<MemoryWindow>();
  if (mw == nullptr) return nullptr;
  mw->context = pd->context;
  mw->pd = pd;
  mw->type = type;
  mw->rkey = MemoryTable::instance().add_window(pd);
  if (mw->rkey == 0) {
    destroy(mw);
    return null_with_errno(ENOMEM);
  }
  static_cast<ProtectionDomain*>(pd)->users++;
  return mw;
}

int IwarpProvider::dealloc_mw(ibv_mw* mw) {
  MemoryTable::instance().remove_window(mw->rkey);
  static_cast<ProtectionDomain*>(mw->pd)->users--;
  destroy(static_cast<MemoryWindow*>(mw));
  return 0;
}

ibv_cq* IwarpProvider::create_cq(ibv_context* context, int entries, void* cq_context,
                                 ibv_comp_channel* channel, Progress progress) {
  if (entries < 1 || entries > kMaxCompletions) return null_with_errno(EINVAL);
  CompletionQueue* cq =
      make<CompletionQueue>(context, entries, cq_context, static_cast<CompletionChannel*>(channel), progress);
  return cq == nullptr ? nullptr : cq->as_cq();
}

int IwarpProvider::destroy_qp(ibv_qp* qp) {
  QueuePair* own = static_cast<QueuePair*>(qp);
  if (const std::shared_ptr<Connection> connection = own->connection().lock()) connection->forget_qp(own);
  own->retire();
  destroy(own);
  return 0;
}

}  // namespace

Provider& iwarp_provider() {
  static IwarpProvider* provider = std::make_unique<IwarpProvider>().release();
  return *provider;
}

}  // namespace rdmakit
