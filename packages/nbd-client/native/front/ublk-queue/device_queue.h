// One queue of a ublk device (linux/ublk_cmd.h), as entries of an io_uring of its own.
//
//   fetch(tag, memory)               the kernel may put a request there, once the device is started
//   map()                            where it says what each request wants
//   take(tag, result)                it has: request(tag) says what it wants, `memory` has a WRITE's payload
//   commit(tag, result, memory)      done: a READ's data are in `memory`, where the next request may come
//
// Only the thread that fetches may do the rest: the driver treats it as the queue's server while it lives.
#pragma once

#include <linux/ublk_cmd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "kernel/ring.h"
#include "kernel/ublk.h"

namespace rdmakit::nbd {

class DeviceQueue {
 public:
  // `device`: /dev/ublkcN, which the queue closes. nullptr with `error` (errno value) and `why`. Nothing is
  // asked of the driver yet.
  static std::unique_ptr<DeviceQueue> open(UniqueFd device, uint16_t queue, int& error, std::string& why);
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  // Readable when take() has something.
  int descriptor() const { return ring_.get()->ring_fd; }

  // Only after all tags are fetched: from the first map on the driver accepts no other process, and releases
  // this one only when it has fetched.
  bool map();

  // ---- hot path ----
  void fetch(uint16_t tag, uint8_t* memory) { add(UBLK_IO_FETCH_REQ, tag, -1, memory); }
  // `result`: bytes, or a negative errno value.
  void commit(uint16_t tag, int32_t result, uint8_t* memory) {
    add(UBLK_IO_COMMIT_AND_FETCH_REQ, tag, result, memory);
  }
  // Submits the added entries to the kernel, and waits up to `wait` ns for a completion. False: it failed.
  bool enter(uint64_t wait = 0);
  // The kernel has not taken all that was added.
  bool pending() const { return io_uring_sq_ready(ring_.get()) > 0; }
  bool ready() const { return io_uring_cq_ready(ring_.get()) > 0; }
  // False: there is nothing. `result` below zero: the tag is fetched no more, for the device goes.
  bool take(uint16_t& tag, int32_t& result);
  const ublksrv_io_desc& request(uint16_t tag) const { return requests_[tag]; }

 private:
  DeviceQueue(UniqueFd device, uint16_t queue) : device_(std::move(device)), queue_(queue) {}
  void add(uint32_t operation, uint16_t tag, int32_t result, uint8_t* memory);

  const UniqueFd device_;
  const uint16_t queue_;
  Ring ring_;
  const ublksrv_io_desc* requests_ = nullptr;
};

}  // namespace rdmakit::nbd
