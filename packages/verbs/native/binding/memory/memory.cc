// Memory regions.
#include <cerrno>
#include <string_view>

#include "binding/failure.h"
#include "binding/objects.h"
#include "binding/values.h"

namespace rdmakit::binding {

MrObject::MrObject(Napi::Env env, PdObject& parent, ibv_mr* mr, Napi::ArrayBuffer borrowed)
    : Object(kKind, parent.provider, mr), parent_(&parent) {
  capabilities = parent.capabilities;
  if (borrowed.IsEmpty()) return;
  borrowed_ = Napi::Persistent(borrowed);
  releaser_ = ReferenceReleaser::of(env);
}

void MrObject::destroy(void* verbs_object) {
  auto* mr = static_cast<ibv_mr*>(verbs_object);
  const int error = mapping_ == nullptr ? provider.dereg_mr(mr) : provider.dereg_mr_to_unmap(mr);
  // A device that refuses, whatever it says, may still give access to the memory, which stays where it is
  // then. EBUSY: a window is bound. ETIMEDOUT: a stopped peer may continue its copy, which does no harm in a
  // mapping, because it is the peer's own.
  const bool gone = error == 0 || (error == ETIMEDOUT && mapping_ != nullptr);
  if (!gone) {
    new std::shared_ptr<Mapping>(std::move(mapping_));
    if (releaser_ == nullptr) {
      borrowed_.SuppressDestruct();
    } else {
      releaser_->keep(std::move(borrowed_));
    }
  } else if (releaser_ != nullptr) {
    releaser_->release(std::move(borrowed_));
  }
  mapping_.reset();
  parent_ = {};
}

// mrBuffer(mr, given)
Napi::Value MrObject::buffer(const Napi::CallbackInfo& info) {
  if (!borrowed_.IsEmpty()) return borrowed_.Value();
  if (mapping_ == nullptr)
    throw failure(info.Env(), EINVAL, "mmap", "a DMA buffer is not memory of this process");
  if (!buffer_) buffer_.emplace(info.Env(), mapping_);
  if (info[1].ToBoolean()) buffer_->give();
  return buffer_->value();
}

void MrObject::end_in_javascript() {
  if (!buffer_) return;
  buffer_->end();
  buffer_.reset();
}

namespace {

Napi::Error refusal(Napi::Env env, int error, const char* verb) {
  return failure(env, error, verb,
                 error == EPERM && std::string_view(verb) == "ibv_reg_mr"
                     ? "a peer may not reach memory that is not shared: take allocateMemoryRegion's, or "
                       "run both ends as one user in one PID namespace (process_vm_readv(2))"
                     : reason(error));
}

// Registers memory on a thread of libuv's pool: pinning a gigabyte takes a while.
class Registration : public PromiseWorker {
 protected:
  Registration(Napi::Env env, PdObject& pd, int access)
      : PromiseWorker(env, "ibv_reg_mr"),
        provider_(pd.provider),
        pd_(&pd),
        capabilities_(pd.capabilities),
        access_(access) {}
  void register_memory(void* address, size_t length) {
    mr_ = provider_.reg_mr(pd_.get(), address, length, access_);
    if (mr_ == nullptr) fail("ibv_reg_mr");
  }
  void fail(const char* verb) {
    error_ = errno;
    verb_ = verb;
  }
  // On JavaScript's thread, of memory that is registered.
  virtual MrObject* object(ibv_mr* mr) = 0;

  void OnOK() override {
    Napi::HandleScope scope(Env());
    if (mr_ == nullptr) {
      deferred_.Reject(refusal(Env(), error_, verb_).Value());
      return;
    }
    MrObject* const made = object(mr_);
    made->capabilities = capabilities_;
    deferred_.Resolve(Object::wrap(Env(), made));
  }

  Provider& provider_;
  Ref<ibv_pd> pd_;

 private:
  uint32_t capabilities_;
  int access_;
  ibv_mr* mr_ = nullptr;
  int error_ = 0;
  const char* verb_ = "";
};

class Allocation final : public Registration {
 public:
  Allocation(Napi::Env env, PdObject& pd, size_t length, int access, const MemoryOptions& options)
      : Registration(env, pd, access), length_(length), options_(options) {}

 private:
  void Execute() override {
    mapping_ = Mapping::create(provider_, length_, options_);
    if (mapping_ == nullptr) {
      fail("mmap");
    } else {
      register_memory(mapping_->address(), length_);
    }
  }
  MrObject* object(ibv_mr* mr) override {
    return new MrObject(provider_, std::move(pd_), mr, std::move(mapping_));
  }

  size_t length_;
  MemoryOptions options_;
  std::shared_ptr<Mapping> mapping_;
};

// Bytes of the caller's ArrayBuffer.
struct Borrowed {
  Napi::ArrayBuffer buffer;
  uint8_t* address;
  size_t length;
};

// The arguments (arrayBuffer, offset, length) from `first` on.
Borrowed borrowed(const Napi::CallbackInfo& info, size_t first) {
  if (!info[first].IsArrayBuffer())
    throw failure(info.Env(), EINVAL, "ibv_reg_mr", "a SharedArrayBuffer cannot be registered");
  auto buffer = info[first].As<Napi::ArrayBuffer>();
  const auto offset = static_cast<size_t>(info[first + 1].As<Napi::Number>().Int64Value());
  const auto length = static_cast<size_t>(info[first + 2].As<Napi::Number>().Int64Value());
  if (length == 0 || offset > buffer.ByteLength() || length > buffer.ByteLength() - offset)
    throw failure(info.Env(), EINVAL, "ibv_reg_mr", "it has no bytes there");
  return {buffer, static_cast<uint8_t*>(buffer.Data()) + offset, length};
}

class BorrowedRegistration final : public Registration {
 public:
  BorrowedRegistration(Napi::Env env, PdObject& pd, const Borrowed& memory, int access)
      : Registration(env, pd, access),
        object_(&pd),
        address_(memory.address),
        length_(memory.length),
        buffer_(Napi::Persistent(memory.buffer)) {}

 private:
  void Execute() override { register_memory(address_, length_); }
  MrObject* object(ibv_mr* mr) override { return new MrObject(Env(), *object_, mr, buffer_.Value()); }

  PdObject* object_;  // pd_ keeps it
  uint8_t* address_;
  size_t length_;
  Napi::Reference<Napi::ArrayBuffer> buffer_;
};

MemoryOptions options_of(const Napi::Object& from) {
  MemoryOptions options;
  options.huge_pages = static_cast<HugePages>(number(from.Get("hugePages")));
  options.numa_node = from.Get("numaNode").As<Napi::Number>().Int32Value();
  options.locked = from.Get("locked").As<Napi::Boolean>();
  options.shared = from.Get("shared").As<Napi::Boolean>();
  options.populated = from.Get("populated").As<Napi::Boolean>();
  return options;
}

}  // namespace

// allocMr(pd, length, access, options)
Napi::Value PdObject::alloc_mr(const Napi::CallbackInfo& info) {
  const int access = info[2].As<Napi::Number>().Int32Value();
  const MemoryOptions options = options_of(info[3].As<Napi::Object>());
  const auto length = static_cast<size_t>(info[1].As<Napi::Number>().Int64Value());
  return start<Allocation>(info.Env(), *this, length, access, options);
}

// regMr(pd, arrayBuffer, offset, length, access)
Napi::Value PdObject::reg_mr(const Napi::CallbackInfo& info) {
  const Borrowed memory = borrowed(info, 1);
  ibv_mr* mr = provider.reg_mr(pd(), memory.address, memory.length, info[4].As<Napi::Number>().Int32Value());
  if (mr == nullptr) throw refusal(info.Env(), errno, "ibv_reg_mr");
  return Object::wrap(info.Env(), new MrObject(info.Env(), *this, mr, memory.buffer));
}

// regMrAsync(pd, arrayBuffer, offset, length, access)
Napi::Value PdObject::reg_mr_async(const Napi::CallbackInfo& info) {
  const int access = info[4].As<Napi::Number>().Int32Value();
  return start<BorrowedRegistration>(info.Env(), *this, borrowed(info, 1), access);
}

// regDmabufMr(pd, fd, offset, length, access)
Napi::Value PdObject::reg_dmabuf_mr(const Napi::CallbackInfo& info) {
  const auto offset = static_cast<uint64_t>(info[2].As<Napi::Number>().Int64Value());
  const auto length = static_cast<size_t>(info[3].As<Napi::Number>().Int64Value());
  // Its addresses are offsets into the DMA buffer, as ibv_mr.addr has them.
  ibv_mr* mr = provider.reg_dmabuf_mr(pd(), offset, length, offset, info[1].As<Napi::Number>().Int32Value(),
                                      info[4].As<Napi::Number>().Int32Value());
  if (mr == nullptr)
    throw device_failure(info.Env(), errno, "ibv_reg_dmabuf_mr", "the device cannot register DMA buffers");
  return Object::wrap(info.Env(), new MrObject(info.Env(), *this, mr, {}));
}

// reregMr(mr, pd | undefined, access)
void MrObject::reregister(const Napi::CallbackInfo& info) {
  PdObject* pd = info[1].IsUndefined() ? nullptr : &object_of<PdObject>(info[1], *this);
  const int flags = IBV_REREG_MR_CHANGE_ACCESS | (pd == nullptr ? 0 : IBV_REREG_MR_CHANGE_PD);
  const int error = provider.rereg_mr(mr(), flags, pd == nullptr ? nullptr : pd->pd(), nullptr, 0,
                                      info[2].As<Napi::Number>().Int32Value());
  if (error != 0)
    throw device_failure(info.Env(), error, "ibv_rereg_mr", "the device cannot re-register memory");
  if (pd != nullptr) parent_ = Ref<ibv_pd>(pd);
}

Napi::Value MrObject::describe(const Napi::CallbackInfo& info) {
  const ibv_mr* region = mr();
  Napi::Object out = Napi::Object::New(info.Env());
  out.Set("address", Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(region->addr)));
  out.Set("length", static_cast<double>(region->length));
  out.Set("localKey", region->lkey);
  out.Set("remoteKey", region->rkey);
  out.Set("mapped", mapped());
  return out;
}

Napi::Value kept_memory(const Napi::CallbackInfo& info) {
  const KeptMemory& kept = KeptMemory::own();
  return new_object(info.Env(), "regions", static_cast<double>(kept.regions), "bytes",
                    static_cast<double>(kept.bytes));
}

}  // namespace rdmakit::binding
