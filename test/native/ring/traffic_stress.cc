// Rings over iwarp://127.0.0.1 under load: every message once, in order, intact.
#include "traffic.h"

namespace ring_traffic_stress {

using namespace ring_test;

struct Case {
  const char* name;
  ring::Mode mode;
  Shape shape;
  size_t connections;
  Load load;
};

// A side without a thread does nothing while it is not turned, and does not even notice that the other has
// gone. A guardian notices.
void detach(Traffic& a, Traffic& b, ring::Mode mode) {
  if (mode != ring::Mode::caller) {
    a.detach_all();
    b.detach_all();
    return;
  }
  std::thread there([&] { b.detach_all(); });
  a.detach_all();
  there.join();
}

double run(const Case& test) {
  ring::PollerOptions options;
  options.mode = test.mode;
  options.max_connections = 256;
  options.descriptor_count = 64;  // small, so that it is often full
  const auto begin = std::chrono::steady_clock::now();
  Side client(options, 8192);
  Side server(options, 8192);
  std::vector<Endpoint> clients, servers;
  clients.reserve(test.connections);
  servers.reserve(test.connections);
  connect(client, server, test.shape, clients, servers, test.connections);
  {
    Load other = test.load;
    other.stop_after = test.load.stop_after > 0 ? UINT64_MAX : 0;  // only one side stops on purpose
    Traffic a(client, clients, test.load, 1);
    Traffic b(server, servers, other, 2);
    std::thread there([&] { b.run(); });
    a.run();
    there.join();
    a.check_counters();
    b.check_counters();
    detach(a, b, test.mode);
    CHECK(test.shape.windows == 1 || a.grown() + b.grown() >= test.connections, "%lu grew",
          a.grown() + b.grown());
    std::printf("%-44s %7lu messages ", test.name, a.received() + b.received());
  }
  for (auto* ends : {&clients, &servers}) {
    for (Endpoint& end : *ends) {
      end.qp = {};
      end.id->close();
    }
  }
  clients.clear();
  servers.clear();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

STRESS(ring_traffic) {
  const Shape wide{};
  Shape narrow;
  narrow.log2_capacity = 12;
  narrow.receive_depth = 8;
  narrow.send_depth = 16;
  Shape by_send = narrow;
  by_send.immediate = false;
  Shape no_inline = by_send;
  no_inline.max_inline = 0;
  Shape older = narrow;
  older.version = ring::Version::two;
  // 4, 16 and 64 KiB.
  Shape windows = narrow;
  windows.log2_capacity = 16;
  windows.windows = 3;
  Shape windows_by_send = windows;
  windows_by_send.immediate = false;
  const auto n = static_cast<uint64_t>(fixture::effort(12'000));
  using enum ring::Mode;
  const Case cases[] = {
      {"adaptive, one connection", adaptive, wide, 1, {.messages = n}},
      {"event, one connection", event, wide, 1, {.messages = n}},
      {"poll, one connection", poll, wide, 1, {.messages = n}},
      {"narrow ring: wraps, few credits", adaptive, narrow, 1, {.messages = n, .largest = 2032}},
      {"narrow ring, notified by SEND", adaptive, by_send, 1, {.messages = n, .largest = 2032}},
      {"notified by SEND without inline", event, no_inline, 1, {.messages = n, .largest = 2032}},
      {"largest messages only just fit", event, narrow, 1, {.messages = n, .largest = 2032, .hold = 3}},
      {"version 2, narrow ring", adaptive, older, 1, {.messages = n, .largest = 2032}},
      {"version 2, lane, largest only just fit",
       event,
       older,
       2,
       {.messages = n / 2, .largest = 2032, .hold = 3, .lane = true}},
      {"slow consumer", adaptive, wide, 2, {.messages = n / 4, .hold = 20, .pause = true}},
      {"16 connections on one poller", adaptive, wide, 16, {.messages = n / 8}},
      {"16 narrow connections, slow consumer",
       event,
       narrow,
       16,
       {.messages = n / 20, .largest = 2032, .hold = 5, .pause = true}},
      {"one of 8 connections closed in the middle",
       adaptive,
       wide,
       8,
       {.messages = n / 4, .stop_after = n / 10}},
      {"one of 8, by SEND, event, in the middle",
       event,
       by_send,
       8,
       {.messages = n / 8, .largest = 2032, .hold = 2, .stop_after = n / 20}},
      {"windows, small messages", adaptive, windows, 1, {.messages = n, .largest = 500}},
      {"windows, half of the largest just fits", event, windows, 2, {.messages = n / 8, .largest = 32'752}},
      {"windows, lanes, slow consumer",
       adaptive,
       windows,
       4,
       {.messages = n / 8, .hold = 3, .pause = true, .lane = true, .ping_every = 3}},
      {"windows, lane, large ones, held",
       poll,
       windows,
       1,
       {.messages = n / 8, .largest = 32'752, .hold = 1, .lane = true}},
      {"windows by SEND, caller",
       caller,
       windows_by_send,
       3,
       {.messages = n / 4, .largest = 8'000, .hold = 1}},
      {"windows, guarded, computes",
       guarded,
       windows,
       2,
       {.messages = n / 4, .largest = 20'000, .compute = true, .lane = true}},
      {"lane, one connection", adaptive, wide, 1, {.messages = n, .lane = true}},
      {"lane in a narrow ring", event, narrow, 1, {.messages = n, .largest = 2032, .hold = 3, .lane = true}},
      {"lanes of 16, slow consumer, pings",
       adaptive,
       narrow,
       16,
       {.messages = n / 20, .largest = 2032, .hold = 5, .pause = true, .lane = true, .ping_every = 3}},
      {"pings under load", adaptive, narrow, 2, {.messages = n / 2, .largest = 2032, .ping_every = 1}},
      {"pings under load, by SEND", poll, by_send, 2, {.messages = n / 4, .largest = 2032, .ping_every = 1}},
      {"pings without inline", event, no_inline, 1, {.messages = n / 4, .largest = 2032, .ping_every = 2}},
      {"caller, one connection", caller, wide, 1, {.messages = n}},
      {"caller, lanes, narrow, pings",
       caller,
       narrow,
       3,
       {.messages = n / 4, .largest = 2032, .hold = 4, .lane = true, .ping_every = 5}},
      {"caller, 16 narrow by SEND, slow consumer",
       caller,
       by_send,
       16,
       {.messages = n / 20, .largest = 2032, .hold = 5, .pause = true}},
      {"caller, one of 8 closed in the middle",
       caller,
       wide,
       8,
       {.messages = n / 4, .lane = true, .stop_after = n / 10}},
      {"guarded, one connection", guarded, wide, 1, {.messages = n}},
      {"guarded, computes", guarded, wide, 1, {.messages = n, .compute = true}},
      {"guarded, computes, lanes, narrow, pings",
       guarded,
       narrow,
       3,
       {.messages = n / 4, .largest = 2032, .hold = 4, .compute = true, .lane = true, .ping_every = 5}},
      {"guarded, computes, 16 narrow by SEND, slow",
       guarded,
       by_send,
       16,
       {.messages = n / 20, .largest = 2032, .hold = 5, .pause = true, .compute = true}},
      {"guarded, one of 8 closed in the middle",
       guarded,
       wide,
       8,
       {.messages = n / 4, .compute = true, .lane = true, .stop_after = n / 10}},
  };
  for (const Case& test : cases) {
    if (count > 1 && std::string(test.name).find(arguments[1]) == std::string::npos) continue;
    const double seconds = run(test);
    std::printf("%6.2f s\n", seconds);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace ring_traffic_stress
