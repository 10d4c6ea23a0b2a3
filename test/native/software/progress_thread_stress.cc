// The thread of a software provider, as far as its clock and its tasks go: what wakes it, and what it calls.
// It is turned by the test, so nothing here depends on how long anything takes.
#include <poll.h>

#include <vector>

#include "../stress.h"
#include "software/progress_thread.h"

namespace software_progress_thread_stress {

using namespace std::chrono_literals;
using Clock = rdmakit::software::ProgressThread::Clock;

class ProgressThread : public rdmakit::software::ProgressThread {
 public:
  ProgressThread() : rdmakit::software::ProgressThread("test") {}
  // A request to the thread to look again.
  bool woken() const {
    pollfd state{wake_fd(), POLLIN, 0};
    return poll(&state, 1, 0) == 1;
  }
  // What the thread does when it wakes up.
  void turn() {
    run_tasks();
    run_deadlines();
  }
  // For how long it would sleep then, in milliseconds; -1: until it is woken.
  int sleeps() { return timeout_ms(); }

 private:
  void run() override {}
};

class Client : public rdmakit::software::ProgressThread::Client {
 public:
  Client(std::vector<int>& called, int name) : called_(called), name_(name) {}
  void on_ready() override {}
  void on_deadline() override { called_.push_back(name_); }

 private:
  std::vector<int>& called_;
  const int name_;
};

// A thread that sleeps until one deadline is woken for an earlier one, and for no other.
void deadline_before_another() {
  ProgressThread thread;
  std::vector<int> called;
  const auto client = std::make_shared<Client>(called, 1);
  const uint64_t number = thread.enroll(client);
  const Clock::time_point now = Clock::now();
  CHECK(thread.sleeps() == -1);
  thread.call_at(number, now + 3h);
  CHECK(thread.woken());
  thread.turn();
  CHECK(!thread.woken() && thread.sleeps() > 0);
  thread.call_at(number, now + 6h);
  CHECK(!thread.woken());
  thread.call_at(number, now + 1h);
  CHECK(thread.woken());
  thread.turn();
  CHECK(called.empty() && thread.deadlines() == 3);
}

// In their order, each once; none that was called off, and none of who is gone.
void deadlines_that_are_due() {
  ProgressThread thread;
  std::vector<int> called;
  std::vector<std::shared_ptr<Client>> clients;
  std::vector<uint64_t> numbers;
  for (int name = 0; name < 4; name++) {
    clients.push_back(std::make_shared<Client>(called, name));
    numbers.push_back(thread.enroll(clients.back()));
  }
  const Clock::time_point past = Clock::now() - 1s;
  thread.call_at(numbers[0], past + 3ms);
  thread.call_at(numbers[1], past + 1ms);
  thread.call_at(numbers[2], past + 1ms);
  thread.call_at(numbers[3], past + 2ms);
  thread.call_at(numbers[0], past + 3h);
  thread.call_off(numbers[1], past + 1ms);
  thread.call_off(numbers[1], past + 2ms);  // which is not its own
  clients[3].reset();
  CHECK(thread.sleeps() == 0);
  thread.turn();
  CHECK((called == std::vector{2, 0}));
  thread.turn();
  CHECK(called.size() == 2 && thread.deadlines() == 1);
}

// All of them, in order, also those that a task asks for: the thread does not sleep over these.
void tasks_of_tasks() {
  ProgressThread thread;
  std::vector<int> done;
  thread.post([&] {
    done.push_back(1);
    thread.post([&] { done.push_back(3); });
  });
  CHECK(thread.woken() && thread.sleeps() == 0);
  thread.post([&] { done.push_back(2); });
  thread.turn();
  CHECK((done == std::vector{1, 2}));
  CHECK(thread.woken() && thread.sleeps() == 0);
  thread.turn();
  CHECK((done == std::vector{1, 2, 3}));
  CHECK(!thread.woken() && thread.sleeps() == -1);
}

STRESS(software_progress_thread) {
  deadline_before_another();
  deadlines_that_are_due();
  tasks_of_tasks();
  return 0;
}

}  // namespace software_progress_thread_stress
