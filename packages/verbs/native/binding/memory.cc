// Memory regions.
#include <cerrno>

#include "binding/failure.h"
#include "binding/objects.h"

namespace rdmakit::binding {

std::shared_ptr<Mapping> Mapping::create(Provider& provider, size_t length, const MemoryOptions& options) {
  void* address = provider.map_memory(length, options);
  return address == nullptr ? nullptr : std::make_shared<Mapping>(provider, address, length, options);
}

void MrObject::destroy() {
  provider.dereg_mr(mr());
  mapping_.reset();
  parent_ = {};
}

Napi::Value MrObject::buffer(Napi::Env env) {
  if (!buffer_.IsEmpty()) return buffer_.Value();
  auto* keep = new std::shared_ptr<Mapping>(mapping_);
  Napi::ArrayBuffer made = Napi::ArrayBuffer::New(
      env, mr()->addr, mr()->length, [](Napi::Env, void*, std::shared_ptr<Mapping>* kept) { delete kept; },
      keep);
  buffer_ = Napi::Persistent(made);
  return made;
}

void MrObject::end_in_javascript() {
  if (buffer_.IsEmpty()) return;
  Napi::ArrayBuffer made = buffer_.Value();
  if (!made.IsDetached()) made.Detach();
  buffer_.Reset();
}

namespace {

class Allocation final : public Napi::AsyncWorker {
 public:
  Allocation(Napi::Env env, PdObject& pd, size_t length, int access)
      : Napi::AsyncWorker(env),
        deferred_(Napi::Promise::Deferred::New(env)),
        provider_(pd.provider),
        pd_(&pd),
        capabilities_(pd.capabilities),
        length_(length),
        access_(access) {}
  Napi::Promise promise() const { return deferred_.Promise(); }

 protected:
  void Execute() override {
    mapping_ = Mapping::create(provider_, length_, MemoryOptions{});
    if (mapping_ == nullptr) {
      fail("mmap");
      return;
    }
    mr_ = provider_.reg_mr(pd_.get(), mapping_->address(), length_, access_);
    if (mr_ == nullptr) fail("ibv_reg_mr");
  }

  void OnOK() override {
    Napi::HandleScope scope(Env());
    if (mr_ == nullptr) {
      deferred_.Reject(failure(Env(), error_, verb_).Value());
      return;
    }
    auto* object = new MrObject(provider_, std::move(pd_), mr_, std::move(mapping_));
    object->capabilities = capabilities_;
    deferred_.Resolve(Object::wrap(Env(), object));
  }

 private:
  void fail(const char* verb) {
    error_ = errno;
    verb_ = verb;
  }

  Napi::Promise::Deferred deferred_;
  Provider& provider_;
  Ref<ibv_pd> pd_;
  uint32_t capabilities_;
  size_t length_;
  int access_;
  std::shared_ptr<Mapping> mapping_;
  ibv_mr* mr_ = nullptr;
  int error_ = 0;
  const char* verb_ = "";
};

Napi::Value alloc_mr(const Napi::CallbackInfo& info) {
  auto& pd = object_of<PdObject>(info[0]);
  auto* work = new Allocation(info.Env(), pd, static_cast<size_t>(info[1].As<Napi::Number>().Int64Value()),
                              info[2].As<Napi::Number>().Int32Value());
  Napi::Promise promise = work->promise();
  work->Queue();
  return promise;
}

Napi::Value mr_info(const Napi::CallbackInfo& info) {
  const ibv_mr* mr = object_of<MrObject>(info[0]).mr();
  Napi::Object out = Napi::Object::New(info.Env());
  out.Set("address", Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(mr->addr)));
  out.Set("length", static_cast<double>(mr->length));
  out.Set("localKey", mr->lkey);
  out.Set("remoteKey", mr->rkey);
  return out;
}

Napi::Value mr_buffer(const Napi::CallbackInfo& info) {
  return object_of<MrObject>(info[0]).buffer(info.Env());
}

}  // namespace

void export_memory(Napi::Env env, Napi::Object exports) {
  exports.Set("allocMr", Napi::Function::New(env, alloc_mr));
  exports.Set("mrInfo", Napi::Function::New(env, mr_info));
  exports.Set("mrBuffer", Napi::Function::New(env, mr_buffer));
}

}  // namespace rdmakit::binding
