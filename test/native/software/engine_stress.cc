// The thread of a software provider, as far as its clock and its tasks go: what wakes it, and what it calls.
// It is turned by the test, so nothing here depends on how long anything takes.
#include <poll.h>

#include <vector>

#include "../stress.h"
#include "software/engine.h"

namespace software_engine_stress {

using namespace std::chrono_literals;
using Clock = rdmakit::software::Engine::Clock;

class Engine : public rdmakit::software::Engine {
 public:
  Engine() : rdmakit::software::Engine("test") {}
  // Somebody wants the thread to look again.
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

class Client : public rdmakit::software::Engine::Client {
 public:
  Client(std::vector<int>& called, int name) : called_(called), name_(name) {}
  void on_ready() override {}
  void on_deadline() override { called_.push_back(name_); }

 private:
  std::vector<int>& called_;
  const int name_;
};

// Who sleeps until one deadline is woken for one before it, and for no other.
void deadline_before_another() {
  Engine engine;
  std::vector<int> called;
  const auto client = std::make_shared<Client>(called, 1);
  const uint64_t number = engine.enroll(client);
  const Clock::time_point now = Clock::now();
  CHECK(engine.sleeps() == -1);
  engine.call_at(number, now + 3h);
  CHECK(engine.woken());
  engine.turn();
  CHECK(!engine.woken() && engine.sleeps() > 0);
  engine.call_at(number, now + 6h);
  CHECK(!engine.woken());
  engine.call_at(number, now + 1h);
  CHECK(engine.woken());
  engine.turn();
  CHECK(called.empty() && engine.deadlines() == 3);
}

// In their order, each once; none that was called off, and none of who is gone.
void deadlines_that_are_due() {
  Engine engine;
  std::vector<int> called;
  std::vector<std::shared_ptr<Client>> clients;
  std::vector<uint64_t> numbers;
  for (int name = 0; name < 4; name++) {
    clients.push_back(std::make_shared<Client>(called, name));
    numbers.push_back(engine.enroll(clients.back()));
  }
  const Clock::time_point past = Clock::now() - 1s;
  engine.call_at(numbers[0], past + 3ms);
  engine.call_at(numbers[1], past + 1ms);
  engine.call_at(numbers[2], past + 1ms);
  engine.call_at(numbers[3], past + 2ms);
  engine.call_at(numbers[0], past + 3h);
  engine.call_off(numbers[1], past + 1ms);
  engine.call_off(numbers[1], past + 2ms);  // which is not its own
  clients[3].reset();
  CHECK(engine.sleeps() == 0);
  engine.turn();
  CHECK((called == std::vector{2, 0}));
  engine.turn();
  CHECK(called.size() == 2 && engine.deadlines() == 1);
}

// All of them, in order, also those that a task asks for: the thread does not sleep over these.
void tasks_of_tasks() {
  Engine engine;
  std::vector<int> done;
  engine.post([&] {
    done.push_back(1);
    engine.post([&] { done.push_back(3); });
  });
  CHECK(engine.woken() && engine.sleeps() == 0);
  engine.post([&] { done.push_back(2); });
  engine.turn();
  CHECK((done == std::vector{1, 2}));
  CHECK(engine.woken() && engine.sleeps() == 0);
  engine.turn();
  CHECK((done == std::vector{1, 2, 3}));
  CHECK(!engine.woken() && engine.sleeps() == -1);
}

STRESS(software_engine) {
  deadline_before_another();
  deadlines_that_are_due();
  tasks_of_tasks();
  return 0;
}

}  // namespace software_engine_stress
