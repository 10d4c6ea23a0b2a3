// The lock of the data path: one holder at a time, no system call if uncontended, and a thread that waits for
// a long copy sleeps.
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/unique_fd.h"
#include "gate.h"
#include "shm/mapping/sleep_lock.h"
#include "traffic.h"

namespace shm_lock_stress {

using namespace fixture;
using shm::SleepLock;

// A thread that may be asked whether it sleeps.
class Sleeper {
 public:
  explicit Sleeper(std::function<void()> work)
      : thread_([this, work = std::move(work)] {
          id_ = gettid();
          work();
        }) {}
  ~Sleeper() { thread_.join(); }
  // One that only yields is running, or may.
  void await_sleep() const {
    await([this] { return id_ != 0 && state() == 'S'; });
  }

 private:
  char state() const {
    char path[64], text[512] = {};
    std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", id_.load());
    const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
    CHECK(read(fd.get(), text, sizeof text - 1) > 0);
    const char* const name_end = std::strrchr(text, ')');
    CHECK(name_end != nullptr);
    return name_end[2];
  }
  std::atomic<pid_t> id_{0};
  std::thread thread_;
};

void one_at_a_time() {
  SleepLock lock;
  uint64_t counter = 0;
  const int rounds = effort(50'000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) {
    threads.emplace_back([&] {
      for (int round = 0; round < rounds; round++) {
        const std::lock_guard held(lock);
        counter++;
        if (round % 1000 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  for (std::thread& each : threads) each.join();
  CHECK(counter == 4 * static_cast<uint64_t>(rounds));
}

void waiters_sleep_and_wake() {
  SleepLock lock;
  lock.lock();
  {
    const Sleeper first([&] { const std::lock_guard held(lock); });
    const Sleeper second([&] { const std::lock_guard held(lock); });
    first.await_sleep();
    second.await_sleep();
    lock.unlock();
  }
  lock.lock();
  lock.unlock();
}

// A process that may read, write and exit, and is killed when it calls the kernel for anything else.
[[maybe_unused]] void uncontended_calls_nobody() {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    SleepLock lock;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) _exit(2);
    for (int i = 0; i < 1000; i++) {
      lock.lock();
      lock.unlock();
    }
    syscall(SYS_exit, 0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// A thread that posts to a queue pair on which another thread copies sleeps until that is done.
void a_post_sleeps_beside_a_copy() {
  Listener listener;
  Pair pair(listener, {}, {});
  Memory far(pair.server->pd, Gate::kSize);
  Memory near(pair.client->pd, 64);
  Gate gate;
  ibv_mr* mr = provider().reg_mr(pair.client->pd, gate.data, Gate::kSize, IBV_ACCESS_LOCAL_WRITE);
  CHECK(mr != nullptr);
  // When this is over the peer's region is known here, and no progress thread has to do what is posted.
  post(*pair.client, write_to(remote(far), 0, 0), {near.sge(0, 64)});
  pair.client->expect(0);
  gate.close();
  std::thread copier([&] {
    post(*pair.client, write_to(remote(far), 0, 1), {{gate.address(), Gate::kSize, mr->lkey}});
  });
  await([] { return Gate::reached.load(); });
  {
    const Sleeper other([&] { post(*pair.client, write_to(remote(far), 0, 2), {near.sge(0, 64)}); });
    other.await_sleep();
    gate.open();
  }
  copier.join();
  pair.client->expect(1);
  pair.client->expect(2);
  CHECK(provider().dereg_mr(mr) == 0);
}

STRESS(shm_lock) {
#if !defined(__SANITIZE_THREAD__)
  uncontended_calls_nobody();  // a thread of TSan's own would stay in the child
#endif
  timed("one at a time", one_at_a_time);
  timed("waiters sleep and wake", waiters_sleep_and_wake);
  timed("a post sleeps beside a copy", a_post_sleeps_beside_a_copy);
  std::puts("ok");
  return 0;
}

}  // namespace shm_lock_stress
