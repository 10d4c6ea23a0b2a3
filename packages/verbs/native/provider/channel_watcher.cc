#include "provider/channel_watcher.h"

#include <sys/epoll.h>

#include <cerrno>
#include <map>
#include <mutex>

#include "base/epoll.h"
#include "rdmakit/thread.h"

namespace rdmakit {
namespace {

struct Watch {
  ibv_comp_channel* channel;
  const DataPathVerbs* verbs;
  ChannelSink told;
};

class Watcher {
 public:
  uint64_t add(Watch watch) {
    std::lock_guard lock(mutex_);
    errno = start();
    if (errno != 0) return 0;
    const uint64_t id = ++last_;
    if (epoll_watch(epoll_, EPOLL_CTL_ADD, watch.channel->fd, EPOLLIN, {.u64 = id}) != 0) return 0;
    watches_.emplace(id, std::move(watch));
    return id;
  }

  void remove(uint64_t id) {
    std::lock_guard lock(mutex_);
    auto found = watches_.find(id);
    if (found == watches_.end()) return;
    epoll_ctl(epoll_, EPOLL_CTL_DEL, found->second.channel->fd, nullptr);
    watches_.erase(found);
  }

 private:
  // The thread lives as long as the process, and waits in the kernel while nothing is watched. Where there
  // was none to be had, or no descriptor, the next watch tries again.
  int start() {
    if (epoll_ < 0) epoll_ = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ < 0) return errno;
    return thread_.joinable() ? 0 : thread_.start("verbs-channels", [this] { run(); });
  }

  void run() {
    epoll_event events[16];
    for (;;) {
      const int count = epoll_wait(epoll_, events, 16, -1);
      if (count < 0 && errno != EINTR) return;
      for (int i = 0; i < count; ++i) take(events[i].data.u64);
    }
  }

  void take(uint64_t id) {
    // The lock is held while the channel is touched, so that remove() can promise its silence.
    std::lock_guard lock(mutex_);
    auto found = watches_.find(id);
    if (found == watches_.end()) return;
    Watch& watch = found->second;
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    int error;
    while ((error = watch.verbs->get_cq_event(watch.channel, &cq, &context)) == 0) {
      watch.verbs->ack_cq_events(cq, 1);
      watch.told(cq, 0);
    }
    if (error == EAGAIN || error == EINTR) return;
    // It stays readable, and would wake this thread without end.
    epoll_ctl(epoll_, EPOLL_CTL_DEL, watch.channel->fd, nullptr);
    watch.told(nullptr, error);
  }

  int epoll_ = -1;
  std::mutex mutex_;
  std::map<uint64_t, Watch> watches_;
  uint64_t last_ = 0;
  Thread thread_;
};

Watcher& watcher() {
  static auto* made = new Watcher;
  return *made;
}

}  // namespace

uint64_t watch_channel(ibv_comp_channel* channel, const DataPathVerbs* verbs, ChannelSink told) {
  return watcher().add({channel, verbs, std::move(told)});
}

void unwatch_channel(uint64_t watch) { watcher().remove(watch); }

}  // namespace rdmakit
