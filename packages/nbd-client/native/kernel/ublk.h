// The kernel's user-space block driver (ublk_drv, linux/ublk_cmd.h): makes, starts, recovers and removes
// /dev/ublkbN, whose requests DeviceQueue serves.
#pragma once

#include <cstdint>
#include <string>

namespace rdmakit::nbd {

// A device has so many requests under way on each queue, of at most so many bytes.
inline constexpr uint16_t kDeviceDepth = 32;
inline constexpr uint32_t kDeviceRequest = 256 << 10;

struct UblkDevice {
  int index = -1;  // -1: the first free one
  uint64_t size = 0;
  uint16_t queues = 1;
  uint64_t identifier = 0;  // the driver keeps it for us
  bool kept = false;        // requests wait for a successor of a process that dies, else they fail
};

struct UblkStatus {
  uint32_t index;
  uint64_t identifier;
  uint16_t queues;
  int32_t server;  // process; -1 unless it is started
  bool kept;       // see UblkDevice
  // UBLK_S_DEV_…: dead (not started, or stopped), live, quiesced (its server is gone, its requests wait);
  // other: of a later driver
  enum class State : uint16_t { dead, live, quiesced, other } state;
};

// All return 0 or an errno value with `why`, a sentence for people.
// ENOENT: the module is missing. EPERM: not root.

// Makes the device, without a disk yet, with one queue for each processor at most.
// EEXIST: the index is in use.
int ublk_add(const UblkDevice& device, uint32_t& index, uint16_t& queues, std::string& why);
// /dev/ublkcN, for the queues. EBUSY: another process has it.
int ublk_open(uint32_t index, int& descriptor, std::string& why);
// Gives the kernel the disk. Blocks until each queue is fetched from. ETIMEDOUT.
int ublk_start(uint32_t index, std::string& why);
// Before ublk_open() by the successor of a process that is gone. EBUSY: the kernel has not noticed yet.
int ublk_recover(uint32_t index, std::string& why);
// Asks the disk, open with O_DIRECT, for a page and waits for nothing: at a request the driver notices that
// its server is gone, else it looks every 5 s.
int ublk_nudge(int disk, uint64_t offset, std::string& why);
// ublk_start() of a device that was recovered: its requests continue.
int ublk_resume(uint32_t index, std::string& why);
// Takes the disk away; blocks until its requests are answered. The queues end.
int ublk_stop(uint32_t index, std::string& why);
// Removes the device. Blocks until no process has the disk open, and until then blocks all others that make
// or remove devices of this driver: do not call it while the disk is in use.
int ublk_delete(uint32_t index, std::string& why);
// Whether a process uses the disk, even one that was stopped.
int ublk_use(uint32_t index, bool& used, std::string& why);
int ublk_status(uint32_t index, UblkStatus& status, std::string& why);

}  // namespace rdmakit::nbd
