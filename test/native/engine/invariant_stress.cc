// Invariants of the block engine: a process that violates one ends, with file, line and state.
#include "../death.h"
#include "fixture/bare_queue.h"

namespace engine_invariant_stress {

using namespace fixture;

// A lane's requests without a lane. None has come.
struct BareRequests {
  BareQueue lane{1, 1};
  RequestExecutor requests{lane.volume, lane.arena, *lane.queue, lane.statistics, lane, 0};

  Operation& take(Operation::Kind kind, uint16_t request = kNone) {
    Operation& operation = lane.queue->take(kind);
    operation.request = request;
    operation.kept = true;
    return operation;
  }
};

void requests() {
  BareRequests with;
  // An operation is over once, and of a request that is open.
  dies([&] { with.requests.operation_acknowledged(with.take(Operation::Kind::write, 3), 1); },
       "operation 0 of slot 3");
  dies([&] { with.requests.operation_over(with.take(Operation::Kind::read, 3)); },
       "operation 0, part 0 of slot 3, of which 0 are outstanding");
  dies([&] { with.requests.operation_over(with.take(Operation::Kind::ahead)); }, "window 0: 0 parts");
  dies(
      [&] {
        Operation& write = with.take(Operation::Kind::write);
        write.chunk = 2;
        with.requests.operation_over(write);
      },
      "buffer 2 is not pinned");
}

// At rest all that requests had is free.
void at_rest() {
  BareRequests with;
  with.requests.check_rest();
  dies(
      [&] {
        with.take(Operation::Kind::write);
        with.requests.check_rest();
      },
      "255 operations and 128 of 128 chunks are free");
  with.requests.check_rest();
}

void parts() {
  IndexStack<2> free;
  free.pop();
  free.pop();
  dies([&] { free.pop(); }, "nothing is free of 2");
  BareRequests with;
  dies([&] { with.lane.volume.settle(5, 1, 0, PageState::written); }, "of a claim are");
  SlabPlace twice = with.lane.volume.place(0);
  twice.replicas[twice.count++] = twice.replicas[0];
  dies([&] { SlabRecord().publish(twice); }, "replica 1 of 2, at server 0");
}

STRESS(engine_invariant) {
  timed("requests", requests);
  timed("at rest", at_rest);
  timed("parts", parts);
  return 0;
}

}  // namespace engine_invariant_stress
