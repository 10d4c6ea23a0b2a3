// libibverbs and librdmacm, loaded at run time: one binary runs with and without rdma-core.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <string>

// verbs.h makes inline wrappers or macros of some names; this loads the plain symbols.
#undef ibv_reg_mr
#undef ibv_query_port

namespace rdmakit::ibverbs {

// What is called: our name, and the library's.
#define RDMAKIT_LIBIBVERBS(apply)                        \
  apply(get_device_list, ibv_get_device_list);           \
  apply(free_device_list, ibv_free_device_list);         \
  apply(get_device_name, ibv_get_device_name);           \
  apply(get_device_guid, ibv_get_device_guid);           \
  apply(open_device, ibv_open_device);                   \
  apply(close_device, ibv_close_device);                 \
  apply(query_device, ibv_query_device);                 \
  apply(query_port, ibv_query_port);                     \
  apply(alloc_pd, ibv_alloc_pd);                         \
  apply(dealloc_pd, ibv_dealloc_pd);                     \
  apply(reg_mr, ibv_reg_mr);                             \
  apply(dereg_mr, ibv_dereg_mr);                         \
  apply(create_comp_channel, ibv_create_comp_channel);   \
  apply(destroy_comp_channel, ibv_destroy_comp_channel); \
  apply(create_cq, ibv_create_cq);                       \
  apply(destroy_cq, ibv_destroy_cq);                     \
  apply(get_cq_event, ibv_get_cq_event);                 \
  apply(ack_cq_events, ibv_ack_cq_events);               \
  apply(create_qp, ibv_create_qp);                       \
  apply(modify_qp, ibv_modify_qp);                       \
  apply(query_qp, ibv_query_qp);                         \
  apply(destroy_qp, ibv_destroy_qp);                     \
  apply(query_gid, ibv_query_gid);                       \
  apply(get_async_event, ibv_get_async_event);           \
  apply(ack_async_event, ibv_ack_async_event);           \
  apply(resize_cq, ibv_resize_cq);                       \
  apply(create_srq, ibv_create_srq);                     \
  apply(modify_srq, ibv_modify_srq);                     \
  apply(query_srq, ibv_query_srq);                       \
  apply(destroy_srq, ibv_destroy_srq);                   \
  apply(create_ah, ibv_create_ah);                       \
  apply(destroy_ah, ibv_destroy_ah);                     \
  apply(attach_mcast, ibv_attach_mcast);                 \
  apply(detach_mcast, ibv_detach_mcast);                 \
  apply(fork_init, ibv_fork_init);

// nullptr where rdma-core is older than they are: 2014, 35, 32 and 34.
#define RDMAKIT_NEWER_LIBIBVERBS(apply)                \
  apply(rereg_mr, ibv_rereg_mr);                       \
  apply(is_fork_initialized, ibv_is_fork_initialized); \
  apply(query_gid_table, _ibv_query_gid_table);        \
  apply(reg_dmabuf_mr, ibv_reg_dmabuf_mr);

#define RDMAKIT_LIBRDMACM(apply)                          \
  apply(get_cm_devices, rdma_get_devices);                \
  apply(free_cm_devices, rdma_free_devices);              \
  apply(create_event_channel, rdma_create_event_channel); \
  apply(create_id, rdma_create_id);                       \
  apply(destroy_id, rdma_destroy_id);                     \
  apply(bind_addr, rdma_bind_addr);                       \
  apply(listen, rdma_listen);                             \
  apply(resolve_addr, rdma_resolve_addr);                 \
  apply(resolve_route, rdma_resolve_route);               \
  apply(create_cm_qp, rdma_create_qp);                    \
  apply(connect, rdma_connect);                           \
  apply(accept, rdma_accept);                             \
  apply(reject, rdma_reject);                             \
  apply(disconnect, rdma_disconnect);                     \
  apply(set_option, rdma_set_option);                     \
  apply(get_cm_event, rdma_get_cm_event);                 \
  apply(ack_cm_event, rdma_ack_cm_event);

struct Libraries {
#define RDMAKIT_MEMBER(name, function) decltype(&function) name
  RDMAKIT_LIBIBVERBS(RDMAKIT_MEMBER)
  RDMAKIT_NEWER_LIBIBVERBS(RDMAKIT_MEMBER)
  RDMAKIT_LIBRDMACM(RDMAKIT_MEMBER)
#undef RDMAKIT_MEMBER
};

// Makes registered memory stay in place when this process forks (ibv_fork_init(3)), unless the kernel does
// that itself, as from 5.12 on. 0, or an errno value: other code has registered memory already.
int prepare_for_fork(const Libraries& lib);

// The loaded libraries, or nullptr with `why` saying what is missing. Loads once.
const Libraries* libraries(std::string& why);

}  // namespace rdmakit::ibverbs
