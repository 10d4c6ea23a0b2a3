// When a lane takes a server for failed: by its own clock, and by what another one has declared, before it
// reads the list of failures.
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

// The lane's thread did not run for as long as the time-out, and for a moment more, between its last look at
// the time and the post: the device has had no time at all.
void is_not_the_lane_itself() {
  using Told = BareQueue::Told;
  BareQueue with(1, 1);
  with.begin_write(5, 0x22);  // at 1
  with.queue->check_deadlines(kNever + 2);
  CHECK(with.told.empty());
  with.run_out();
  CHECK((with.told == std::vector{Told::succeeded, Told::over}));
}

// A server that hangs has one look more, however often the lane looks, and the next of its work has none.
void hangs() {
  using Told = BareQueue::Told;
  BareQueue with(1, 1);
  with.servers[0]->set_mode(Server::Mode::hung);
  with.begin_write(5, 0x22);
  constexpr uint64_t kLastLook = 50'000'000;
  for (const uint64_t after : {uint64_t{2}, kLastLook / 2, kLastLook + 1}) {
    with.queue->check_deadlines(kNever + after);
    CHECK(with.told.empty());
    CHECK(with.queue->next_deadline() <= kNever + 2 + kLastLook);
  }
  with.queue->check_deadlines(kNever + 2 + kLastLook);
  CHECK(!with.told.empty() && with.told.front() == Told::server_failed && with.told.back() == Told::failed);
  with.run_out();
}

// A driver that forgets what it took of a broken connection, and refuses its doorbell without naming a
// request: the WRITE has the other replica, the server has failed, and once a flush would have come its
// request is over. Or no epoch would end.
void forgets() {
  using Told = BareQueue::Told;
  BareQueue with(2, 2, nullptr, true);
  with.servers[0]->set_mode(Server::Mode::forgets);
  with.begin_write(5, 0x22);  // at 1
  await([&] {
    with.queue->poll();
    return with.told.back() == Told::succeeded;
  });
  CHECK(with.told.front() == Told::server_failed);
  CHECK(with.volume.failed(0) && !with.queue->enter(1) && with.queue->next_deadline() == kNever + 1);
  with.queue->check_deadlines(kNever);
  CHECK(with.queue->outstanding() == 2);
  with.queue->check_deadlines(kNever + 1);
  CHECK(with.queue->outstanding() == 0 && with.queue->next_deadline() == 0);
  CHECK(with.told.back() == Told::over && with.queue->enter(1));
}

STRESS(engine_failed_server) {
  timed("forgets", forgets);
  timed("is not the lane itself", is_not_the_lane_itself);
  timed("hangs", hangs);
  timed("is not read", is_not_read);
  timed("is told before the answer", is_told_before_the_answer);
  timed("does not count", does_not_count);
  return 0;
}

}  // namespace engine_failed_server_stress
