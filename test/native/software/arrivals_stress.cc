// Places before authentication: the oldest of the remaining ones makes room, and no other.
#include <deque>

#include "../stress.h"
#include "base/accept_failure.h"
#include "software/arrivals.h"

namespace software_arrivals_stress {

using namespace fixture;
using namespace rdmakit;
using namespace rdmakit::software;

struct Visitor {
  bool there = true;
  bool arriving() const { return there; }
  void give_way() { there = false; }
};

std::shared_ptr<Visitor> arrive(Arrivals<Visitor>& arrivals) {
  auto id = std::make_shared<Visitor>();
  arrivals.enter(id);
  return id;
}

void the_oldest_makes_room() {
  Arrivals<Visitor> arrivals(3);
  std::deque<std::shared_ptr<Visitor>> all;
  for (int i = 0; i < 10; i++) {
    all.push_back(arrive(arrivals));
    for (int at = 0; at <= i; at++) CHECK(all[static_cast<size_t>(at)]->there == (at > i - 3));
  }
}

// A request that waits for the application has its place still, and one that is answered has none.
void requests_that_wait() {
  Arrivals<Visitor> arrivals(2);
  const auto waits = arrive(arrivals);
  CHECK(arrivals.shown(*waits) == waits);
  CHECK(arrivals.shown(*waits) == nullptr && arrivals.leave(*waits) == nullptr);
  const auto silent = arrive(arrivals);
  const auto third = arrive(arrivals);
  CHECK(!waits->there && silent->there && third->there);

  CHECK(arrivals.shown(*silent) == silent);
  silent->there = false;  // the application has answered
  const auto fourth = arrive(arrivals);
  CHECK(third->there && fourth->there);
}

// What the application has let go is nobody's; what has shown nothing is the listener's, until it ends.
void who_has_them() {
  Arrivals<Visitor> arrivals(2);
  auto gone = arrive(arrivals);
  const std::weak_ptr<Visitor> after = gone;
  CHECK(arrivals.shown(*gone) != nullptr);
  gone.reset();
  CHECK(after.expired());
  const std::weak_ptr<Visitor> silent = arrive(arrivals);
  CHECK(!silent.expired());
  const auto left = arrive(arrivals);
  CHECK(left->there && arrivals.leave(*left) == left && arrivals.leave(*left) == nullptr);
  CHECK(arrivals.end().size() == 1);
  CHECK(silent.expired());
  CHECK(!arrivals.make_room());
}

// Out of descriptors: one at a time, those who are not there any more passed over.
void out_of_descriptors() {
  Arrivals<Visitor> arrivals(8);
  std::vector<std::shared_ptr<Visitor>> all;
  for (int i = 0; i < 4; i++) all.push_back(arrive(arrivals));
  all[0]->there = false;
  CHECK(arrivals.make_room() && !all[1]->there && all[2]->there);
  CHECK(arrivals.make_room() && !all[2]->there && all[3]->there);
  CHECK(arrivals.make_room() && !arrivals.make_room());
}

void places() {
  CHECK(arrivals_for(1) == kLeastArrivals && arrivals_for(1024) == 128 &&
        arrivals_for(SIZE_MAX) == kMostArrivals);
}

// An error of the connection that waited costs no other one its place, and the listener no pause.
void failures_to_accept() {
  CHECK(accept_failure(EAGAIN) == AcceptFailure::none_waiting);
  for (const int over : {ECONNABORTED, EINTR, EPROTO, EPERM, ENETDOWN, EHOSTUNREACH})
    CHECK(accept_failure(over) == AcceptFailure::connection_over);
  for (const int none : {EMFILE, ENFILE, ENOBUFS, ENOMEM, EBADF, EINVAL})
    CHECK(accept_failure(none) == AcceptFailure::no_room);
}

STRESS(software_arrivals) {
  the_oldest_makes_room();
  requests_that_wait();
  who_has_them();
  out_of_descriptors();
  places();
  failures_to_accept();
  return 0;
}

}  // namespace software_arrivals_stress
