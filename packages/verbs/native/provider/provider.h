// The control path of a verbs provider: open, register, create, connect, modify, destroy.
// The data path is not here: it is the inline verbs over `context->ops` (see include/rdmakit/handle.h).
//
// Error convention, as in libibverbs: a function that returns a pointer gives nullptr and sets errno;
// a function that returns int gives 0 or an errno value (never -1). No function throws.
#pragma once

#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_memory.h"
#include "rdmakit/handle.h"

namespace rdmakit {

// Which thread moves data on a software provider while the application does other things.
enum class Progress {
  automatic,  // a thread of the provider: one-sided targets are served without the application's help
  manual,     // the thread that polls the CQ, or calls get_cq_event after its channel's fd became readable.
              // The caller promises to do one of the two; no second thread interferes.
};

struct DeviceInfo {
  std::string name;
  std::string provider;
  std::string transport;  // "InfiniBand", "RoCE", "iWARP" …
  uint64_t guid = 0;      // host byte order
};

// RFC 6581 / rdma_connect(3) parameters. 0 = as much as the device allows.
struct ConnectParameters {
  std::vector<uint8_t> private_data;
  uint8_t responder_resources = 0;  // inbound RDMA READs that this side serves at once (IRD)
  uint8_t initiator_depth = 0;      // outbound RDMA READs that this side keeps outstanding (ORD)
  ibv_qp* qp = nullptr;             // made by this id's create_qp
};

// An asynchronous event of a device (ibv_get_async_event(3)), acknowledged already.
struct AsyncEvent {
  ibv_event_type type;
  // The ibv_cq*, ibv_qp* or ibv_srq* that it is about, as a name only: the object may be gone by now.
  // The port number for IBV_EVENT_PORT_…; 0 for the device's own.
  uint64_t element = 0;
};

// An entry of a port's GID table.
struct GidEntry {
  uint32_t index = 0;
  ibv_gid gid{};
  const char* type = "";         // "IB", "RoCE v1", "RoCE v2", "iWARP"
  uint32_t interface_index = 0;  // of the network interface, 0 when it has none
};

class ConnectionId;

struct CmEvent {
  enum class Type {
    route_resolved,   // answer to resolve(): context() is known now
    resolve_failed,   // answer to resolve(); status = errno value
    connect_request,  // on a listener: `request` is the new id
    accept_stalled,   // on a listener: connections wait, for accept(2) failed for want of what status, an
                      // errno, says
    established,      // answer to connect() and accept(); private_data = the acceptor's, on the connector
    rejected,         // answer to connect(): the peer said no; private_data = its reason
    connect_failed,   // answer to connect() or accept(); status = errno value
    disconnected,     // once after established; status 0 = orderly, else errno value
  };
  Type type;
  int status = 0;
  std::vector<uint8_t> private_data;
  std::shared_ptr<ConnectionId> request;
};

// One end of a connection, or a listener (rdma_cm_id of rdma_cm(7)).
class ConnectionId : public std::enable_shared_from_this<ConnectionId> {
 public:
  // Called on a thread of the provider, one event at a time for one id. After close() returned it is
  // not called again. It must not block, and may call close() of its own id only from another thread.
  using Sink = std::function<void(CmEvent&&)>;

  virtual ~ConnectionId() = default;
  // An id that arrives with connect_request keeps its events until it has a sink. One that is replaced is
  // neither running nor called any more when this returns, but for itself.
  virtual void set_sink(Sink sink) = 0;
  virtual int listen(const sockaddr* address, socklen_t length, int backlog) = 0;
  virtual int resolve(const sockaddr* address, socklen_t length, int timeout_ms) = 0;
  // Another address of the same peer, for connect() to try, in the order given, when the one before does not
  // answer. Nothing where each address may lead to another device.
  virtual void add_alternative(const sockaddr*, socklen_t) {}
  virtual ibv_context* context() = 0;  // nullptr before route_resolved
  virtual ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) = 0;
  virtual int connect(const ConnectParameters& parameters) = 0;
  virtual int accept(const ConnectParameters& parameters) = 0;
  virtual int reject(const std::vector<uint8_t>& private_data) = 0;
  virtual int disconnect() = 0;
  virtual sockaddr_storage local_address() const = 0;
  virtual sockaddr_storage peer_address() const = 0;
  // Ends whatever is under way. The queue pair must be destroyed first. Idempotent.
  virtual void close() = 0;
  // For a closed one: true when no posted request of the peer can arrive here any more.
  virtual bool settled() { return true; }
  // Whether close() does not wait: of a software provider a listener, whose address is free when it returns,
  // and a request that is refused, of which there are thousands a second where strangers connect.
  virtual bool closes_at_once() { return false; }
};

class Provider {
 public:
  virtual ~Provider() = default;
  virtual const char* name() const = 0;
  // 0, or an errno value with `why` saying in one line what is missing and what to install.
  virtual int available(std::string& why) = 0;

  virtual int list_devices(std::vector<DeviceInfo>& devices) = 0;
  virtual ibv_context* open_device(const std::string& name) = 0;
  virtual int close_device(ibv_context* context) = 0;
  virtual int query_device(ibv_context* context, ibv_device_attr* attributes) = 0;
  virtual int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) = 0;
  virtual uint32_t capabilities(ibv_context* context) = 0;

  // The valid entries of the port's GID table, in the order of their indices.
  virtual int query_gids(ibv_context*, uint8_t, std::vector<GidEntry>&) { return EOPNOTSUPP; }

  // Called on a thread of the provider for each asynchronous event of the device, in order; it must not
  // block. Any number of watchers hear every event. The token, or 0 and errno.
  using AsyncSink = std::function<void(const AsyncEvent&)>;
  virtual uint64_t watch_async_events(ibv_context*, AsyncSink) { return unsupported<uint64_t>(0); }
  // The sink is not called any more when this returns. Not from within a sink.
  virtual void unwatch_async_events(ibv_context*, uint64_t) {}

  // Memory to register: at least `length` bytes, zeroed, touched, page-aligned; nullptr and errno when
  // there is none. Any other memory may be registered too, but this is the fastest for the provider's
  // peers. Deregister first, then unmap, with the length and options that were asked for.
  virtual void* map_memory(size_t length, const MemoryOptions& options) {
    return map_private_memory(length, options);
  }
  virtual void unmap_memory(void* address, size_t length, const MemoryOptions& options) {
    unmap_private_memory(address, length, options);
  }

  virtual ibv_pd* alloc_pd(ibv_context* context) = 0;
  virtual int dealloc_pd(ibv_pd* pd) = 0;
  virtual ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, int access) = 0;
  virtual int dereg_mr(ibv_mr* mr) = 0;
  // The same for memory of map_memory that is unmapped next and not accessed any more: does not wait for a
  // peer that cannot reach it then.
  virtual int dereg_mr_to_unmap(ibv_mr* mr) { return dereg_mr(mr); }
  // ibv_rereg_mr(3): `flags` are IBV_REREG_MR_CHANGE_…, of which TRANSLATION uses address and length.
  // The keys may change; read them from `mr`. 0 or an errno value; the region is unchanged on EINVAL and
  // EOPNOTSUPP, and good for dereg_mr only after any other.
  virtual int rereg_mr(ibv_mr*, int, ibv_pd*, void*, size_t, int) { return EOPNOTSUPP; }
  // ibv_reg_dmabuf_mr(3)
  virtual ibv_mr* reg_dmabuf_mr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
    return unsupported<ibv_mr*>(nullptr);
  }

  // Memory windows of type 2: bound by IBV_WR_BIND_MW through ibv_post_send to a region that allows
  // IBV_ACCESS_MW_BIND, ended by IBV_WR_LOCAL_INV or by the peer's IBV_WR_SEND_WITH_INV.
  virtual ibv_mw* alloc_mw(ibv_pd*, ibv_mw_type) { return unsupported<ibv_mw*>(nullptr); }
  virtual int dealloc_mw(ibv_mw*) { return EOPNOTSUPP; }

  // The channel's fd is non-blocking and may be put into any poll or epoll set.
  virtual ibv_comp_channel* create_comp_channel(ibv_context* context) = 0;
  virtual int destroy_comp_channel(ibv_comp_channel* channel) = 0;
  // channel may be nullptr. Both CQs of a queue pair must have the same Progress.
  virtual ibv_cq* create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                            Progress progress) = 0;
  // An extended CQ, read with ibv_start_poll … ibv_end_poll or with ibv_poll_cq like any other. What can
  // be asked for: IBV_WC_STANDARD_FLAGS and IBV_WC_EX_WITH_COMPLETION_TIMESTAMP[_WALLCLOCK].
  virtual ibv_cq_ex* create_cq_ex(ibv_context*, ibv_cq_init_attr_ex*, Progress) {
    return unsupported<ibv_cq_ex*>(nullptr);
  }
  // ibv_resize_cq(3): EINVAL when it holds more completions than that already.
  virtual int resize_cq(ibv_cq*, int) { return EOPNOTSUPP; }
  virtual int destroy_cq(ibv_cq* cq) = 0;

  // Shared receive queues: posted to with ibv_post_srq_recv; IBV_EVENT_SRQ_LIMIT_REACHED comes once after
  // modify_srq armed IBV_SRQ_LIMIT and fewer receives than that are left.
  virtual ibv_srq* create_srq(ibv_pd*, ibv_srq_init_attr*) { return unsupported<ibv_srq*>(nullptr); }
  virtual int modify_srq(ibv_srq*, ibv_srq_attr*, int) { return EOPNOTSUPP; }
  virtual int query_srq(ibv_srq*, ibv_srq_attr*) { return EOPNOTSUPP; }
  virtual int destroy_srq(ibv_srq*) { return EOPNOTSUPP; }  // EBUSY while a queue pair uses it

  // Datagrams (IBV_QPT_UD).
  virtual ibv_ah* create_ah(ibv_pd*, ibv_ah_attr*) { return unsupported<ibv_ah*>(nullptr); }
  virtual int destroy_ah(ibv_ah*) { return EOPNOTSUPP; }
  virtual int attach_mcast(ibv_qp*, const ibv_gid*, uint16_t) { return EOPNOTSUPP; }
  virtual int detach_mcast(ibv_qp*, const ibv_gid*, uint16_t) { return EOPNOTSUPP; }

  // A queue pair outside of a connection id (create_qp of ConnectionId is the usual way). What the device
  // does not have (a type, more than its limits) is EOPNOTSUPP or EINVAL. An iWARP queue pair, and one over
  // shm, leaves INIT through a connection id only: modify_qp to RTR is EOPNOTSUPP.
  virtual ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) = 0;
  virtual int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = 0;
  virtual int query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* init) = 0;
  // Also for a queue pair that a ConnectionId made. ETIMEDOUT, over shm: it is gone, but its peer, which is
  // stopped in the middle of a copy, may continue that.
  virtual int destroy_qp(ibv_qp* qp) = 0;

  // Has `work` done, which destroys objects of this provider, on a thread that may wait for others: the
  // kernel, or a peer. With `wait` the caller waits for it a while. On any thread.
  virtual void tear_down(std::function<void()> work, bool wait) = 0;

  virtual std::shared_ptr<ConnectionId> create_id() = 0;
  virtual const DataPathVerbs* data_path_verbs() const = 0;

 private:
  // The result of a verb that a provider lacks.
  template <typename Nothing>
  static Nothing unsupported(Nothing nothing) {
    errno = EOPNOTSUPP;
    return nothing;
  }
};

// Process-wide instances; never destroyed before exit.
Provider& ibverbs_provider();
Provider& iwarp_provider();
Provider& shm_provider();

}  // namespace rdmakit
