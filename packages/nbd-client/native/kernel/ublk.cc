#include "kernel/ublk.h"

#include <fcntl.h>
#include <linux/ublk_cmd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "kernel/ring.h"
#include "system/error_reason.h"
#include "volume/limits.h"

namespace rdmakit::nbd {

using namespace volume;

namespace {

// For lanes to fetch, which takes them no time, and for what the kernel does itself meanwhile (udev,
// partitions).
constexpr uint64_t kStartTime = 60 * kSecond;
constexpr const char* kControl = "/dev/ublk-control";
// sectors of 512 bytes
constexpr uint32_t kLargestRequest = kDeviceRequest / 512;
constexpr uint32_t kLargestDiscard = 1 << 21;

// One command of the control device, which is asked by io_uring only. Those without a buffer of ours may be
// given up after `limit` (ns): ETIMEDOUT.
int command(uint32_t operation, ublksrv_ctrl_cmd body, std::string& why, uint64_t limit = 0) {
  const UniqueFd control(::open(kControl, O_RDWR | O_CLOEXEC));
  if (!control) return with_reason(why, errno, std::string(kControl) + ": " + strerror(errno));
  Ring ring;
  if (const int error = ring.open(4, IORING_SETUP_SQE128); error != 0)
    return with_reason(why, error, std::string("io_uring_setup(2): ") + strerror(error));
  io_uring_sqe* const entry = io_uring_get_sqe(ring.get());
  io_uring_prep_rw(IORING_OP_URING_CMD, entry, control.get(), nullptr, 0, operation);
  std::memcpy(entry->cmd, &body, sizeof body);
  io_uring_cqe* completion = nullptr;
  int error;
  do {
    error = -io_uring_submit(ring.get());
  } while (error == EINTR || error == EAGAIN);
  // A signal ends the wait, not the command, which may still write to its buffer.
  for (const uint64_t deadline = limit == 0 ? UINT64_MAX : now_ns() + limit; error <= 0;) {
    const uint64_t left = deadline - std::min(deadline, now_ns());
    __kernel_timespec time{static_cast<long long>(left / kSecond), static_cast<long long>(left % kSecond)};
    error = -io_uring_wait_cqe_timeout(ring.get(), &completion, limit == 0 ? nullptr : &time);
    if (error == EINTR) {
      error = 0;
      continue;
    }
    break;
  }
  if (error == ETIME) error = ETIMEDOUT;
  if (error == 0) error = completion->res < 0 ? -completion->res : 0;
  if (error != 0) why = strerror(error);
  return error;
}

ublksrv_ctrl_cmd about(uint32_t index) {
  ublksrv_ctrl_cmd body{};
  body.dev_id = index;
  body.queue_id = UINT16_MAX;
  return body;
}

ublksrv_ctrl_cmd with(uint32_t index, void* data, size_t bytes) {
  ublksrv_ctrl_cmd body = about(index);
  body.addr = reinterpret_cast<uint64_t>(data);
  body.len = static_cast<uint16_t>(bytes);
  return body;
}

ublksrv_ctrl_cmd by_us(uint32_t index) {
  ublksrv_ctrl_cmd body = about(index);
  body.data[0] = static_cast<uint64_t>(getpid());
  return body;
}

}  // namespace

int ublk_add(const UblkDevice& device, uint32_t& index, uint16_t& queues, std::string& why) {
  ublksrv_ctrl_dev_info information{};
  information.nr_hw_queues = device.queues;
  information.queue_depth = kDeviceDepth;
  information.max_io_buf_bytes = kDeviceRequest;
  information.dev_id = static_cast<uint32_t>(device.index);
  information.ublksrv_pid = getpid();
  // Requests that a dying server has not answered are sent again to its successor.
  if (device.kept) information.flags = UBLK_F_USER_RECOVERY | UBLK_F_USER_RECOVERY_REISSUE;
  information.ublksrv_flags = device.identifier;
  int error = command(UBLK_CMD_ADD_DEV,
                      with(static_cast<uint32_t>(device.index), &information, sizeof information), why);
  if (error != 0) return error;
  index = information.dev_id;
  queues = information.nr_hw_queues;
  ublk_params parameters{};
  parameters.len = sizeof parameters;
  parameters.types = UBLK_PARAM_TYPE_BASIC | UBLK_PARAM_TYPE_DISCARD;
  parameters.basic.logical_bs_shift = parameters.basic.physical_bs_shift = 12;
  parameters.basic.io_min_shift = parameters.basic.io_opt_shift = 12;
  parameters.basic.max_sectors = kLargestRequest;
  parameters.basic.dev_sectors = device.size / 512;
  parameters.discard.discard_granularity = kPage;
  parameters.discard.max_discard_sectors = parameters.discard.max_write_zeroes_sectors = kLargestDiscard;
  parameters.discard.max_discard_segments = 1;
  error = command(UBLK_CMD_SET_PARAMS, with(index, &parameters, sizeof parameters), why);
  std::string ignored;
  if (error != 0) ublk_delete(index, ignored);
  return error;
}

int ublk_open(uint32_t index, int& descriptor, std::string& why) {
  const std::string path = "/dev/ublkc" + std::to_string(index);
  descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  return descriptor < 0 ? with_reason(why, errno, path + ": " + strerror(errno)) : 0;
}

int ublk_start(uint32_t index, std::string& why) {
  return command(UBLK_CMD_START_DEV, by_us(index), why, kStartTime);
}

int ublk_recover(uint32_t index, std::string& why) {
  return command(UBLK_CMD_START_USER_RECOVERY, about(index), why);
}

// With read(2) the caller could not even be killed before a process serves the disk, so this uses io_uring,
// with an entry for which no worker waits. Until the answer comes the kernel has the page pinned, even if it
// is unmapped.
int ublk_nudge(int disk, uint64_t offset, std::string& why) {
  Ring ring;
  if (const int error = ring.open(1, 0); error != 0)
    return with_reason(why, error, std::string("io_uring_setup(2): ") + strerror(error));
  void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return with_reason(why, errno, std::string("mmap(2): ") + strerror(errno));
  io_uring_sqe* const entry = io_uring_get_sqe(ring.get());
  io_uring_prep_read(entry, disk, page, kPage, offset);
  entry->rw_flags = RWF_NOWAIT;
  const int error = -io_uring_submit(ring.get());
  munmap(page, kPage);
  return error > 0 ? with_reason(why, error, std::string("io_uring_enter(2): ") + strerror(error)) : 0;
}

int ublk_resume(uint32_t index, std::string& why) {
  return command(UBLK_CMD_END_USER_RECOVERY, by_us(index), why, kStartTime);
}

int ublk_stop(uint32_t index, std::string& why) { return command(UBLK_CMD_STOP_DEV, about(index), why); }

int ublk_delete(uint32_t index, std::string& why) { return command(UBLK_CMD_DEL_DEV, about(index), why); }

// The driver refuses changes to a disk that exists or is still open.
int ublk_use(uint32_t index, bool& used, std::string& why) {
  ublk_params parameters{};
  parameters.len = sizeof parameters;
  int error = command(UBLK_CMD_GET_PARAMS, with(index, &parameters, sizeof parameters), why);
  if (error != 0) return error;
  parameters.len = sizeof parameters;
  error = command(UBLK_CMD_SET_PARAMS, with(index, &parameters, sizeof parameters), why);
  used = error == EACCES;
  // EINVAL: it has none yet, and so no disk.
  return used || error == EINVAL ? 0 : error;
}

int ublk_status(uint32_t index, UblkStatus& status, std::string& why) {
  ublksrv_ctrl_dev_info information{};
  const int error = command(UBLK_CMD_GET_DEV_INFO, with(index, &information, sizeof information), why);
  if (error != 0) return error;
  if (information.dev_id != index || information.nr_hw_queues == 0)
    return with_reason(why, EPROTO, std::string(kControl) + " is not the ublk driver's");
  using State = UblkStatus::State;
  const State state =
      information.state > UBLK_S_DEV_QUIESCED ? State::other : static_cast<State>(information.state);
  status = {index,
            information.ublksrv_flags,
            information.nr_hw_queues,
            information.ublksrv_pid,
            (information.flags & UBLK_F_USER_RECOVERY) != 0,
            state};
  return 0;
}

}  // namespace rdmakit::nbd
