// An epoll set of queue pairs' sockets: the progress thread has one for automatic progress, each completion
// channel has one for manual progress.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <vector>

#include "base/fair_mutex.h"
#include "base/unique_fd.h"

namespace rdmakit::iwarp {

class QueuePair;

class PollSet {
 public:
  // Tokens with this bit belong to the thread that waits on the set, not to a queue pair.
  static constexpr uint64_t kForeign = uint64_t{1} << 63;

  // Throws nothing; ok() says whether the kernel gave an epoll instance.
  PollSet();
  bool ok() const { return static_cast<bool>(epoll_); }
  int fd() const { return epoll_.get(); }

  // Watches `fd` for `queue_pair`. Returns the token for change() and remove(); 0 and errno when it failed.
  uint64_t add(QueuePair* queue_pair, int fd, uint32_t events);
  void change(uint64_t token, int fd, uint32_t events);
  // No longer watches, at once and without a lock (so also from within dispatch).
  void mute(int fd);
  // After this, and after a dispatch that is under way, the set never calls the queue pair again.
  void remove(uint64_t token, int fd);

  int add_foreign(uint64_t token, int fd, uint32_t events);
  int change_foreign(uint64_t token, int fd, uint32_t events);

  int wait(epoll_event* events, int capacity, int timeout_ms);
  // Lets each queue pair among the events move data.
  void dispatch(const epoll_event* events, int count);
  // Whatever is ready now.
  void progress();

 private:
  struct Slot {
    QueuePair* queue_pair = nullptr;
    uint32_t generation = 0;
  };

  UniqueFd epoll_;
  // Held throughout dispatch: that is what makes remove() final. Never held by a caller of add or
  // change who also holds a queue pair's lock.
  FairMutex mutex_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace rdmakit::iwarp
