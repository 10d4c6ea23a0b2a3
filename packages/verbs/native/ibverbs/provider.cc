// Provider `ibverbs`: any device that libibverbs knows (mlx5, irdma, EFA, rxe, siw).
#include "provider/provider.h"

#include <endian.h>
#include <fcntl.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <set>

#include "base/null_with_errno.h"
#include "ibverbs/async_events.h"
#include "ibverbs/capabilities.h"
#include "ibverbs/connection.h"
#include "ibverbs/gids.h"
#include "ibverbs/iwarp_states.h"
#include "ibverbs/libraries.h"
#include "ibverbs/reregister.h"
#include "ibverbs/result.h"
#include "ibverbs/shared_receive_queues.h"
#include "provider/teardown.h"

namespace rdmakit {
namespace ibverbs {
namespace {

const Libraries* loaded() {
  std::string why;
  return libraries(why);
}

int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  return loaded()->get_cq_event(channel, cq, cq_context) == 0 ? 0 : errno;
}

void ack_cq_events(ibv_cq* cq, unsigned int count) { loaded()->ack_cq_events(cq, count); }

int move_to_error(ibv_qp* qp) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  return modify_qp(*loaded(), qp, &attributes, IBV_QP_STATE);
}

constexpr DataPathVerbs kDataPathVerbs{get_cq_event, ack_cq_events, move_to_error};

const char* transport_name(ibv_context* context, const Libraries& lib) {
  if (context->device->transport_type == IBV_TRANSPORT_IWARP) return "iWARP";
  _compat_ibv_port_attr* attributes = nullptr;
  ibv_port_attr port{};
  attributes = reinterpret_cast<_compat_ibv_port_attr*>(&port);
  if (lib.query_port(context, 1, attributes) == 0 && port.link_layer == IBV_LINK_LAYER_ETHERNET)
    return "RoCE";
  return "InfiniBand";
}

// The flags to register with so that `access` holds on this device.
int access_on(ibv_context* context, int access) {
  // iWARP places the response of an RDMA READ as a remote write into the sink (RFC 5040 §5.2).
  const bool sink =
      context->device->transport_type == IBV_TRANSPORT_IWARP && (access & IBV_ACCESS_LOCAL_WRITE) != 0;
  return sink ? access | IBV_ACCESS_REMOTE_WRITE : access;
}

AsyncEvents& async_events() {
  static auto* events = new AsyncEvents(*loaded());  // lives until exit: its thread uses it
  return *events;
}

// The context of that device which connections have (rdma_cm_id.verbs): what they use must be of the same
// one. It is open as long as librdmacm is loaded, see rdma_get_devices(3). nullptr where librdmacm does not
// know the device.
ibv_context* context_of_connections(const std::string& name, const Libraries& lib) {
  ibv_context** list = lib.get_cm_devices(nullptr);
  if (list == nullptr) return nullptr;
  ibv_context** each = list;
  while (*each != nullptr && name != lib.get_device_name((*each)->device)) ++each;
  ibv_context* found = *each;
  lib.free_cm_devices(list);
  return found;
}

class IbverbsProvider final : public Provider {
 public:
  const char* name() const override { return "ibverbs"; }

  int available(std::string& why) override { return libraries(why) != nullptr ? 0 : ENOENT; }

  int list_devices(std::vector<DeviceInfo>& devices) override {
    const Libraries* lib = loaded();
    if (lib == nullptr) return ENOENT;
    int count = 0;
    ibv_device** list = lib->get_device_list(&count);
    // ENOSYS: this kernel has no RDMA at all, which is a list of no devices.
    if (list == nullptr) return errno == ENOSYS ? 0 : errno;
    for (int i = 0; i < count; ++i) {
      DeviceInfo info;
      info.name = lib->get_device_name(list[i]);
      info.provider = name();
      info.guid = be64toh(lib->get_device_guid(list[i]));
      info.transport = list[i]->transport_type == IBV_TRANSPORT_IWARP ? "iWARP" : "InfiniBand";
      if (ibv_context* context = lib->open_device(list[i]); context != nullptr) {
        info.transport = transport_name(context, *lib);
        lib->close_device(context);
      }
      devices.push_back(std::move(info));
    }
    lib->free_device_list(list);
    return 0;
  }

  ibv_context* open_device(const std::string& name) override {
    const Libraries* lib = loaded();
    if (lib == nullptr) return null_with_errno(ENOENT);
    if (ibv_context* shared = context_of_connections(name, *lib); shared != nullptr) {
      std::lock_guard lock(mutex_);
      shared_.insert(shared);
      return shared;
    }
    int count = 0;
    ibv_device** list = lib->get_device_list(&count);
    ibv_context* context = nullptr;
    int error = ENODEV;
    for (int i = 0; list != nullptr && i < count; ++i) {
      if (name != lib->get_device_name(list[i])) continue;
      context = lib->open_device(list[i]);
      error = errno;
      break;
    }
    if (list != nullptr) lib->free_device_list(list);
    if (context == nullptr) errno = error;
    return context;
  }

  int close_device(ibv_context* context) override {
    {
      std::lock_guard lock(mutex_);
      if (shared_.contains(context)) return 0;
    }
    async_events().forget(context);
    return errno_of(loaded()->close_device(context));
  }

  int query_device(ibv_context* context, ibv_device_attr* attributes) override {
    return errno_of(loaded()->query_device(context, attributes));
  }

  int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) override {
    // The exported symbol fills the struct's older, shorter form; the rest stays zero.
    return errno_of(
        loaded()->query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(attributes)));
  }

  uint32_t capabilities(ibv_context* context) override { return capabilities_of(*loaded(), context); }

  int query_gids(ibv_context* context, uint8_t port, std::vector<GidEntry>& gids) override {
    return ibverbs::query_gids(*loaded(), context, port, gids);
  }

  uint64_t watch_async_events(ibv_context* context, AsyncSink sink) override {
    return async_events().watch(context, std::move(sink));
  }
  void unwatch_async_events(ibv_context* context, uint64_t token) override {
    async_events().unwatch(context, token);
  }

  ibv_pd* alloc_pd(ibv_context* context) override { return loaded()->alloc_pd(context); }
  int dealloc_pd(ibv_pd* pd) override { return errno_of(loaded()->dealloc_pd(pd)); }

  ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, int access) override {
    return loaded()->reg_mr(pd, address, length, access_on(pd->context, access));
  }
  int dereg_mr(ibv_mr* mr) override { return errno_of(loaded()->dereg_mr(mr)); }
  int rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t length, int access) override {
    if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0) access = access_on(mr->context, access);
    return reregister(*loaded(), mr, flags, pd, address, length, access);
  }
  ibv_mr* reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                        int access) override {
    if (loaded()->reg_dmabuf_mr == nullptr) return null_with_errno(EOPNOTSUPP);
    return loaded()->reg_dmabuf_mr(pd, offset, length, iova, fd, access_on(pd->context, access));
  }

  ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) override { return ibv_alloc_mw(pd, type); }
  int dealloc_mw(ibv_mw* mw) override { return errno_of(ibv_dealloc_mw(mw)); }

  ibv_comp_channel* create_comp_channel(ibv_context* context) override {
    ibv_comp_channel* channel = loaded()->create_comp_channel(context);
    if (channel != nullptr) fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
    return channel;
  }
  int destroy_comp_channel(ibv_comp_channel* channel) override {
    return errno_of(loaded()->destroy_comp_channel(channel));
  }

  ibv_cq* create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                    Progress) override {
    return loaded()->create_cq(context, entries, cq_context, channel, 0);
  }
  ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes, Progress) override {
    return ibv_create_cq_ex(context, attributes);
  }
  int resize_cq(ibv_cq* cq, int entries) override { return errno_of(loaded()->resize_cq(cq, entries)); }
  int destroy_cq(ibv_cq* cq) override { return errno_of(loaded()->destroy_cq(cq)); }

  ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes) override {
    return ibverbs::create_srq(*loaded(), pd, attributes);
  }
  int modify_srq(ibv_srq* srq, ibv_srq_attr* attributes, int mask) override {
    return ibverbs::modify_srq(*loaded(), srq, attributes, mask);
  }
  int query_srq(ibv_srq* srq, ibv_srq_attr* attributes) override {
    return ibverbs::query_srq(*loaded(), srq, attributes);
  }
  int destroy_srq(ibv_srq* srq) override { return ibverbs::destroy_srq(*loaded(), srq); }

  ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attributes) override {
    return loaded()->create_ah(pd, attributes);
  }
  int destroy_ah(ibv_ah* ah) override { return errno_of(loaded()->destroy_ah(ah)); }
  int attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) override {
    return errno_of(loaded()->attach_mcast(qp, gid, lid));
  }
  int detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) override {
    return errno_of(loaded()->detach_mcast(qp, gid, lid));
  }

  ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) override {
    ibv_qp* qp = loaded()->create_qp(pd, attributes);
    if (qp != nullptr) note_created(qp);
    return qp;
  }
  int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override {
    return ibverbs::modify_qp(*loaded(), qp, attributes, mask);
  }
  int query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* init) override {
    return ibverbs::query_qp(*loaded(), qp, attributes, mask, init);
  }

  int destroy_qp(ibv_qp* qp) override {
    // First: another thread may be given the same address as soon as this one is destroyed.
    note_destroyed(qp);
    std::shared_ptr<Connection> owner;
    {
      std::lock_guard lock(mutex_);
      if (auto found = owners_.find(qp); found != owners_.end()) {
        owner = found->second.lock();
        owners_.erase(found);
      }
    }
    if (owner == nullptr) return errno_of(loaded()->destroy_qp(qp));
    owner->destroy_qp();
    return 0;
  }

  void tear_down(std::function<void()> work, bool wait) override { teardown_.run(std::move(work), wait); }

  std::shared_ptr<ConnectionId> create_id() override {
    const Libraries* lib = loaded();
    if (lib == nullptr) return null_with_errno(ENOENT);
    return create_connection(*lib);
  }

  const DataPathVerbs* data_path_verbs() const override { return &kDataPathVerbs; }

  // A queue pair that rdma_create_qp made must be destroyed through its id.
  void owned_by(ibv_qp* qp, std::weak_ptr<Connection> owner) {
    std::lock_guard lock(mutex_);
    owners_[qp] = std::move(owner);
  }

 private:
  Teardown teardown_;
  std::mutex mutex_;
  std::map<ibv_qp*, std::weak_ptr<Connection>> owners_;
  std::set<ibv_context*> shared_;  // of connections: librdmacm closes them
};

}  // namespace

IbverbsProvider& instance() {
  static auto* provider = new IbverbsProvider;  // lives until exit: threads use it
  return *provider;
}

void register_owner(ibv_qp* qp, std::weak_ptr<Connection> owner) {
  instance().owned_by(qp, std::move(owner));
}

}  // namespace ibverbs

Provider& ibverbs_provider() { return ibverbs::instance(); }

}  // namespace rdmakit
