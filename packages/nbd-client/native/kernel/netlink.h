// The kernel's generic netlink family "nbd" (linux/nbd-netlink.h): makes, repairs and removes
// /dev/nbdN on sockets that are already in transmission phase.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rdmakit::nbd {

struct KernelDevice {
  int index = -1;  // -1: the first free one
  uint64_t size = 0;
  uint64_t block_size = 4096;
  uint64_t timeout = 0;                  // seconds
  uint64_t dead_connection_timeout = 0;  // seconds; 0 fails requests at once when all sockets are dead
  uint64_t server_flags = 0;             // transmission flags of the export
  uint64_t client_flags = 0;             // NBD_CFLAG_…
  std::string identifier;                // of the backend; RECONFIGURE must repeat it
  std::vector<int> sockets;
};

struct KernelDeviceStatus {
  uint32_t index;
  bool connected;
};

// All return 0 or an errno value with `why`, a sentence for people: ENOENT the module is missing, EPERM
// not root, EBUSY in use.
int kernel_connect(const KernelDevice& device, uint32_t& index, std::string& why);
// Replaces dead sockets only: ENOSPC (from the kernel) when all of the device's sockets are alive.
int kernel_reconfigure(const KernelDevice& device, std::string& why);
int kernel_disconnect(uint32_t index, std::string& why);
int kernel_status(std::vector<KernelDeviceStatus>& devices, std::string& why);

}  // namespace rdmakit::nbd
