// Parses answers over generic netlink (netlink(7)).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernel/netlink.h"

namespace rdmakit::nbd {

struct NetlinkAnswer {
  int error = 0;                 // an errno value
  std::string text;              // the kernel's own words, when it has some
  std::vector<uint8_t> payload;  // attributes of the last message that is no acknowledgement
};

// Takes a datagram to the answer. True: the acknowledgement was in it, and the answer is whole.
bool read_datagram(std::span<const uint8_t> bytes, NetlinkAnswer& answer);

// Parses NBD_CMD_STATUS. Malformed parts are left out.
std::vector<KernelDeviceStatus> devices_of(std::span<const uint8_t> payload);

}  // namespace rdmakit::nbd
