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
  attributes = software::device_attributes(kMaxRegions, kMaxReadDepth);
  attributes.max_srq = 65536;
  attributes.max_srq_wr = kMaxWorkRequests;
  attributes.max_srq_sge = kMaxSge;
  return 0;
}

int describe_port(uint8_t port, ibv_port_attr& attributes) {
  if (port != 1) return EINVAL;
  attributes = software::port_attributes(IBV_LINK_LAYER_ETHERNET);
  attributes.gid_tbl_len = 1;
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
