// How every thread of ours begins. A program may have as many threads as its user, its cgroup and the machine
// allow (pthread_create(3)); one more is an error of the call that wants it, never the end of the process.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "rdmakit/invariant.h"

namespace rdmakit {

// The message for people about the `error` of Thread::start.
inline std::string why_no_thread(int error) {
  if (error != EAGAIN) return strerror(error);
  return "no more threads can be started: raise the limit of the user's processes (ulimit -u, LimitNPROC=), "
         "of the"
         " cgroup's (pids.max: TasksMax=, --pids-limit) or of the machine's (kernel.threads-max), or that of "
         "memory"
         " (ulimit -v)";
}

class Thread {
 public:
  Thread() = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread() { RDMAKIT_INVARIANT(!joinable_, "a thread that nobody has waited for"); }

  // 0, or an errno value: EAGAIN when there are as many threads as are allowed, ENOMEM. `name` is a literal
  // of at most 15 characters. The thread takes no signals: those are for the application's own.
  // `stack_bytes`: 0 is the system's usual (ulimit -s).
  int start(const char* name, std::function<void()> work, size_t stack_bytes = 0) {
    Begin* begin = new (std::nothrow) Begin{name, std::move(work)};
    if (begin == nullptr) return ENOMEM;
    std::unique_ptr<Begin> owned(begin);
    pthread_attr_t attributes;
    if (const int error = pthread_attr_init(&attributes); error != 0) return error;
    if (stack_bytes != 0) pthread_attr_setstacksize(&attributes, stack_bytes);
    sigset_t quiet, before;
    signals_of_others(quiet);
    // The thread inherits the mask.
    pthread_sigmask(SIG_BLOCK, &quiet, &before);
    const int error = pthread_create(&id_, &attributes, run, begin);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    if (error != 0) return error;
    static_cast<void>(owned.release());  // the thread's
    joinable_ = true;
    return 0;
  }

  bool joinable() const { return joinable_; }
  void join() {
    pthread_join(id_, nullptr);
    joinable_ = false;
  }
  // It lives as long as the process.
  void detach() {
    pthread_detach(id_);
    joinable_ = false;
  }
  // For a thread that was started.
  pthread_t id() const { return id_; }
  bool is_this() const { return joinable_ && pthread_equal(id_, pthread_self()) != 0; }

 private:
  struct Begin {
    const char* name;
    std::function<void()> work;
  };
  static void* run(void* argument) {
    const std::unique_ptr<Begin> begin(static_cast<Begin*>(argument));
    // By itself, for it may give itself a better one.
    pthread_setname_np(pthread_self(), begin->name);
    begin->work();
    return nullptr;
  }
  // All signals but those that a thread causes itself: their handlers (a sanitizer, a crash reporter) must
  // see ours too.
  static void signals_of_others(sigset_t& set) {
    sigfillset(&set);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&set, own);
  }

  pthread_t id_{};
  bool joinable_ = false;
};

}  // namespace rdmakit
