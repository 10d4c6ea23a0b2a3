// Lets go of references to JavaScript objects from any thread: they may be deleted on JavaScript's only.
#pragma once

#include <napi.h>

#include <memory>
#include <mutex>

namespace rdmakit::binding {

class Releaser {
 public:
  using Reference = Napi::Reference<Napi::ArrayBuffer>;
  // The environment's one; on its thread.
  static std::shared_ptr<Releaser> of(Napi::Env env);
  // On any thread. When the environment has ended it has taken the reference along.
  void release(Reference&& reference);

 private:
  static void end(void* releaser);
  std::mutex mutex_;
  bool open_ = true;
  Napi::ThreadSafeFunction doorbell_;
};

}  // namespace rdmakit::binding
