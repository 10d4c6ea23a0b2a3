// The provider's face: each verb finds the object behind the ibv_* struct and lets it do the work.
#include "provider/provider.h"

#include <cerrno>

#include "base/null_with_errno.h"
#include "shm/completion/completion_channel.h"
#include "shm/completion/completion_queue.h"
#include "shm/device.h"
#include "shm/mapping/segment.h"
#include "shm/mapping/shared_mapping.h"
#include "shm/memory/protection_domain.h"
#include "shm/queue-pair/queue_pair.h"
#include "shm/setup/connection.h"
#include "software/device.h"
#include "software/provider_base.h"

namespace rdmakit {
namespace {

using namespace shm;
using software::destroy;
using software::make;
using software::MemoryRegion;

using Base = software::ProviderBase<CompletionChannel, CompletionQueue, QueuePair, ProtectionDomain>;

class ShmProvider final : public Base {
 public:
  // This many may be late, each with a peer that is stopped in the middle of a copy.
  ShmProvider() : Base(std::chrono::milliseconds(20), 256) {}

  const char* name() const override { return "shm"; }
  int available(std::string& why) override { return SharedMapping::available(why); }

  int list_devices(std::vector<DeviceInfo>& devices) override {
    devices.push_back({kDeviceName, "shm", "shared memory", 0});
    return 0;
  }
  ibv_context* open_device(const std::string& name) override {
    errno = name == kDeviceName ? ProgressThread::instance().start() : ENODEV;
    return errno == 0 ? device_context() : nullptr;
  }
  int query_device(ibv_context* context, ibv_device_attr* attributes) override;
  int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) override;
  uint32_t capabilities(ibv_context*) override {
    return kCapabilityWriteWithImmediate | kCapabilitySendWithImmediate | kCapabilityAtomics |
           kCapabilityMemoryWindow | kCapabilityTimestamps | kCapabilityResize | kCapabilityReregister;
  }
  // Addresses are paths of sockets: there is no GID.
  int query_gids(ibv_context*, uint8_t port, std::vector<GidEntry>&) override {
    return port == 1 ? 0 : EINVAL;
  }

  uint64_t watch_async_events(ibv_context*, AsyncSink sink) override {
    return async_events().watch(std::move(sink));
  }
  void unwatch_async_events(ibv_context*, uint64_t token) override { async_events().unwatch(token); }

  ibv_pd* alloc_pd(ibv_context* context) override;
  int dereg_mr(ibv_mr* mr) override { return deregister(mr, PeerCopies::awaited); }
  // A peer has a mapping of its own: its copy continues in pages that no other memory shares.
  int dereg_mr_to_unmap(ibv_mr* mr) override { return deregister(mr, PeerCopies::left); }

  ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) override;
  int dealloc_mw(ibv_mw* mw) override;

  ibv_cq* create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                    Progress progress) override;
  ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes, Progress) override;
  int resize_cq(ibv_cq* cq, int entries) override;

  int destroy_qp(ibv_qp* qp) override;

  void* map_memory(size_t length, const MemoryOptions& options) override {
    return Segments::instance().map(length, options);
  }
  void unmap_memory(void* address, size_t, const MemoryOptions&) override {
    Segments::instance().unmap(address);
  }

  std::shared_ptr<ConnectionId> create_id() override {
    errno = ProgressThread::instance().start();
    return errno == 0 ? Connection::create() : nullptr;
  }

 private:
  int deregister(ibv_mr* mr, PeerCopies copies);
  uint32_t add_key(ibv_pd* pd, void* address, size_t length, int access) override {
    return static_cast<ProtectionDomain*>(pd)->add(reinterpret_cast<uint64_t>(address), length, access);
  }
  int remove_key(ibv_pd* pd, uint32_t key) override {
    return static_cast<ProtectionDomain*>(pd)->remove(key, PeerCopies::awaited);
  }
};

using software::kMaxCompletions;

int ShmProvider::query_device(ibv_context*, ibv_device_attr* attributes) {
  // Reads and atomics are done when they are posted, so there is no bound; this is what the field holds.
  *attributes = software::device_attributes(kMaxRegions - 1, UINT8_MAX);
  return 0;
}

int ShmProvider::query_port(ibv_context*, uint8_t port, ibv_port_attr* attributes) {
  if (port != 1) return EINVAL;
  *attributes = software::port_attributes(IBV_LINK_LAYER_UNSPECIFIED);
  return 0;
}

ibv_pd* ShmProvider::alloc_pd(ibv_context* context) { return ProtectionDomain::create(context).release(); }

int ShmProvider::deregister(ibv_mr* mr, PeerCopies copies) {
  ProtectionDomain* pd = static_cast<ProtectionDomain*>(mr->pd);
  const int error = pd->remove(mr->lkey, copies);
  if (error == EBUSY) return error;
  pd->users--;
  destroy(static_cast<MemoryRegion*>(mr));
  return error;
}

ibv_mw* ShmProvider::alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (type != IBV_MW_TYPE_2) return null_with_errno(EOPNOTSUPP);
  return static_cast<ProtectionDomain*>(pd)->add_window();
}

int ShmProvider::dealloc_mw(ibv_mw* mw) {
  return static_cast<ProtectionDomain*>(mw->pd)->remove_window(static_cast<MemoryWindow*>(mw));
}

// Both kinds of progress are the same here: the posting thread moves the data.
ibv_cq* ShmProvider::create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                               Progress) {
  if (entries < 1 || entries > kMaxCompletions) return null_with_errno(EINVAL);
  CompletionQueue* made = make<CompletionQueue>(context, entries, cq_context,
                                                static_cast<CompletionChannel*>(channel), uint64_t{0});
  return made == nullptr ? nullptr : made->as_cq();
}

ibv_cq_ex* ShmProvider::create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes, Progress) {
  constexpr uint64_t kKnown = uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                              IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  const uint32_t flags = attributes->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attributes->flags : 0;
  if ((attributes->wc_flags & ~kKnown) || (attributes->comp_mask & ~uint32_t{IBV_CQ_INIT_ATTR_MASK_FLAGS}) ||
      (flags & ~uint32_t{IBV_CREATE_CQ_ATTR_SINGLE_THREADED})) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (attributes->cqe < 1 || attributes->cqe > kMaxCompletions || attributes->comp_vector >= 1)
    return null_with_errno(EINVAL);
  return make<CompletionQueue>(context, static_cast<int>(attributes->cqe), attributes->cq_context,
                               static_cast<CompletionChannel*>(attributes->channel), attributes->wc_flags);
}

int ShmProvider::resize_cq(ibv_cq* cq, int entries) {
  if (entries < 1 || entries > kMaxCompletions) return EINVAL;
  return CompletionQueue::of(cq)->resize(entries);
}

int ShmProvider::destroy_qp(ibv_qp* qp) {
  QueuePair* own = static_cast<QueuePair*>(qp);
  if (const std::shared_ptr<Connection> connection = own->connection().lock()) connection->forget_qp(own);
  const bool at_rest = own->retire();
  destroy(own);
  return at_rest ? 0 : ETIMEDOUT;
}

}  // namespace

ibv_context* shm::device_context() {
  using Device = software::Device<CompletionQueue, QueuePair>;
  static Device* device =
      std::make_unique<Device>(kDeviceName, IBV_NODE_UNSPECIFIED, IBV_TRANSPORT_UNSPECIFIED).release();
  return &device->context;
}

software::AsyncEvents& shm::async_events() {
  static software::AsyncEvents* events = std::make_unique<software::AsyncEvents>().release();
  return *events;
}

Provider& shm_provider() {
  static ShmProvider* provider = std::make_unique<ShmProvider>().release();
  return *provider;
}

}  // namespace rdmakit
