// A lane's knowledge of a server that another one has declared failed, before it reads the list of failures.
#include "../fixture/bare_queue.h"

namespace engine_failed_server_stress {

using namespace fixture;

// A READ that came after the answer to a WRITE must not go to whom that one missed.
void is_not_read() {
  BareQueue with(2, 2);
  CHECK(with.queue->readable(with.volume.place(0))->server == 0);
  CHECK(with.volume.fail(0, 1, "elsewhere"));
  CHECK(with.queue->readable(with.volume.place(0))->server == 1);
  CHECK(with.volume.fail(1, 1, "elsewhere"));
  CHECK(with.queue->readable(with.volume.place(0)) == nullptr);
}

// It is in its place among those that failed before a WRITE that it missed is answered: who declared it
// failed may not have come so far.
void is_told_before_the_answer() {
  using Told = BareQueue::Told;
  BareQueue with(2, 2);
  with.begin_write(5, 0x22);
  CHECK(with.volume.fail(1, 1, "elsewhere"));
  with.run_out();
  CHECK((with.told == std::vector{Told::server_failed, Told::succeeded, Told::over}));
  CHECK(with.volume.failed_in_order() == std::vector<uint32_t>{1});
}

// Later completions of that server do not count for the answer of a WRITE.
void does_not_count() {
  using Told = BareQueue::Told;
  BareQueue with(1, 1);
  with.begin_write(5, 0x22);
  CHECK(with.volume.fail(0, 1, "elsewhere"));
  with.run_out();
  CHECK((with.told == std::vector{Told::server_failed, Told::failed, Told::over}));
  CHECK(with.volume.pages().get(5) == PageState::unset);
}

STRESS(engine_failed_server) {
  timed("is not read", is_not_read);
  timed("is told before the answer", is_told_before_the_answer);
  timed("does not count", does_not_count);
  return 0;
}

}  // namespace engine_failed_server_stress
