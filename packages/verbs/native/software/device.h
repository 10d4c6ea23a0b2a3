// The one device of a software provider: a process-wide context whose operations find the provider's own
// objects behind the ibv_* structs.
#pragma once

#include <infiniband/verbs.h>
#include <pthread.h>

#include <cstring>

#include "software/limits.h"

namespace rdmakit::software {

template <typename CompletionQueue, typename QueuePair>
struct Device {
  ibv_device device{};
  ibv_context context{};

  Device(const char* name, ibv_node_type node, ibv_transport_type transport) {
    std::strncpy(device.name, name, sizeof device.name - 1);
    std::strncpy(device.dev_name, name, sizeof device.dev_name - 1);
    device.node_type = node;
    device.transport_type = transport;
    context.device = &device;
    context.cmd_fd = -1;
    context.async_fd = -1;
    context.num_comp_vectors = 1;
    pthread_mutex_init(&context.mutex, nullptr);
    context.ops.poll_cq = [](ibv_cq* cq, int entries, ibv_wc* completions) {
      return CompletionQueue::of(cq)->poll(entries, completions);
    };
    context.ops.req_notify_cq = [](ibv_cq* cq, int solicited_only) {
      CompletionQueue::of(cq)->request_notification(solicited_only != 0);
      return 0;
    };
    context.ops.post_send = [](ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
      return static_cast<QueuePair*>(qp)->post_send(request, bad);
    };
    context.ops.post_recv = [](ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) {
      return static_cast<QueuePair*>(qp)->post_receive(request, bad);
    };
  }
};

// `regions`: memory regions, and as many windows. `reads`: RDMA READs and atomics of a queue pair at once.
inline ibv_device_attr device_attributes(int regions, int reads) {
  ibv_device_attr attributes{};
  std::strncpy(attributes.fw_ver, "1", sizeof attributes.fw_ver);
  attributes.max_mr_size = UINT64_MAX;
  attributes.page_size_cap = 4096;
  attributes.max_qp = 65536;
  attributes.max_qp_wr = kMaxWorkRequests;
  attributes.max_sge = kMaxSge;
  attributes.max_sge_rd = kMaxSge;
  attributes.max_cq = 65536;
  attributes.max_cqe = kMaxCompletions;
  attributes.max_mr = regions;
  attributes.max_mw = regions;
  attributes.device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  attributes.max_pd = 65536;
  attributes.max_qp_rd_atom = reads;
  attributes.max_qp_init_rd_atom = reads;
  attributes.max_res_rd_atom = reads * attributes.max_qp;
  attributes.atomic_cap = IBV_ATOMIC_GLOB;  // they are the CPU's own
  attributes.phys_port_cnt = 1;
  return attributes;
}

inline ibv_port_attr port_attributes(uint8_t link_layer) {
  ibv_port_attr attributes{};
  attributes.state = IBV_PORT_ACTIVE;
  attributes.max_mtu = IBV_MTU_4096;
  attributes.active_mtu = IBV_MTU_4096;
  attributes.max_msg_sz = kMaxMessage;
  attributes.pkey_tbl_len = 1;
  attributes.phys_state = 5;  // LinkUp
  attributes.link_layer = link_layer;
  return attributes;
}

}  // namespace rdmakit::software
