#include "binding/loop_watch.h"

namespace rdmakit::ring::binding {

// At most, while they find more; then the loop's other work has its turn.
constexpr int kLooksBeforeSleep = 16;
constexpr uint64_t kLooksNs = 200'000;

LoopWatch* LoopWatch::open(napi_env env, std::shared_ptr<Poller> poller, napi_value doorbell, int& error) {
  auto* watch = new LoopWatch(env, std::move(poller));
  error = watch->start(doorbell);
  if (error == 0) return watch;
  watch->close();
  return nullptr;
}

LoopWatch::~LoopWatch() {
  if (context_ != nullptr) napi_async_destroy(env_, context_);
  if (doorbell_ != nullptr) napi_delete_reference(env_, doorbell_);
  if (cleanup_ != nullptr) napi_remove_async_cleanup_hook(cleanup_);
}

int LoopWatch::start(napi_value doorbell) {
  uv_loop_s* loop = nullptr;
  napi_value name = nullptr;
  if (napi_get_uv_event_loop(env_, &loop) != napi_ok ||
      napi_create_reference(env_, doorbell, 1, &doorbell_) != napi_ok ||
      napi_create_string_utf8(env_, "ring poller", NAPI_AUTO_LENGTH, &name) != napi_ok ||
      napi_async_init(env_, nullptr, name, &context_) != napi_ok ||
      napi_add_async_cleanup_hook(
          env_, [](napi_async_cleanup_hook_handle, void* watch) { static_cast<LoopWatch*>(watch)->close(); },
          this, &cleanup_) != napi_ok)
    return EIO;
  // libuv's errors are -errno.
  const auto add = [this](auto& handle, int error) {
    if (error != 0) return -error;
    handle.data = this;
    auto* opened = reinterpret_cast<uv_handle_t*>(&handle);
    uv_unref(opened);
    open_.push_back(opened);
    return 0;
  };
  int error = add(channel_, uv_poll_init(loop, &channel_, poller_->channel_fd()));
  if (error == 0) error = add(prepare_, uv_prepare_init(loop, &prepare_));
  if (error == 0) error = add(timer_, uv_timer_init(loop, &timer_));
  if (error == 0) error = add(again_, uv_idle_init(loop, &again_));
  // It only wakes the loop, which looks before it sleeps again.
  if (error == 0) error = add(waker_, uv_async_init(loop, &waker_, [](uv_async_t*) {}));
  if (error == 0)
    error =
        -uv_poll_start(&channel_, UV_READABLE, [](uv_poll_t* handle, int, int) { of(handle).on_readable(); });
  if (error == 0)
    error = -uv_prepare_start(&prepare_, [](uv_prepare_t* handle) { of(handle).before_sleep(); });
  return error;
}

void LoopWatch::set_ref(bool on) {
  auto* handle = reinterpret_cast<uv_handle_t*>(&channel_);
  on ? uv_ref(handle) : uv_unref(handle);
}

void LoopWatch::close() {
  if (closing_) return;
  closing_ = true;
  poller_->end_thread();
  poller_.reset();
  if (open_.empty()) {
    delete this;
    return;
  }
  // They close later, on the loop: none of the callbacks comes before this returns.
  for (uv_handle_t* handle : open_) uv_close(handle, [](uv_handle_t* closed) { of(closed).handle_closed(); });
}

void LoopWatch::handle_closed() {
  open_.pop_back();
  if (open_.empty()) delete this;
}

// --- hot path ------------------------------------------------------------------------------------
// No allocation of ours, no system call but the work itself.

void LoopWatch::on_readable() {
  const Poller::Look look = poller_->look_at_events();
  if (look.channel_lost) [[unlikely]]
    uv_poll_stop(&channel_);  // otherwise it would be readable for ever
  if (look.again) look_again();
  ring(look);
}

void LoopWatch::before_sleep() {
  uv_idle_stop(&again_);
  const uint64_t began = uv_hrtime();
  for (int looks = 0; !closing_; ++looks) {
    const Poller::Look look = poller_->look_before_sleep(other_work());
    ring(look);
    if (closing_) return;
    // JavaScript may have asked for something.
    const bool again = look.again || look.doorbell;
    if (again && looks < kLooksBeforeSleep && uv_hrtime() - began < kLooksNs) continue;
    if (again) {
      look_again();
    } else if (look.time) {
      uv_timer_start(
          &timer_, [](uv_timer_t*) {}, Poller::kLeavePollMs, 0);
    }
    return;
  }
}

// A loop with an idle handle does not sleep. Other pollers of the loop see that it has other work.
void LoopWatch::look_again() {
  uv_idle_start(&again_, [](uv_idle_t*) {});
}

OtherWork LoopWatch::other_work() const {
  uv_loop_t* loop = prepare_.loop;
  const int timeout = uv_backend_timeout(loop);
  if (timeout == 0) return {};
  constexpr uint64_t kNsPerMs = 1'000'000;
  return {uv_backend_fd(loop),
          timeout < 0 ? ~uint64_t{} : (uv_now(loop) + static_cast<uint64_t>(timeout)) * kNsPerMs};
}

void LoopWatch::wake() { uv_async_send(&waker_); }

// Calls JavaScript when it counts on that. It may close this.
void LoopWatch::ring(const Poller::Look& look) {
  if (!look.doorbell) return;
  napi_handle_scope scope = nullptr;
  napi_value call = nullptr, nothing = nullptr;
  if (napi_open_handle_scope(env_, &scope) != napi_ok) return;
  napi_get_reference_value(env_, doorbell_, &call);
  napi_get_global(env_, &nothing);
  // With a callback scope of its own, so that promises and process.nextTick have their turn at its end.
  if (napi_make_callback(env_, context_, nothing, call, 0, nullptr, nullptr) == napi_pending_exception) {
    napi_value error = nullptr;
    if (napi_get_and_clear_last_exception(env_, &error) == napi_ok) napi_fatal_exception(env_, error);
  }
  napi_close_handle_scope(env_, scope);
}
// --- end of the hot path -------------------------------------------------------------------------

}  // namespace rdmakit::ring::binding
