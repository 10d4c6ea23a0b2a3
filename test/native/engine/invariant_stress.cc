// Invariants of the block engine: a process that violates one ends, with file, line and state.
#include "../death.h"
#include "base/clock.h"
#include "fixture/bare_queue.h"
#include "fixture/one_slab.h"

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

// The backup's thread ends when nothing is left of what the lanes gave it.
struct BareBackup {
  BareBackup() {
    BackupOptions options;
    options.path = path;
    options.buffers = kMinBackupBuffers;
    backup.emplace(options);
    port = backup->open_port();
    CHECK(port != nullptr);
    memory.resize(2 * kPage);
    operation.index = 0;
    operation.memory = memory.data();
    operation.length = 2 * kPage;
  }
  ~BareBackup() { unlink(path.c_str()); }
  void open() {
    std::vector<std::string> warnings;
    std::string why;
    CHECK(backup->open(
              kMinSlab, [] {}, warnings, why) == 0,
          "%s", why.c_str());
  }
  // Its thread is over, and that of a lane too.
  void stop() { CHECK(backup->stop(now_ns() + kCloseTime)); }
  // A lane that had not ended queues two pages.
  void put() {
    open();
    stop();
    port->begin(operation);
    port->offer(operation);
  }

  const std::string path = fresh_path("/dev/shm/invariant");
  std::optional<Backup> backup;
  BackupPort* port = nullptr;
  std::vector<uint8_t> memory;
  Operation operation;
};

void backup() {
  {
    BareBackup with;
    with.open();
    with.stop();
    with.port->check_rest();
  }
  BareBackup with;
  BackupItem page{};
  BackupRead read{};
  dies(
      [&] {
        // One was taken and not finished.
        with.port->read(with.operation);
        with.port->pop(read);
        with.open();
        with.stop();
      },
      "0 pages and 0 READs wait, 0 pages are not finished, 1 operations outstanding");
  dies(
      [&] {
        with.put();
        with.port->check_rest();
      },
      "2 pages and 0 READs wait, 2 pages are not finished, 0 operations outstanding");
  dies(
      [&] {
        with.put();
        while (with.port->pop(page)) with.port->finish(page, true);
        with.port->finish(page, true);
      },
      "2 pages were queued and 2 finished");
  dies(
      [&] {
        // The outcome of a READ that nobody asked for.
        with.port->finish(read, true);
        with.port->check_rest();
      },
      "128 buffers of 128 are free, 1 on their way");
}

// An engine is closed when no page is claimed.
void pages() {
  dies(
      [] {
        OneSlab with;
        CHECK(with.slabs.pages().claim(5, 1, PageState::unset) == 1);
      },
      "1 pages are claimed, and 0 were at the start");
}

STRESS(engine_invariant) {
  timed("requests", requests);
  timed("at rest", at_rest);
  timed("parts", parts);
  timed("backup", backup);
  timed("pages", pages);
  return 0;
}

}  // namespace engine_invariant_stress
