#include "binding/loop_watch.h"

#include <cerrno>
#include <cstdlib>

namespace rdmakit::ring::binding {
namespace {

// While turns find more, these many are made; then the loop's other work has its turn.
constexpr int kLooksBeforeSleep = 4;

}  // namespace

void LoopWatch::Free::operator()(UvHandle* handle) const { std::free(handle); }

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
  const auto add = [&](HandlePtr& place, int type, auto init) {
    HandlePtr made(static_cast<UvHandle*>(std::calloc(1, uv_handle_size(type))));
    if (made == nullptr) return ENOMEM;
    if (const int error = init(made.get()); error != 0) return -error;  // libuv's errors are -errno
    uv_handle_set_data(made.get(), this);
    uv_unref(made.get());
    place = std::move(made);
    ++open_handles_;
    return 0;
  };
  int error = add(channel_, kUvPoll,
                  [&](UvHandle* handle) { return uv_poll_init(loop, handle, poller_->channel_fd()); });
  if (error == 0)
    error = add(prepare_, kUvPrepare, [&](UvHandle* handle) { return uv_prepare_init(loop, handle); });
  if (error == 0)
    error = add(timer_, kUvTimer, [&](UvHandle* handle) { return uv_timer_init(loop, handle); });
  if (error == 0)
    error = -uv_poll_start(channel_.get(), kUvReadable,
                           [](UvHandle* handle, int, int) { of(handle).on_readable(); });
  if (error == 0)
    error = -uv_prepare_start(prepare_.get(), [](UvHandle* handle) { of(handle).before_sleep(); });
  return error;
}

void LoopWatch::set_ref(bool on) { on ? uv_ref(channel_.get()) : uv_unref(channel_.get()); }

void LoopWatch::close() {
  if (closing_) return;
  closing_ = true;
  poller_.reset();
  if (open_handles_ == 0) {
    delete this;
    return;
  }
  for (const HandlePtr* handle : {&channel_, &prepare_, &timer_})
    if (*handle != nullptr) uv_close(handle->get(), [](UvHandle* closed) { of(closed).handle_closed(); });
}

void LoopWatch::handle_closed() {
  if (--open_handles_ == 0) delete this;
}

// --- hot path ------------------------------------------------------------------------------------
// No allocation of ours, no system call but the work itself.

void LoopWatch::on_readable() {
  poller_->take_events();
  if (poller_->channel_lost()) [[unlikely]]
    uv_poll_stop(channel_.get());  // it would be readable for ever
  poller_->turn();
  ring();
}

void LoopWatch::before_sleep() {
  ring();  // for what is left of an earlier turn
  if (closing_) return;
  bool look = !poller_->armed() || poller_->wants_turn() || poller_->waits_for_time();
  if (!look) return;
  for (int looks = 0; look && looks < kLooksBeforeSleep; ++looks) {
    poller_->arm();
    poller_->turn();
    ring();
    if (closing_) return;
    look = !poller_->armed() || poller_->wants_turn();
  }
  if (poller_->wants_turn()) {
    wake_after(0);
  } else if (poller_->waits_for_time()) {
    wake_after(Poller::kLeavePollMs);
  }
}

void LoopWatch::wake_after(uint64_t milliseconds) {
  uv_timer_start(
      timer_.get(), [](UvHandle*) {}, milliseconds, 0);
}

// Calls JavaScript when it counts on that. It may close this.
void LoopWatch::ring() {
  if (closing_ || !poller_->wants_doorbell()) return;
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
