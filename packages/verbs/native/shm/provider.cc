// The provider's face: each verb finds the object behind the ibv_* struct and lets it do the work.
#include "provider/provider.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

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

using Base = software::ProviderBase<CompletionChannel, CompletionQueue, QueuePair>;

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
  int dealloc_pd(ibv_pd* pd) override;
  ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, int access) override;
  int dereg_mr(ibv_mr* mr) override { return deregister(mr, PeerCopies::awaited); }
  // A peer has a mapping of its own: its copy continues in pages that no other memory shares.
  int dereg_mr_to_unmap(ibv_mr* mr) override { return deregister(mr, PeerCopies::left); }
  int rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t length, int access) override;

  ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) override;
  int dealloc_mw(ibv_mw* mw) override;

  ibv_cq* create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                    Progress progress) override;
  ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes, Progress) override;
  int resize_cq(ibv_cq* cq, int entries) override;

  int destroy_qp(ibv_qp* qp) override;

  bool peers_map_memory() const override { return true; }
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
};

using software::kMaxCompletions;

int ShmProvider::query_device(ibv_context*, ibv_device_attr* attributes) {
  *attributes = ibv_device_attr{};
  std::strncpy(attributes->fw_ver, "1", sizeof attributes->fw_ver);
  attributes->max_mr_size = UINT64_MAX;
  attributes->page_size_cap = 4096;
  attributes->max_qp = 65536;
  attributes->max_qp_wr = kMaxWorkRequests;
  attributes->max_sge = kMaxSge;
  attributes->max_sge_rd = kMaxSge;
  attributes->max_cq = 65536;
  attributes->max_cqe = kMaxCompletions;
  attributes->max_mr = kMaxRegions - 1;
  attributes->max_mw = kMaxRegions - 1;
  attributes->device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  attributes->max_pd = 65536;
  // Reads and atomics are done when they are posted, so there is no bound; this is what the field holds.
  attributes->max_qp_rd_atom = UINT8_MAX;
  attributes->max_qp_init_rd_atom = UINT8_MAX;
  attributes->max_res_rd_atom = UINT8_MAX * attributes->max_qp;
  attributes->atomic_cap = IBV_ATOMIC_GLOB;  // they are the CPU's own
  attributes->phys_port_cnt = 1;
  return 0;
}

int ShmProvider::query_port(ibv_context*, uint8_t port, ibv_port_attr* attributes) {
  if (port != 1) return EINVAL;
  *attributes = ibv_port_attr{};
  attributes->state = IBV_PORT_ACTIVE;
  attributes->max_mtu = IBV_MTU_4096;
  attributes->active_mtu = IBV_MTU_4096;
  attributes->max_msg_sz = static_cast<uint32_t>(kMaxMessage);
  attributes->pkey_tbl_len = 1;
  attributes->phys_state = 5;  // LinkUp
  attributes->link_layer = IBV_LINK_LAYER_UNSPECIFIED;
  return 0;
}

ibv_pd* ShmProvider::alloc_pd(ibv_context* context) { return ProtectionDomain::create(context).release(); }

int ShmProvider::dealloc_pd(ibv_pd* pd) {
  ProtectionDomain* own = static_cast<ProtectionDomain*>(pd);
  if (own->users != 0) return EBUSY;
  destroy(own);
  return 0;
}

// ibv_reg_mr(3): remote write and remote atomic need local write.
bool can_register(const void* address, size_t length, int access) {
  constexpr int kWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  constexpr int kKnown = IBV_ACCESS_LOCAL_WRITE | kWrites | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND |
                         IBV_ACCESS_RELAXED_ORDERING;
  const uint64_t start = reinterpret_cast<uint64_t>(address);
  return !(access & ~kKnown) && start + length >= start &&
         (!(access & kWrites) || (access & IBV_ACCESS_LOCAL_WRITE));
}

ibv_mr* ShmProvider::reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  const uint64_t start = reinterpret_cast<uint64_t>(address);
  if (!can_register(address, length, access)) {
    errno = EINVAL;
    return nullptr;
  }
  MemoryRegion* mr = make<MemoryRegion>();
  if (mr == nullptr) return nullptr;
  ProtectionDomain* own = static_cast<ProtectionDomain*>(pd);
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = address;
  mr->length = length;
  mr->access = access;
  mr->lkey = mr->rkey = own->add(start, length, access);
  if (mr->lkey == 0) {
    const int error = errno;
    destroy(mr);
    errno = error;
    return nullptr;
  }
  own->users++;
  return mr;
}

int ShmProvider::deregister(ibv_mr* mr, PeerCopies copies) {
  ProtectionDomain* pd = static_cast<ProtectionDomain*>(mr->pd);
  const int error = pd->remove(mr->lkey, copies);
  if (error == EBUSY) return error;
  pd->users--;
  destroy(static_cast<MemoryRegion*>(mr));
  return error;
}

// A new region, then the end of the old one: there is no moment without one of the two, and when the new
// one cannot be had nothing has changed.
int ShmProvider::rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t length, int access) {
  constexpr int kKnown =
      IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
  MemoryRegion* own = static_cast<MemoryRegion*>(mr);
  if (flags == 0 || (flags & ~kKnown) || ((flags & IBV_REREG_MR_CHANGE_PD) && pd == nullptr)) return EINVAL;
  if (!(flags & IBV_REREG_MR_CHANGE_TRANSLATION)) {
    address = mr->addr;
    length = mr->length;
  }
  if (!(flags & IBV_REREG_MR_CHANGE_PD)) pd = mr->pd;
  if (!(flags & IBV_REREG_MR_CHANGE_ACCESS)) access = own->access;
  if (!can_register(address, length, access)) return EINVAL;
  ProtectionDomain* before = static_cast<ProtectionDomain*>(mr->pd);
  ProtectionDomain* after = static_cast<ProtectionDomain*>(pd);
  const uint32_t key = after->add(reinterpret_cast<uint64_t>(address), length, access);
  if (key == 0) return errno;
  const int error = before->remove(mr->lkey, PeerCopies::awaited);
  if (error == EBUSY) {  // windows are bound to it
    after->remove(key, PeerCopies::awaited);
    return EINVAL;
  }
  after->users++;
  before->users--;
  mr->pd = pd;
  mr->addr = address;
  mr->length = length;
  mr->lkey = mr->rkey = key;
  own->access = access;
  return error;
}

ibv_mw* ShmProvider::alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (type == IBV_MW_TYPE_2) return static_cast<ProtectionDomain*>(pd)->add_window();
  errno = EOPNOTSUPP;
  return nullptr;
}

int ShmProvider::dealloc_mw(ibv_mw* mw) {
  return static_cast<ProtectionDomain*>(mw->pd)->remove_window(static_cast<MemoryWindow*>(mw));
}

// Both kinds of progress are the same here: the posting thread moves the data.
ibv_cq* ShmProvider::create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                               Progress) {
  if (entries < 1 || entries > kMaxCompletions) {
    errno = EINVAL;
    return nullptr;
  }
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
  if (attributes->cqe < 1 || attributes->cqe > kMaxCompletions || attributes->comp_vector >= 1) {
    errno = EINVAL;
    return nullptr;
  }
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
