#include "ibverbs/gids.h"

#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

namespace rdmakit::ibverbs {
namespace {

const char* type_name(ibv_context* context, uint32_t type) {
  if (context->device->transport_type == IBV_TRANSPORT_IWARP) return "iWARP";
  switch (type) {
    case IBV_GID_TYPE_ROCE_V1:
      return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2:
      return "RoCE v2";
    default:
      return "IB";
  }
}

// One line of DEVICE/ports/PORT/gid_attrs/KIND/INDEX in sysfs; empty where there is none.
std::string gid_attribute(ibv_context* context, uint8_t port, const char* kind, int index) {
  std::ifstream file(std::string(context->device->ibdev_path) + "/ports/" + std::to_string(port) +
                     "/gid_attrs/" + kind + "/" + std::to_string(index));
  std::string line;
  std::getline(file, line);
  return line;
}

// For an rdma-core older than version 32.
void read_one_by_one(const Libraries& lib, ibv_context* context, uint8_t port,
                     const ibv_port_attr& attributes, std::vector<GidEntry>& gids) {
  const bool ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  for (int index = 0; index < attributes.gid_tbl_len; ++index) {
    ibv_gid gid{};
    if (lib.query_gid(context, port, index, &gid) != 0) continue;
    if (std::all_of(std::begin(gid.raw), std::end(gid.raw), [](uint8_t byte) { return byte == 0; })) continue;
    const bool v2 = gid_attribute(context, port, "types", index) == "RoCE v2";
    const uint32_t type = v2 ? IBV_GID_TYPE_ROCE_V2 : ethernet ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_IB;
    const std::string interface = gid_attribute(context, port, "ndevs", index);
    gids.push_back(
        {static_cast<uint32_t>(index), gid, type_name(context, type), if_nametoindex(interface.c_str())});
  }
}

}  // namespace

int query_gids(const Libraries& lib, ibv_context* context, uint8_t port, std::vector<GidEntry>& gids) {
  gids.clear();
  ibv_device_attr device{};
  if (const int error = lib.query_device(context, &device); error != 0) return error;
  if (port == 0 || port > device.phys_port_cnt) return EINVAL;
  size_t most = 0;
  ibv_port_attr wanted{};
  for (uint8_t each = 1; each <= device.phys_port_cnt; ++each) {
    ibv_port_attr attributes{};
    const int error = lib.query_port(context, each, reinterpret_cast<_compat_ibv_port_attr*>(&attributes));
    if (error != 0) return error;
    most += static_cast<size_t>(std::max(0, attributes.gid_tbl_len));
    if (each == port) wanted = attributes;
  }
  if (lib.query_gid_table == nullptr) {
    read_one_by_one(lib, context, port, wanted, gids);
    return 0;
  }
  if (most == 0) return 0;
  // The table of the whole device: it is asked for at once, whichever port is meant.
  std::vector<ibv_gid_entry> entries(most);
  const ssize_t count = lib.query_gid_table(context, entries.data(), most, 0, sizeof(ibv_gid_entry));
  if (count < 0) return static_cast<int>(-count);
  entries.resize(static_cast<size_t>(count));
  for (const ibv_gid_entry& entry : entries) {
    if (entry.port_num != port) continue;
    gids.push_back({entry.gid_index, entry.gid, type_name(context, entry.gid_type), entry.ndev_ifindex});
  }
  std::sort(gids.begin(), gids.end(), [](const GidEntry& a, const GidEntry& b) { return a.index < b.index; });
  return 0;
}

}  // namespace rdmakit::ibverbs
