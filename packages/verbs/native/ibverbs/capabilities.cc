#include "ibverbs/capabilities.h"

#include <cerrno>
#include <map>
#include <mutex>
#include <string>

#include "ibverbs/reregister.h"
#include "rdmakit/handle.h"

namespace rdmakit::ibverbs {
namespace {

// Drivers say some things of themselves (ibv_query_device_ex(3)); what they do not say is tried out.
uint32_t said(const Libraries& lib, ibv_context* context, bool& windows) {
  ibv_device_attr_ex extended{};
  verbs_context* extension = verbs_get_ctx_op(context, query_device_ex);
  if (extension == nullptr || extension->query_device_ex(context, nullptr, &extended, sizeof extended) != 0) {
    extended = {};
    if (lib.query_device(context, &extended.orig_attr) != 0) return 0;
  }
  const ibv_device_attr& attributes = extended.orig_attr;
  windows =
      (attributes.device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0;
  uint32_t bits = 0;
  if (context->device->transport_type == IBV_TRANSPORT_IB) {
    // RFC 7306 came after most iWARP devices: neither siw nor cxgb4 carry immediate data.
    bits |= kCapabilityWriteWithImmediate | kCapabilitySendWithImmediate | kCapabilityDatagram;
    if (attributes.max_mcast_grp > 0) bits |= kCapabilityMulticast;
  }
  if (attributes.atomic_cap != IBV_ATOMIC_NONE) bits |= kCapabilityAtomics;
  if (attributes.max_srq > 0) bits |= kCapabilitySharedReceiveQueue;
  if (extended.completion_timestamp_mask != 0 && verbs_get_ctx_op(context, create_cq_ex) != nullptr) {
    bits |= kCapabilityTimestamps;
  }
  return bits;
}

bool resizes(const Libraries& lib, ibv_context* context) {
  ibv_cq* cq = lib.create_cq(context, 1, nullptr, nullptr, 0);
  if (cq == nullptr) return false;
  const bool resized = lib.resize_cq(cq, cq->cqe + 1) == 0;
  lib.destroy_cq(cq);
  return resized;
}

bool allocates_windows(ibv_pd* pd) {
  ibv_mw* window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  if (window == nullptr) return false;
  ibv_dealloc_mw(window);
  return true;
}

bool reregisters(const Libraries& lib, ibv_pd* pd) {
  alignas(4096) static uint8_t page[4096];
  ibv_mr* mr = lib.reg_mr(pd, page, sizeof page, IBV_ACCESS_LOCAL_WRITE);
  if (mr == nullptr) return false;
  const bool done = reregister(lib, mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0) == 0;
  lib.dereg_mr(mr);
  return done;
}

// No descriptor is -1: a driver that can gets as far as saying so.
bool takes_dmabufs(const Libraries& lib, ibv_pd* pd) {
  if (lib.reg_dmabuf_mr == nullptr) return false;
  ibv_mr* mr = lib.reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
  if (mr != nullptr) lib.dereg_mr(mr);
  return mr != nullptr || errno == EBADF;
}

uint32_t ask(const Libraries& lib, ibv_context* context) {
  bool windows = false;
  uint32_t bits = said(lib, context, windows);
  if (resizes(lib, context)) bits |= kCapabilityResize;
  ibv_pd* pd = lib.alloc_pd(context);
  if (pd == nullptr) return bits;
  if (windows && allocates_windows(pd)) bits |= kCapabilityMemoryWindow;
  if (reregisters(lib, pd)) bits |= kCapabilityReregister;
  if (takes_dmabufs(lib, pd)) bits |= kCapabilityDmaBuffer;
  lib.dealloc_pd(pd);
  return bits;
}

}  // namespace

uint32_t capabilities_of(const Libraries& lib, ibv_context* context) {
  // By name and GUID, not by context: librdmacm closes its own when it likes, and addresses come again.
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<std::string, uint64_t>, uint32_t>;
  const std::pair device(std::string(context->device->name), lib.get_device_guid(context->device));
  const std::lock_guard lock(mutex);
  if (const auto found = known->find(device); found != known->end()) return found->second;
  return (*known)[device] = ask(lib, context);
}

}  // namespace rdmakit::ibverbs
