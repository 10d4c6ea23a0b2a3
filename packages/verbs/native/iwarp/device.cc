#include "iwarp/device.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netpacket/packet.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "iwarp/completion/completion_queue.h"
#include "iwarp/memory/memory_table.h"
#include "iwarp/queue-pair/queue_pair.h"
#include "iwarp/queue-pair/shared_receive_queue.h"
#include "software/device.h"

namespace rdmakit::iwarp {

ibv_context* device_context() {
  using Device = software::Device<CompletionQueue, QueuePair>;
  static Device* device = [] {
    auto made = std::make_unique<Device>(kDeviceName, IBV_NODE_RNIC, IBV_TRANSPORT_IWARP);
    made->context.ops.post_srq_recv = [](ibv_srq* srq, ibv_recv_wr* request, ibv_recv_wr** bad) {
      return static_cast<SharedReceiveQueue*>(srq)->post(request, bad);
    };
    return made.release();
  }();
  return &device->context;
}

int describe_device(ibv_device_attr& attributes) {
  attributes = ibv_device_attr{};
  std::strncpy(attributes.fw_ver, "1", sizeof attributes.fw_ver);
  attributes.max_mr_size = UINT64_MAX;
  attributes.page_size_cap = 4096;
  attributes.max_qp = 65536;
  attributes.max_qp_wr = kMaxWorkRequests;
  attributes.max_sge = kMaxSge;
  attributes.max_sge_rd = kMaxSge;
  attributes.max_cq = 65536;
  attributes.max_cqe = kMaxCompletions;
  attributes.max_mr = kMaxRegions;
  attributes.max_mw = kMaxRegions;
  attributes.device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  attributes.max_srq = 65536;
  attributes.max_srq_wr = kMaxWorkRequests;
  attributes.max_srq_sge = kMaxSge;
  attributes.max_pd = 65536;
  attributes.max_qp_rd_atom = kMaxReadDepth;
  attributes.max_qp_init_rd_atom = kMaxReadDepth;
  attributes.max_res_rd_atom = static_cast<int>(kMaxReadDepth) * attributes.max_qp;
  attributes.atomic_cap = IBV_ATOMIC_GLOB;
  attributes.phys_port_cnt = 1;
  return 0;
}

int describe_port(uint8_t port, ibv_port_attr& attributes) {
  if (port != 1) return EINVAL;
  attributes = ibv_port_attr{};
  attributes.state = IBV_PORT_ACTIVE;
  attributes.max_mtu = IBV_MTU_4096;
  attributes.active_mtu = IBV_MTU_4096;
  attributes.max_msg_sz = kMaxMessage;
  attributes.gid_tbl_len = 1;
  attributes.pkey_tbl_len = 1;
  attributes.phys_state = 5;  // LinkUp
  attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

// One entry, as on any iWARP port: a hardware address. Of the first network interface that has one; the
// provider itself is bound to none, and connections go by IP addresses.
int list_gids(uint8_t port, std::vector<GidEntry>& entries) {
  if (port != 1) return EINVAL;
  GidEntry entry;
  entry.type = "iWARP";
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return errno;
  for (const ifaddrs* at = interfaces; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_PACKET || (at->ifa_flags & IFF_LOOPBACK))
      continue;
    sockaddr_ll link;
    std::memcpy(&link, at->ifa_addr, sizeof link);
    if (link.sll_halen != 6) continue;
    std::memcpy(entry.gid.raw, link.sll_addr, link.sll_halen);
    entry.interface_index = static_cast<uint32_t>(link.sll_ifindex);
    break;
  }
  freeifaddrs(interfaces);
  entries.push_back(entry);
  return 0;
}

}  // namespace rdmakit::iwarp
