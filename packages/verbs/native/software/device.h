// The one device of a software provider: a process-wide context whose operations find the provider's own
// objects behind the ibv_* structs.
#pragma once

#include <infiniband/verbs.h>
#include <pthread.h>

#include <cstring>

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

}  // namespace rdmakit::software
