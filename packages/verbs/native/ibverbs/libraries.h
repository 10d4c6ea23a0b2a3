// libibverbs and librdmacm, loaded at run time: one binary runs with and without rdma-core.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <string>

// verbs.h makes inline wrappers or macros of some names; this loads the plain symbols.
#undef ibv_reg_mr
#undef ibv_query_port

namespace rdmakit::ibverbs {

struct Libraries {
  ibv_device** (*get_device_list)(int* count);
  void (*free_device_list)(ibv_device** list);
  const char* (*get_device_name)(ibv_device* device);
  uint64_t (*get_device_guid)(ibv_device* device);
  ibv_context* (*open_device)(ibv_device* device);
  int (*close_device)(ibv_context* context);
  int (*query_device)(ibv_context* context, ibv_device_attr* attributes);
  int (*query_port)(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attributes);
  ibv_pd* (*alloc_pd)(ibv_context* context);
  int (*dealloc_pd)(ibv_pd* pd);
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* address, size_t length, int access);
  int (*dereg_mr)(ibv_mr* mr);
  ibv_comp_channel* (*create_comp_channel)(ibv_context* context);
  int (*destroy_comp_channel)(ibv_comp_channel* channel);
  ibv_cq* (*create_cq)(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                       int vector);
  int (*destroy_cq)(ibv_cq* cq);
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context);
  void (*ack_cq_events)(ibv_cq* cq, unsigned int count);
  ibv_qp* (*create_qp)(ibv_pd* pd, ibv_qp_init_attr* attributes);
  int (*modify_qp)(ibv_qp* qp, ibv_qp_attr* attributes, int mask);
  int (*query_qp)(ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* init);
  int (*destroy_qp)(ibv_qp* qp);
  int (*query_gid)(ibv_context* context, uint8_t port, int index, ibv_gid* gid);
  int (*get_async_event)(ibv_context* context, ibv_async_event* event);
  void (*ack_async_event)(ibv_async_event* event);
  int (*resize_cq)(ibv_cq* cq, int entries);
  ibv_srq* (*create_srq)(ibv_pd* pd, ibv_srq_init_attr* attributes);
  int (*modify_srq)(ibv_srq* srq, ibv_srq_attr* attributes, int mask);
  int (*query_srq)(ibv_srq* srq, ibv_srq_attr* attributes);
  int (*destroy_srq)(ibv_srq* srq);
  ibv_ah* (*create_ah)(ibv_pd* pd, ibv_ah_attr* attributes);
  int (*destroy_ah)(ibv_ah* ah);
  int (*attach_mcast)(ibv_qp* qp, const ibv_gid* gid, uint16_t lid);
  int (*detach_mcast)(ibv_qp* qp, const ibv_gid* gid, uint16_t lid);
  int (*fork_init)();

  // nullptr where rdma-core is older than they are: 2014, 35, 32 and 34.
  int (*rereg_mr)(ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t length, int access);
  ibv_fork_status (*is_fork_initialized)();
  ssize_t (*query_gid_table)(ibv_context* context, ibv_gid_entry* entries, size_t count, uint32_t flags,
                             size_t entry_size);
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);

  ibv_context** (*get_cm_devices)(int* count);
  void (*free_cm_devices)(ibv_context** list);
  rdma_event_channel* (*create_event_channel)();
  int (*create_id)(rdma_event_channel* channel, rdma_cm_id** id, void* context, rdma_port_space space);
  int (*destroy_id)(rdma_cm_id* id);
  int (*bind_addr)(rdma_cm_id* id, sockaddr* address);
  int (*listen)(rdma_cm_id* id, int backlog);
  int (*resolve_addr)(rdma_cm_id* id, sockaddr* source, sockaddr* destination, int timeout_ms);
  int (*resolve_route)(rdma_cm_id* id, int timeout_ms);
  int (*create_cm_qp)(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* attributes);
  int (*connect)(rdma_cm_id* id, rdma_conn_param* parameters);
  int (*accept)(rdma_cm_id* id, rdma_conn_param* parameters);
  int (*reject)(rdma_cm_id* id, const void* private_data, uint8_t length);
  int (*disconnect)(rdma_cm_id* id);
  int (*set_option)(rdma_cm_id* id, int level, int name, void* value, size_t length);
  int (*get_cm_event)(rdma_event_channel* channel, rdma_cm_event** event);
  int (*ack_cm_event)(rdma_cm_event* event);
};

// Makes registered memory stay in place when this process forks (ibv_fork_init(3)), unless the kernel does
// that itself, as from 5.12 on. 0, or an errno value: other code has registered memory already.
int prepare_for_fork(const Libraries& lib);

// The loaded libraries, or nullptr with `why` saying what is missing. Loads once.
const Libraries* libraries(std::string& why);

}  // namespace rdmakit::ibverbs
