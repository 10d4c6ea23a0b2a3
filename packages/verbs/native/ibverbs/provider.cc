// Provider `ibverbs`: any device that libibverbs knows (mlx5, irdma, EFA, rxe, siw).
#include "provider.h"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>

#include <cerrno>
#include <map>
#include <mutex>

#include "ibverbs/connection.h"
#include "ibverbs/libraries.h"

namespace rdmakit {
namespace ibverbs {
namespace {

const Libraries* loaded() {
  std::string why;
  return libraries(why);
}

int errno_of(int result) { return result == 0 ? 0 : (errno != 0 ? errno : EIO); }

int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  return loaded()->get_cq_event(channel, cq, cq_context) == 0 ? 0 : errno;
}

void ack_cq_events(ibv_cq* cq, unsigned int count) { loaded()->ack_cq_events(cq, count); }

int move_to_error(ibv_qp* qp) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  return loaded()->modify_qp(qp, &attributes, IBV_QP_STATE);
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
    if (lib == nullptr) {
      errno = ENOENT;
      return nullptr;
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

  int close_device(ibv_context* context) override { return errno_of(loaded()->close_device(context)); }

  int query_device(ibv_context* context, ibv_device_attr* attributes) override {
    return loaded()->query_device(context, attributes);
  }

  int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) override {
    // The exported symbol fills the struct's older, shorter form; the rest stays zero.
    return loaded()->query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(attributes));
  }

  uint32_t capabilities(ibv_context* context) override {
    uint32_t bits = 0;
    // RFC 7306 came after most iWARP devices: neither siw nor cxgb4 carry immediate data.
    if (context->device->transport_type == IBV_TRANSPORT_IB) {
      bits |= kCapabilityWriteWithImmediate | kCapabilitySendWithImmediate;
    }
    ibv_device_attr attributes{};
    if (query_device(context, &attributes) == 0 && attributes.atomic_cap != IBV_ATOMIC_NONE) {
      bits |= kCapabilityAtomics;
    }
    return bits;
  }

  ibv_pd* alloc_pd(ibv_context* context) override { return loaded()->alloc_pd(context); }
  int dealloc_pd(ibv_pd* pd) override { return loaded()->dealloc_pd(pd); }

  ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, int access) override {
    // iWARP places the response of an RDMA READ as a remote write into the sink (RFC 5040 §5.2).
    if (pd->context->device->transport_type == IBV_TRANSPORT_IWARP &&
        (access & IBV_ACCESS_LOCAL_WRITE) != 0) {
      access |= IBV_ACCESS_REMOTE_WRITE;
    }
    return loaded()->reg_mr(pd, address, length, access);
  }
  int dereg_mr(ibv_mr* mr) override { return loaded()->dereg_mr(mr); }

  ibv_comp_channel* create_comp_channel(ibv_context* context) override {
    ibv_comp_channel* channel = loaded()->create_comp_channel(context);
    if (channel != nullptr) fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
    return channel;
  }
  int destroy_comp_channel(ibv_comp_channel* channel) override {
    return loaded()->destroy_comp_channel(channel);
  }

  ibv_cq* create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                    Progress) override {
    return loaded()->create_cq(context, entries, cq_context, channel, 0);
  }
  int destroy_cq(ibv_cq* cq) override { return loaded()->destroy_cq(cq); }

  ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) override {
    return loaded()->create_qp(pd, attributes);
  }
  int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override {
    return loaded()->modify_qp(qp, attributes, mask);
  }
  int query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* init) override {
    return loaded()->query_qp(qp, attributes, mask, init);
  }

  int destroy_qp(ibv_qp* qp) override {
    std::shared_ptr<Connection> owner;
    {
      std::lock_guard lock(mutex_);
      if (auto found = owners_.find(qp); found != owners_.end()) {
        owner = found->second.lock();
        owners_.erase(found);
      }
    }
    if (owner == nullptr) return loaded()->destroy_qp(qp);
    owner->destroy_qp();
    return 0;
  }

  std::shared_ptr<ConnectionId> create_id() override {
    const Libraries* lib = loaded();
    if (lib == nullptr) {
      errno = ENOENT;
      return nullptr;
    }
    return create_connection(*lib);
  }

  const DataPathVerbs* data_path_verbs() const override { return &kDataPathVerbs; }

  // A queue pair that rdma_create_qp made must be destroyed through its id.
  void owned_by(ibv_qp* qp, std::weak_ptr<Connection> owner) {
    std::lock_guard lock(mutex_);
    owners_[qp] = std::move(owner);
  }

 private:
  std::mutex mutex_;
  std::map<ibv_qp*, std::weak_ptr<Connection>> owners_;
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
