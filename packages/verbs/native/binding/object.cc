#include "binding/object.h"

#include "binding/failure.h"
#include "rdmakit/binding_call.h"

namespace rdmakit::binding {
namespace {

Object* object_in(const Napi::Value& value) { return static_cast<Object*>(handle_in(value)); }

}  // namespace

Object::Object(HandleKind kind, Provider& owner, void* verbs_object)
    : Handle{kHandleAbi, kind, verbs_object, owner.data_path_verbs(), 0, 0, retain_object, release_object},
      provider(owner) {}

void Object::retain_object(Handle* self) {
  auto* object = static_cast<Object*>(self);
  object->memory_.fetch_add(1, std::memory_order_relaxed);
  object->users_.fetch_add(1, std::memory_order_relaxed);
}

void Object::release_object(Handle* self) {
  auto* object = static_cast<Object*>(self);
  object->leave(false);
  object->forget();
}

void Object::leave(bool wait) {
  if (users_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // A stale handle may be retained and released after the last user left: destroy once only.
  void* verbs_object = std::exchange(object, nullptr);
  if (verbs_object == nullptr) return;
  const auto end = [this, verbs_object] {
    destroy(verbs_object);
    destroyed_.store(true, std::memory_order_release);
  };
  if (destroys_here()) {
    end();
    return;
  }
  memory_.fetch_add(1, std::memory_order_relaxed);
  provider.tear_down(
      [this, end] {
        end();
        forget();
      },
      wait);
}

void Object::forget() {
  if (memory_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void Object::close() {
  if (closed_.exchange(true, std::memory_order_acq_rel)) return;
  end_in_javascript();
  leave(true);
}

class Object::Closing final : public PromiseWorker {
 public:
  Closing(Napi::Env env, Object& object) : PromiseWorker(env, "close"), object_(object) {
    object_.memory_.fetch_add(1, std::memory_order_relaxed);
  }
  // The environment may end before the thread has run.
  ~Closing() override {
    leave();
    object_.forget();
  }

 private:
  void Execute() override { leave(); }
  void leave() {
    if (!std::exchange(left_, true)) object_.leave(true);
  }
  void OnOK() override {
    Napi::HandleScope scope(Env());
    deferred_.Resolve(Env().Undefined());
  }
  Object& object_;
  bool left_ = false;
};

Napi::Value Object::close_async(Napi::Env env) {
  if (closed_.exchange(true, std::memory_order_acq_rel)) {
    const auto already = Napi::Promise::Deferred::New(env);
    already.Resolve(env.Undefined());
    return already.Promise();
  }
  end_in_javascript();
  return start<Closing>(env, *this);
}

void Object::finalize(napi_env, void* data, void*) {
  auto* object = static_cast<Object*>(static_cast<Handle*>(data));
  object->close();
  object->forget();
}

Napi::Value Object::wrap(Napi::Env env, Object* object) {
  napi_value external = nullptr;
  if (napi_create_external(env, static_cast<Handle*>(object), finalize, nullptr, &external) != napi_ok) {
    object->close();
    object->forget();
    throw Napi::Error::New(env);
  }
  if (napi_type_tag_object(env, external, &kHandleTag) != napi_ok) throw Napi::Error::New(env);
  return {env, external};
}

void close_handle(const Napi::CallbackInfo& info) {
  if (Object* const object = object_in(info[0]); object != nullptr) object->close();
}

Napi::Value close_handle_async(const Napi::CallbackInfo& info) {
  Object* const object = object_in(info[0]);
  return object == nullptr ? info.Env().Undefined() : object->close_async(info.Env());
}

bool handle_destroyed(const Napi::CallbackInfo& info) {
  Object* const object = object_in(info[0]);
  if (object == nullptr) throw Napi::TypeError::New(info.Env(), "expected a handle");
  return object->destroyed();
}

Handle* unwrap(const Napi::Value& value, HandleKind kind, const char* expected) {
  Handle* const handle = handle_in(value);
  if (handle == nullptr || handle->abi != kHandleAbi || handle->kind != kind)
    throw Napi::TypeError::New(value.Env(), std::string("expected the handle of a ") + expected);
  if (handle->object == nullptr) throw failure(value.Env(), EINVAL, expected, "it is closed");
  return handle;
}

void check_provider(Napi::Env env, const Object& one, const Object& other, const char* name) {
  if (&one.provider != &other.provider)
    throw failure(env, EINVAL, name, "it is of another kind of device than what it is used with");
}

}  // namespace rdmakit::binding
