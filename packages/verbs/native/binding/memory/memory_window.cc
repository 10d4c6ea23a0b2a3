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

namespace {

Napi::Value alloc_mw(const Napi::CallbackInfo& info) {
  auto& pd = object_of<PdObject>(info[0]);
  ibv_mw* mw = pd.provider.alloc_mw(pd.pd(), IBV_MW_TYPE_2);
  if (mw == nullptr) {
    const int error = errno;
    throw failure(info.Env(), error, "ibv_alloc_mw",
                  error == EOPNOTSUPP ? "the device has no memory windows of type 2" : reason(error));
  }
  return Object::wrap(info.Env(), new MwObject(pd, mw));
}

Napi::Value mw_key(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), object_of<MwObject>(info[0]).mw()->rkey);
}

}  // namespace

void export_memory_windows(Napi::Object exports) {
  define(exports, "allocMw", alloc_mw);
  define(exports, "mwKey", mw_key);
}

}  // namespace rdmakit::binding
