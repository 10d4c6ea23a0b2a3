#include "ibverbs/libraries.h"

#include <dlfcn.h>

#include <cstring>

namespace rdmakit::ibverbs {
namespace {

struct Loaded {
  Libraries functions{};
  std::string problem;
};

constexpr const char* kInstall =
    "install rdma-core's libraries (Debian: apt install libibverbs1 librdmacm1 ibverbs-providers)";

template <typename Function>
void find(void* library, const char* name, Function*& function, std::string& problem) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr && problem.empty()) {
    problem = std::string(name) + " is missing from the installed RDMA libraries; " + kInstall;
  }
}

template <typename Function>
void find_newer(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

Loaded load() {
  Loaded loaded;
  // RTLD_GLOBAL is not needed: device drivers are loaded by libibverbs itself.
  void* verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (verbs == nullptr) {
    loaded.problem = std::string("libibverbs.so.1 cannot be loaded; ") + kInstall;
    return loaded;
  }
  void* cm = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
  if (cm == nullptr) {
    loaded.problem = std::string("librdmacm.so.1 cannot be loaded; ") + kInstall;
    return loaded;
  }
  Libraries& f = loaded.functions;
  std::string& problem = loaded.problem;
  find(verbs, "ibv_get_device_list", f.get_device_list, problem);
  find(verbs, "ibv_free_device_list", f.free_device_list, problem);
  find(verbs, "ibv_get_device_name", f.get_device_name, problem);
  find(verbs, "ibv_get_device_guid", f.get_device_guid, problem);
  find(verbs, "ibv_open_device", f.open_device, problem);
  find(verbs, "ibv_close_device", f.close_device, problem);
  find(verbs, "ibv_query_device", f.query_device, problem);
  find(verbs, "ibv_query_port", f.query_port, problem);
  find(verbs, "ibv_alloc_pd", f.alloc_pd, problem);
  find(verbs, "ibv_dealloc_pd", f.dealloc_pd, problem);
  find(verbs, "ibv_reg_mr", f.reg_mr, problem);
  find(verbs, "ibv_dereg_mr", f.dereg_mr, problem);
  find(verbs, "ibv_create_comp_channel", f.create_comp_channel, problem);
  find(verbs, "ibv_destroy_comp_channel", f.destroy_comp_channel, problem);
  find(verbs, "ibv_create_cq", f.create_cq, problem);
  find(verbs, "ibv_destroy_cq", f.destroy_cq, problem);
  find(verbs, "ibv_get_cq_event", f.get_cq_event, problem);
  find(verbs, "ibv_ack_cq_events", f.ack_cq_events, problem);
  find(verbs, "ibv_create_qp", f.create_qp, problem);
  find(verbs, "ibv_modify_qp", f.modify_qp, problem);
  find(verbs, "ibv_query_qp", f.query_qp, problem);
  find(verbs, "ibv_destroy_qp", f.destroy_qp, problem);
  find(verbs, "ibv_query_gid", f.query_gid, problem);
  find(verbs, "ibv_get_async_event", f.get_async_event, problem);
  find(verbs, "ibv_ack_async_event", f.ack_async_event, problem);
  find(verbs, "ibv_resize_cq", f.resize_cq, problem);
  find(verbs, "ibv_create_srq", f.create_srq, problem);
  find(verbs, "ibv_modify_srq", f.modify_srq, problem);
  find(verbs, "ibv_query_srq", f.query_srq, problem);
  find(verbs, "ibv_destroy_srq", f.destroy_srq, problem);
  find(verbs, "ibv_create_ah", f.create_ah, problem);
  find(verbs, "ibv_destroy_ah", f.destroy_ah, problem);
  find(verbs, "ibv_attach_mcast", f.attach_mcast, problem);
  find(verbs, "ibv_detach_mcast", f.detach_mcast, problem);
  find(verbs, "ibv_fork_init", f.fork_init, problem);
  find_newer(verbs, "ibv_rereg_mr", f.rereg_mr);
  find_newer(verbs, "ibv_is_fork_initialized", f.is_fork_initialized);
  find_newer(verbs, "_ibv_query_gid_table", f.query_gid_table);
  find_newer(verbs, "ibv_reg_dmabuf_mr", f.reg_dmabuf_mr);
  find(cm, "rdma_get_devices", f.get_cm_devices, problem);
  find(cm, "rdma_free_devices", f.free_cm_devices, problem);
  find(cm, "rdma_create_event_channel", f.create_event_channel, problem);
  find(cm, "rdma_create_id", f.create_id, problem);
  find(cm, "rdma_destroy_id", f.destroy_id, problem);
  find(cm, "rdma_bind_addr", f.bind_addr, problem);
  find(cm, "rdma_listen", f.listen, problem);
  find(cm, "rdma_resolve_addr", f.resolve_addr, problem);
  find(cm, "rdma_resolve_route", f.resolve_route, problem);
  find(cm, "rdma_create_qp", f.create_cm_qp, problem);
  find(cm, "rdma_connect", f.connect, problem);
  find(cm, "rdma_accept", f.accept, problem);
  find(cm, "rdma_reject", f.reject, problem);
  find(cm, "rdma_disconnect", f.disconnect, problem);
  find(cm, "rdma_set_option", f.set_option, problem);
  find(cm, "rdma_get_cm_event", f.get_cm_event, problem);
  find(cm, "rdma_ack_cm_event", f.ack_cm_event, problem);
  if (!problem.empty()) return loaded;
  if (const int error = prepare_for_fork(f); error != 0)
    problem = std::string("ibv_fork_init: ") + strerror(error) +
              "; load this before anything else registers memory, or set RDMAV_FORK_SAFE=1";
  return loaded;
}

}  // namespace

int prepare_for_fork(const Libraries& lib) {
  if (lib.is_fork_initialized != nullptr && lib.is_fork_initialized() != IBV_FORK_DISABLED) return 0;
  return lib.fork_init();
}

const Libraries* libraries(std::string& why) {
  static const Loaded loaded = load();
  if (loaded.problem.empty()) return &loaded.functions;
  why = loaded.problem;
  return nullptr;
}

}  // namespace rdmakit::ibverbs
