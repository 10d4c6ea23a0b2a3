// Releases references to JavaScript objects from any thread: they may be deleted only on JavaScript's. The
// end of the environment frees the memory behind them, so it waits for the devices that still use it.
#pragma once

#include <napi.h>

#include <condition_variable>
#include <memory>
#include <mutex>

namespace rdmakit::binding {

class ReferenceReleaser {
 public:
  using Reference = Napi::Reference<Napi::ArrayBuffer>;
  // The environment's one; on its thread.
  static std::shared_ptr<ReferenceReleaser> of(Napi::Env env);
  // The memory of a reference is about to be torn down on another thread: release() or keep() follows. False:
  // the environment has ended, and the caller does it now. On any thread.
  bool await_release();
  // On any thread. When the environment has ended it has taken the reference along.
  void release(Reference&& reference);
  // The memory stays where it is permanently.
  void keep(Reference&& reference);

 private:
  static void end(void* releaser);
  void came_back();
  std::mutex mutex_;
  std::condition_variable none_awaited_;
  bool open_ = true;
  unsigned awaited_ = 0;
  Napi::ThreadSafeFunction doorbell_;
};

}  // namespace rdmakit::binding
