// Verbs objects as JavaScript holds them: reference counted, type tagged, shared with other addons.
#pragma once

#include <napi.h>

#include <atomic>

#include "provider/provider.h"

namespace rdmakit::binding {

// Two counts. `users`: who may post on the object; when the last one leaves the verbs object is
// destroyed (Provider::tear_down). `memory`: who may still look at this struct; JavaScript
// does until its external is collected, so a stale handle finds object == nullptr and never freed memory.
class Object : public Handle {
 public:
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  // The external of this object, with JavaScript as its first user. Takes over the new object.
  static Napi::Value wrap(Napi::Env env, Object* object);
  // JavaScript's user leaves; on its thread. Idempotent.
  void close();
  // The same, and the wait is another thread's. A promise of it.
  Napi::Value close_async(Napi::Env env);
  // Nothing of a peer's lands in it or through it any more. On JavaScript's thread.
  virtual bool destroyed() { return destroyed_.load(std::memory_order_acquire); }

 protected:
  Object(HandleKind kind, Provider& provider, void* verbs_object);
  virtual ~Object() = default;
  // Destroys the verbs object, which is no longer `object`, and releases its parents. On any thread.
  virtual void destroy(void* verbs_object) = 0;
  // Asked once, before `destroy`: whether that is for the thread that the last user leaves on, however long
  // it takes.
  virtual bool destroys_here() { return false; }
  // Ends what needs JavaScript's thread to end, before its user leaves.
  virtual void end_in_javascript() {}

 private:
  class Closing;
  static void retain_object(Handle* self);
  static void release_object(Handle* self);
  static void finalize(napi_env env, void* data, void* hint);
  void leave(bool wait);
  void forget();

  std::atomic<uint32_t> users_{1};
  std::atomic<uint32_t> memory_{1};
  std::atomic<bool> closed_{false};
  std::atomic<bool> destroyed_{false};

 public:
  Provider& provider;
};

// close(handle), closeAsync(handle) → Promise, destroyed(handle) → boolean: also of a handle that is closed.
void close_handle(const Napi::CallbackInfo& info);
Napi::Value close_handle_async(const Napi::CallbackInfo& info);
bool handle_destroyed(const Napi::CallbackInfo& info);

// The object of an argument, or a JavaScript TypeError.
Handle* unwrap(const Napi::Value& value, HandleKind kind, const char* expected);

template <typename Type>
Type& object_of(const Napi::Value& value) {
  return *static_cast<Type*>(static_cast<Object*>(unwrap(value, Type::kKind, Type::kName)));
}

// A JavaScript error, EINVAL, unless both are of one provider: it takes what it is given for objects of its
// own.
void check_provider(Napi::Env env, const Object& one, const Object& other, const char* name);

// The same, to be used together with `other`.
template <typename Type>
Type& object_of(const Napi::Value& value, const Object& other) {
  Type& found = object_of<Type>(value);
  check_provider(value.Env(), found, other, Type::kName);
  return found;
}

}  // namespace rdmakit::binding
