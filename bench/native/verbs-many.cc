// The cost of many idle connected queue pairs: memory of this process for each, and processor time while it
// waits for an event on their armed completion channel.
//   verbs-many --listen URI
//   verbs-many --connect URI --count 1000 [--depth 64] [--seconds 3] [--progress automatic|manual]
// The connecting side prints one line of JSON. Each side holds COUNT queue pairs on one completion queue.
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "arguments.h"
#include "verbs-endpoint.h"

using namespace bench;
using namespace rdmakit;

namespace {

constexpr int kSecondsToLive = 120;

struct Options {
  std::string listen, connect;
  uint32_t count = 1000, depth = 64, seconds = 3;
  Progress progress = Progress::automatic;
};

// Told with each connection request.
struct Plan {
  uint32_t count, depth;
};

struct Usage {
  double anonymous = 0, shared = 0, file = 0;  // KiB

  static Usage now() {
    Usage usage;
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      const auto value = [&](const char* name, double& into) {
        if (line.rfind(name, 0) == 0) into = std::atof(line.c_str() + std::string(name).size());
      };
      value("RssAnon:", usage.anonymous);
      value("RssShmem:", usage.shared);
      value("RssFile:", usage.file);
    }
    return usage;
  }
};

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Sleeps on the channel as an application does; nothing is ever sent.
double idle(Queue& queue, uint32_t seconds) {
  must(ibv_req_notify_cq(queue.cq, 0), "ibv_req_notify_cq");
  pollfd waiting{queue.channel->fd, POLLIN, 0};
  while (::poll(&waiting, 1, 100) > 0) {  // what connecting left behind
    ibv_cq* ready = nullptr;
    void* context = nullptr;
    if (queue.provider.data_path_verbs()->get_cq_event(queue.channel, &ready, &context) == 0) {
      queue.provider.data_path_verbs()->ack_cq_events(ready, 1);
      must(ibv_req_notify_cq(queue.cq, 0), "ibv_req_notify_cq");
    }
  }
  const double before = processor_seconds();
  if (::poll(&waiting, 1, static_cast<int>(seconds) * 1000) != 0)
    fail("something happened while nothing should");
  return processor_seconds() - before;
}

void serve(const Options& options) {
  const Uri uri(options.listen);
  Id listener = listen(uri);
  std::unique_ptr<Queue> queue;
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  uint32_t count = 1;
  while (endpoints.size() < count) {
    CmEvent request = listener.expect(CmEvent::Type::connect_request);
    const Plan plan = heard<Plan>(request.private_data);
    count = plan.count;
    Id id(std::move(request.request));
    if (queue == nullptr) {
      queue = std::make_unique<Queue>(*uri.provider, id->context(), 4096, options.progress, true);
    }
    endpoints.push_back(std::make_unique<Endpoint>(*queue, std::move(id), plan.depth, 0));
    endpoints.back()->accept({});
    endpoints.back()->id.expect(CmEvent::Type::established);
  }
  // The connecting side takes its time to measure, then goes.
  for (;;) {
    CmEvent event;
    if (endpoints.front()->id.next(event)) return;
    ::poll(nullptr, 0, 100);
  }
}

void connect(const Options& options) {
  const Uri uri(options.connect);
  std::unique_ptr<Queue> queue;
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  Usage before;
  // The first one is not counted: it brings the provider's threads and tables.
  for (uint32_t i = 0; i <= options.count; ++i) {
    Id id = resolve(uri);
    if (queue == nullptr) {
      queue = std::make_unique<Queue>(*uri.provider, id->context(), 4096, options.progress, true);
    }
    endpoints.push_back(std::make_unique<Endpoint>(*queue, std::move(id), options.depth, 0));
    endpoints.back()->connect(told(Plan{options.count + 1, options.depth}));
    endpoints.back()->id.expect(CmEvent::Type::established);
    if (i == 0) before = Usage::now();
  }
  const Usage after = Usage::now();
  const double processor = idle(*queue, options.seconds);
  std::printf(
      "{\"count\":%u,\"depth\":%u,\"anonymousKiB\":%.2f,\"sharedKiB\":%.2f,\"fileKiB\":%.2f,"
      "\"idleSeconds\":%u,\"processorSeconds\":%.4f}\n",
      options.count, options.depth, (after.anonymous - before.anonymous) / options.count,
      (after.shared - before.shared) / options.count, (after.file - before.file) / options.count,
      options.seconds, processor);
}

Options options_of(int argc, char** argv) {
  Options options;
  parse(argc, argv,
        {{"listen", into(options.listen)},
         {"connect", into(options.connect)},
         {"count", into(options.count)},
         {"depth", into(options.depth)},
         {"seconds", into(options.seconds)},
         {"progress", into(options.progress)}});
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  alarm(kSecondsToLive);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const Options options = options_of(argc, argv);
  if (!options.listen.empty()) {
    serve(options);
  } else if (!options.connect.empty()) {
    connect(options);
  } else {
    fail("--listen or --connect?");
  }
}
