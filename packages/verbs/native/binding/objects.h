// The verbs objects, each holding its parents, with the functions that JavaScript calls on them: they take a
// Napi::CallbackInfo, whose first argument is the object's own handle. addon.cc has their names.
#pragma once

#include <optional>

#include "binding/memory/kept_memory.h"
#include "binding/object.h"
#include "binding/reference_releaser.h"
#include "rdmakit/binding_call.h"

namespace rdmakit::binding {

// Calls a function when JavaScript's environment (a worker, the process) ends before the object does:
// a native thread must not ring the doorbell of an environment that is gone.
class EnvironmentHook {
 public:
  void set(napi_env env, void (*hook)(void* object), void* object) {
    if (napi_add_env_cleanup_hook(env, hook, object) == napi_ok) {
      env_ = env;
      hook_ = hook;
      object_ = object;
    }
  }
  void clear() {
    if (env_ != nullptr) napi_remove_env_cleanup_hook(env_, hook_, object_);
    env_ = nullptr;
  }

 private:
  napi_env env_ = nullptr;
  void (*hook_)(void*) = nullptr;
  void* object_ = nullptr;
};

class ContextObject final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::context;
  static constexpr const char* kName = "device context";
  // `owned`: opened by us; contexts of connection ids belong to librdmacm.
  ContextObject(Provider& provider, ibv_context* context, bool owned);
  ibv_context* context() const { return static_cast<ibv_context*>(object); }
  Napi::Value describe(const Napi::CallbackInfo& info);
  Napi::Value query(const Napi::CallbackInfo& info);
  Napi::Value query_port(const Napi::CallbackInfo& info);
  Napi::Value query_gids(const Napi::CallbackInfo& info);
  // Calls a function with every asynchronous event of the device from then on, until unwatch or close.
  void watch(const Napi::CallbackInfo& info);
  void unwatch();
  Napi::Value alloc_pd(const Napi::CallbackInfo& info);
  Napi::Value create_channel(const Napi::CallbackInfo& info);
  Napi::Value create_cq(const Napi::CallbackInfo& info);

 private:
  void destroy(void* verbs_object) override;
  void end_in_javascript() override { unwatch(); }
  bool owned_;
  uint64_t watch_ = 0;
  Napi::ThreadSafeFunction sink_;
  EnvironmentHook hook_;
};

class PdObject final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::protection_domain;
  static constexpr const char* kName = "protection domain";
  PdObject(ContextObject& parent, ibv_pd* pd) : Object(kKind, parent.provider, pd), parent_(&parent) {
    capabilities = parent.capabilities;
  }
  ibv_pd* pd() const { return static_cast<ibv_pd*>(object); }
  Napi::Value alloc_mr(const Napi::CallbackInfo& info);
  Napi::Value reg_mr(const Napi::CallbackInfo& info);
  Napi::Value reg_mr_async(const Napi::CallbackInfo& info);
  Napi::Value reg_dmabuf_mr(const Napi::CallbackInfo& info);
  Napi::Value alloc_mw(const Napi::CallbackInfo& info);
  Napi::Value create_srq(const Napi::CallbackInfo& info);
  Napi::Value create_ah(const Napi::CallbackInfo& info);

 private:
  void destroy(void* verbs_object) override;
  Ref<ibv_context> parent_;
};

class MrObject final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::memory_region;
  static constexpr const char* kName = "memory region";
  // Memory of ours.
  MrObject(Provider& provider, Ref<ibv_pd> parent, ibv_mr* mr, std::shared_ptr<Mapping> mapping)
      : Object(kKind, provider, mr), mapping_(std::move(mapping)), parent_(std::move(parent)) {}
  // Memory of the caller's ArrayBuffer, which lives as long as its registration; or, with an empty
  // `borrowed`, of a DMA buffer.
  MrObject(Napi::Env env, PdObject& parent, ibv_mr* mr, Napi::ArrayBuffer borrowed);
  ibv_mr* mr() const { return static_cast<ibv_mr*>(object); }
  // Memory of this process, which a DMA buffer is not.
  bool mapped() const { return mapping_ != nullptr || releaser_ != nullptr; }
  Napi::Value describe(const Napi::CallbackInfo& info);
  // The one ArrayBuffer over the region. `given`: to the program, which may hand it to I/O.
  Napi::Value buffer(const Napi::CallbackInfo& info);
  // ibv_rereg_mr(3) with new rights and, unless undefined, another domain.
  void reregister(const Napi::CallbackInfo& info);

 private:
  void destroy(void* verbs_object) override;
  // Borrowed memory goes with JavaScript's environment: it is not the device's any more then.
  bool destroys_here() override { return releaser_ != nullptr && !releaser_->await_release(); }
  // Detaches the ArrayBuffer: later accesses find length 0 instead of memory that is gone.
  void end_in_javascript() override;
  std::shared_ptr<Mapping> mapping_;
  std::optional<MappedBuffer> buffer_;
  Napi::Reference<Napi::ArrayBuffer> borrowed_;
  std::shared_ptr<ReferenceReleaser> releaser_;  // of memory that is borrowed
  Ref<ibv_pd> parent_;
};

class ChannelObject final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::completion_channel;
  static constexpr const char* kName = "completion channel";
  ChannelObject(ContextObject& parent, ibv_comp_channel* channel)
      : Object(kKind, parent.provider, channel), parent_(&parent) {}
  ibv_comp_channel* channel() const { return static_cast<ibv_comp_channel*>(object); }
  // Calls a function with a completion queue at each event, from then on, and when the channel cannot be read
  // any more with undefined and an error. Once for a channel.
  void watch(const Napi::CallbackInfo& info);
  // Whether the watch keeps the event loop alive; at first it does not.
  void set_ref(const Napi::CallbackInfo& info);

 private:
  void destroy(void* verbs_object) override;
  void end_in_javascript() override;
  Ref<ibv_context> parent_;
  uint64_t watch_ = 0;
  Napi::ThreadSafeFunction doorbell_;  // while it is watched
  EnvironmentHook hook_;
};

enum class Timestamps { none, device, wallclock };

class CqObject final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::completion_queue;
  static constexpr const char* kName = "completion queue";
  // `timestamps`: `cq` is an extended one (ibv_cq_ex).
  CqObject(ContextObject& parent, Ref<ibv_comp_channel> channel, ibv_cq* cq, Timestamps timestamps)
      : Object(kKind, parent.provider, cq),
        timestamps_(timestamps),
        parent_(&parent),
        channel_(std::move(channel)) {
    capabilities = parent.capabilities;
  }
  ibv_cq* cq() const { return static_cast<ibv_cq*>(object); }
  Timestamps timestamps() const { return timestamps_; }
  void resize(const Napi::CallbackInfo& info);
  int entries() { return cq()->cqe; }
  Napi::Value identity(const Napi::CallbackInfo& info);
  Napi::Value poll(const Napi::CallbackInfo& info);
  void request_notification(const Napi::CallbackInfo& info);
  Napi::Value create_array(const Napi::CallbackInfo& info);

 private:
  void destroy(void* verbs_object) override;
  Timestamps timestamps_;
  Ref<ibv_context> parent_;
  Ref<ibv_comp_channel> channel_;
};

class SrqObject final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::shared_receive_queue;
  static constexpr const char* kName = "shared receive queue";
  SrqObject(PdObject& parent, ibv_srq* srq) : Object(kKind, parent.provider, srq), parent_(&parent) {
    capabilities = parent.capabilities;
  }
  ibv_srq* srq() const { return static_cast<ibv_srq*>(object); }
  Napi::Value describe(const Napi::CallbackInfo& info);
  void set_limit(const Napi::CallbackInfo& info);

 private:
  void destroy(void* verbs_object) override;
  Ref<ibv_pd> parent_;
};

class MwObject final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::memory_window;
  static constexpr const char* kName = "memory window";
  MwObject(PdObject& parent, ibv_mw* mw) : Object(kKind, parent.provider, mw), parent_(&parent) {}
  ibv_mw* mw() const { return static_cast<ibv_mw*>(object); }
  uint32_t key() { return mw()->rkey; }
  // A bind was posted: the region stays for as long as the window, or until it is bound to another.
  void bound_to(MrObject& region) { region_ = Ref<ibv_mr>(&region); }

 private:
  void destroy(void* verbs_object) override;
  Ref<ibv_mr> region_;
  Ref<ibv_pd> parent_;
};

class AhObject final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::address_handle;
  static constexpr const char* kName = "address handle";
  AhObject(PdObject& parent, ibv_ah* ah) : Object(kKind, parent.provider, ah), parent_(&parent) {}
  ibv_ah* ah() const { return static_cast<ibv_ah*>(object); }

 private:
  void destroy(void* verbs_object) override;
  Ref<ibv_pd> parent_;
};

class IdObject final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::connection_id;
  static constexpr const char* kName = "connection id";
  IdObject(Provider& provider, std::shared_ptr<ConnectionId> id)
      : Object(kKind, provider, id.get()), id_(std::move(id)) {}
  ConnectionId& id() const { return *id_; }
  const std::shared_ptr<ConnectionId>& shared() const { return id_; }
  bool destroyed() override { return Object::destroyed() && (id_ == nullptr || id_->settled()); }
  bool destroys_here() override { return id_->closes_at_once(); }
  void set_sink(const Napi::CallbackInfo& info);
  // Whether the sink keeps the event loop alive; at first it does not.
  void set_ref(const Napi::CallbackInfo& info);
  void listen(const Napi::CallbackInfo& info);
  void add_alternative(const Napi::CallbackInfo& info);
  void resolve(const Napi::CallbackInfo& info);
  Napi::Value device(const Napi::CallbackInfo& info);
  void connect(const Napi::CallbackInfo& info);
  void accept(const Napi::CallbackInfo& info);
  void reject(const Napi::CallbackInfo& info);
  void disconnect(const Napi::CallbackInfo& info);
  Napi::Value local_address(const Napi::CallbackInfo& info);
  Napi::Value peer_address(const Napi::CallbackInfo& info);

 private:
  void destroy(void* verbs_object) override;
  void end_in_javascript() override;
  std::shared_ptr<ConnectionId> id_;  // until its peer can do nothing here any more
  EnvironmentHook hook_;
  Napi::ThreadSafeFunction sink_;
  bool has_sink_ = false;
};

class QpObject final : public Object {
 public:
  static constexpr HandleKind kKind = HandleKind::queue_pair;
  static constexpr const char* kName = "queue pair";
  // `id` and `srq` may be null.
  QpObject(IdObject* id, PdObject& pd, CqObject& send, CqObject& receive, SrqObject* srq, ibv_qp* qp,
           const ibv_qp_cap& caps)
      : Object(kKind, pd.provider, qp),
        caps_(caps),
        connection_(id == nullptr ? nullptr : id->shared()),
        id_(id),
        pd_(&pd),
        send_(&send),
        receive_(&receive),
        srq_(srq) {
    capabilities = pd.capabilities;
    max_inline_data = caps.max_inline_data;
  }
  ibv_qp* qp() const { return static_cast<ibv_qp*>(object); }
  const ibv_qp_cap& caps() const { return caps_; }
  Napi::Value describe(const Napi::CallbackInfo& info);
  void to_error(const Napi::CallbackInfo& info);
  void modify(const Napi::CallbackInfo& info);
  Napi::Value query(const Napi::CallbackInfo& info);
  void attach_multicast(const Napi::CallbackInfo& info);
  void detach_multicast(const Napi::CallbackInfo& info);
  void post_send(const Napi::CallbackInfo& info);
  Napi::Value create_send_slots(const Napi::CallbackInfo& info);
  bool destroyed() override {
    return Object::destroyed() && (connection_ == nullptr || connection_->settled());
  }

 private:
  void destroy(void* verbs_object) override;
  ibv_qp_cap caps_;
  std::shared_ptr<ConnectionId> connection_;  // until its peer can do nothing here any more
  Ref<ConnectionId> id_;
  Ref<ibv_pd> pd_;
  Ref<ibv_cq> send_;
  Ref<ibv_cq> receive_;
  Ref<ibv_srq> srq_;
  // Multicast groups that it is attached to.
  struct Group {
    ibv_gid gid;
    uint16_t lid;
  };
  std::vector<Group> groups_;
};

// The provider that a string of JavaScript's names, or a JavaScript TypeError.
Provider& provider_named(const Napi::Value& value);

// An external of a native context; src/context.ts keeps one Context for each.
Napi::Value wrap_context(Napi::Env env, Provider& provider, ibv_context* context, bool owned);

// Functions that JavaScript calls without an object, or on one of two kinds of objects.
Napi::Value provider_available(const Napi::CallbackInfo& info);
Napi::Value list_devices(const Napi::CallbackInfo& info);
Napi::Value open_device(const Napi::CallbackInfo& info);
Napi::Value kept_memory(const Napi::CallbackInfo& info);
Napi::Value create_id(const Napi::CallbackInfo& info);
Napi::Value create_qp(const Napi::CallbackInfo& info);
void post_receive(const Napi::CallbackInfo& info);
Napi::Value create_receive_slots(const Napi::CallbackInfo& info);
int notify_service_manager(const Napi::CallbackInfo& info);

}  // namespace rdmakit::binding
