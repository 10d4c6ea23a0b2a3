// Memory windows of type 2. Binding one is a work request (posting.cc).
#include <cerrno>

#include "binding/failure.h"
#include "binding/objects.h"

namespace rdmakit::binding {

void MwObject::destroy(void* verbs_object) {
  provider.dealloc_mw(static_cast<ibv_mw*>(verbs_object));
  region_ = {};
  parent_ = {};
}

Napi::Value PdObject::alloc_mw(const Napi::CallbackInfo& info) {
  ibv_mw* mw = provider.alloc_mw(pd(), IBV_MW_TYPE_2);
  if (mw == nullptr)
    throw device_failure(info.Env(), errno, "ibv_alloc_mw", "the device has no memory windows of type 2");
  return Object::wrap(info.Env(), new MwObject(*this, mw));
}

}  // namespace rdmakit::binding
