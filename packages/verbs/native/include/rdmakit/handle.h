// The contract between native addons: how a verbs object travels from @rdmakit/verbs to the code that
// posts on it. The object itself is a genuine `ibv_*` struct, so the inline verbs of
// <infiniband/verbs.h> (ibv_post_send, ibv_post_recv, ibv_poll_cq, ibv_req_notify_cq) work on it
// whatever provider made it. Plain C layout: addons share this header and nothing else.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace rdmakit {

inline constexpr uint32_t kHandleAbi = 2;

enum class HandleKind : uint32_t {
  context = 1,
  protection_domain,
  memory_region,
  completion_channel,
  completion_queue,
  queue_pair,
  connection_id,  // ConnectionId*; this and what follows stays within @rdmakit/verbs
  shared_receive_queue,
  memory_window,
  address_handle,
  send_slots,
  receive_slots,
  completion_array,
};

// Bytes of RDMA WRITEs that are not in registered memory yet: those for [address, address + length), within
// one scatter/gather element, are at `data`. That is no part of any request; the place stays registered, and
// nobody else's, until the call is over. SENDs and inline requests take what is at the place.
struct LentBytes {
  uint8_t* data;
  uint64_t address;
  uint64_t length;

  // Where the bytes of `at` are now; of `most`, so many as lie there one behind the other.
  uint8_t* find(uint8_t* at, uint64_t& most) const {
    const uint64_t begin = reinterpret_cast<uint64_t>(at);
    const uint64_t offset = begin - address;
    if (begin < address) {
      most = std::min(most, address - begin);
      return at;
    }
    if (offset >= length) return at;
    most = std::min(most, length - offset);
    return data + offset;
  }
};

// The verbs that a data path needs and that <infiniband/verbs.h> does not inline.
// All return 0 or an errno value unless said otherwise.
struct DataPathVerbs {
  // ibv_get_cq_event(3) on a channel whose fd is non-blocking (all of ours are): 0, or EAGAIN when
  // there is no event. A readable fd is a hint only: EAGAIN after poll(2) said "readable" is normal.
  // On a software provider with manual progress this is also what moves data.
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context);
  // ibv_ack_cq_events(3)
  void (*ack_cq_events)(ibv_cq* cq, unsigned int count);
  // ibv_modify_qp(3) to IBV_QPS_ERR: everything outstanding completes with IBV_WC_WR_FLUSH_ERR.
  int (*move_to_error)(ibv_qp* qp);
  // ibv_post_send(3) of RDMA WRITEs, some of whose bytes are lent until this returns: what leaves before,
  // leaves from there, and unless it is refused all the rest has been copied to its address. Null where a
  // device takes bytes from registered memory only.
  int (*post_send_lent)(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad, const LentBytes& lent) = nullptr;
};

// One reference-counted verbs object. `release` of the last reference destroys the object and then releases
// its parents (a queue pair holds its CQs, its PD and its connection id). retain and release may be called on
// any thread.
struct Handle {
  uint32_t abi;  // kHandleAbi
  HandleKind kind;
  void* object;                // ibv_context*, ibv_pd*, ibv_mr*, ibv_comp_channel*, ibv_cq*, ibv_qp* …
  const DataPathVerbs* verbs;  // valid as long as the process
  uint32_t capabilities;       // kCapability… bits of the device
  uint32_t max_inline_data;    // bytes, granted by the device; queue pairs only, else 0
  void (*retain)(Handle* self);
  void (*release)(Handle* self);
};

// Capability bits: what a device can do beyond SEND, RECV, RDMA WRITE and RDMA READ.
inline constexpr uint32_t kCapabilityWriteWithImmediate = 1u << 0;
inline constexpr uint32_t kCapabilitySendWithImmediate = 1u << 1;
inline constexpr uint32_t kCapabilityAtomics = 1u << 2;
inline constexpr uint32_t kCapabilitySharedReceiveQueue = 1u << 3;
inline constexpr uint32_t kCapabilityMemoryWindow = 1u << 4;  // type 2, with SEND_WITH_INV and LOCAL_INV
inline constexpr uint32_t kCapabilityDatagram = 1u << 5;      // UD, UC, address handles, explicit RTR and RTS
inline constexpr uint32_t kCapabilityMulticast = 1u << 6;
inline constexpr uint32_t kCapabilityTimestamps = 1u << 7;  // extended CQ with completion timestamps
inline constexpr uint32_t kCapabilityResize = 1u << 8;      // of a CQ
inline constexpr uint32_t kCapabilityReregister = 1u << 9;  // of a memory region
inline constexpr uint32_t kCapabilityDmaBuffer = 1u << 10;

// napi_type_tag of an external that carries a Handle*. Check it before a cast.
inline constexpr uint64_t kHandleTagLower = 0x8d1f63a0c2be4e57;
inline constexpr uint64_t kHandleTagUpper = 0x7264'6d61'6b69'7401;

// Owns one reference.
template <typename Object>
class Ref {
 public:
  Ref() = default;
  explicit Ref(Handle* handle) : handle_(handle) {
    if (handle_ != nullptr) handle_->retain(handle_);
  }
  Ref(const Ref& other) : Ref(other.handle_) {}
  Ref(Ref&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Ref() {
    if (handle_ != nullptr) handle_->release(handle_);
  }
  Object* get() const { return handle_ == nullptr ? nullptr : static_cast<Object*>(handle_->object); }
  Object* operator->() const { return get(); }
  const Handle* handle() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  Handle* handle_ = nullptr;
};

using PdRef = Ref<ibv_pd>;
using MrRef = Ref<ibv_mr>;
using ChannelRef = Ref<ibv_comp_channel>;
using CqRef = Ref<ibv_cq>;
using QpRef = Ref<ibv_qp>;
using SrqRef = Ref<ibv_srq>;

}  // namespace rdmakit
