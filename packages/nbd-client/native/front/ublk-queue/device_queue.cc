#include "front/ublk-queue/device_queue.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/mapped_memory.h"

namespace rdmakit::nbd {

namespace {

// In pages of the system, not of the volume (ublk_drv: ublk_queue_cmd_buf_size).
size_t table_bytes(uint32_t depth) { return round_up_to_page(depth * sizeof(ublksrv_io_desc)); }

// Where the driver publishes a queue's requests (UBLKSRV_CMD_BUF_OFFSET): each queue has room for the maximum
// depth.
off_t table_offset(uint16_t queue) {
  return static_cast<off_t>(UBLKSRV_CMD_BUF_OFFSET + queue * table_bytes(UBLK_MAX_QUEUE_DEPTH));
}

}  // namespace

std::unique_ptr<DeviceQueue> DeviceQueue::open(UniqueFd device, uint16_t queue, int& error,
                                               std::string& why) {
  std::unique_ptr<DeviceQueue> self(new DeviceQueue(std::move(device), queue));
  // A command of ublk has 80 bytes. The completions need not interrupt the lane: it enters the kernel often
  // enough.
  error = self->ring_.open(kDeviceDepth, IORING_SETUP_SQE128 | IORING_SETUP_COOP_TASKRUN);
  if (error != 0) {
    why = "io_uring_setup(2) failed; the kernel allows no io_uring with entries of 128 bytes";
    return nullptr;
  }
  return self;
}

bool DeviceQueue::map() {
  void* const table = mmap(nullptr, table_bytes(kDeviceDepth), PROT_READ, MAP_SHARED | MAP_POPULATE,
                           device_.get(), table_offset(queue_));
  if (table == MAP_FAILED) return false;
  requests_ = static_cast<const ublksrv_io_desc*>(table);
  return true;
}

DeviceQueue::~DeviceQueue() {
  if (requests_ != nullptr) munmap(const_cast<ublksrv_io_desc*>(requests_), table_bytes(kDeviceDepth));
}

// ---- hot path begins: no allocation, no log, no lock, no system call but io_uring_enter ----

// There is an entry for each tag, and a tag is in one at most: room never runs out.
void DeviceQueue::add(uint32_t operation, uint16_t tag, int32_t result, uint8_t* memory) {
  io_uring_sqe* const entry = io_uring_get_sqe(ring_.get());
  io_uring_prep_rw(IORING_OP_URING_CMD, entry, device_.get(), nullptr, 0, operation);
  entry->user_data = tag;
  const ublksrv_io_cmd command{queue_, tag, result, reinterpret_cast<uint64_t>(memory)};
  std::memcpy(entry->cmd, &command, sizeof command);
}

bool DeviceQueue::enter(uint64_t wait) {
  int entered;
  if (wait == 0 || ready()) {
    entered = io_uring_submit_and_get_events(ring_.get());
  } else {
    __kernel_timespec limit{static_cast<long long>(wait / kSecond), static_cast<long long>(wait % kSecond)};
    io_uring_cqe* first;
    entered = io_uring_submit_and_wait_timeout(ring_.get(), &first, 1, &limit, nullptr);
  }
  // Entries that were not submitted are submitted by the next call.
  return entered >= 0 || entered == -ETIME || entered == -EINTR || entered == -EAGAIN || entered == -EBUSY;
}

bool DeviceQueue::take(uint16_t& tag, int32_t& result) {
  io_uring_cqe* entry;
  if (!ready() || io_uring_peek_cqe(ring_.get(), &entry) != 0) return false;
  tag = static_cast<uint16_t>(entry->user_data);
  result = entry->res;
  io_uring_cqe_seen(ring_.get(), entry);
  return true;
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
